"""Repositories on the model hub: the one module that knows huggingface_hub.

Logging in is left to huggingface_hub (``hf auth login``, ``HF_TOKEN``). What a repository lists is
checked before it is used, and a downloaded file is compared with its digest in the listing.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from abag import AbagError
from abag.core.messages import first_line
from abag.core.names import UnsafeFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RepositoryKind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
_PART = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(
    # a path has lost one of the two slashes
    rf"hf:/{{1,2}}(?P<datasets>datasets/)?(?P<name>{_PART}/{_PART})(@(?P<revision>{_PART}(/{_PART})*))?",
    re.ASCII,
)
_PATH = re.compile(r"[\w@+-][\w@.+-]*(/[\w@+-][\w@.+-]*)*", re.ASCII)
"""Paths that are downloaded: no part of one begins with a dot."""
_DIGESTS = {"sha256": re.compile(r"[0-9a-f]{64}"), "git": re.compile(r"[0-9a-f]{40}")}


class HubError(AbagError):
    """The hub cannot be reached, refuses, or its files are not those that it lists."""


class HubUnreachable(HubError):
    """There is no connection to the hub."""


class HubChanged(HubError):
    """Somebody else has committed since the parent of a commit."""


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A repository on the hub, and a branch, tag or commit of it."""

    kind: RepositoryKind
    name: str
    """``user/name``."""
    revision: str | None = None
    """None: the newest commit."""

    def __str__(self) -> str:
        return self.at(self.revision)

    def at(self, revision: str | None) -> str:
        """Return the address with another revision."""
        datasets = "datasets/" * (self.kind == "dataset")
        return f"hf://{datasets}{self.name}" + (f"@{revision}" if revision else "")

    @property
    def commit(self) -> str | None:
        """The revision, if it is a whole commit id, which always names the same files."""
        return self.revision if COMMIT.fullmatch(self.revision or "") else None


def is_hub_address(text: Path | str) -> bool:
    """Whether a path given by the user is an address on the hub."""
    return bool(re.match("hf:/", str(text)))


def parse_address(text: Path | str, kind: RepositoryKind) -> HubAddress:
    """Read an address: ``hf://user/name``, for a dataset ``hf://datasets/user/name``.

    Raises
    ------
    HubError
        If it is not the address of a repository of this kind.
    """
    match = _ADDRESS.fullmatch(str(text))
    if match is None or bool(match["datasets"]) != (kind == "dataset"):
        form = HubAddress(kind, "user/name")
        msg = f"{text}: is not the address of a {kind}; expected {form}, or {form}@revision."
        raise HubError(msg)
    return HubAddress(kind, match["name"], match["revision"])


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as a repository lists it."""

    path: str
    size: int
    digest: str
    """``sha256`` of a large file, ``git`` object id of a small one."""
    algorithm: Literal["sha256", "git"]

    def matches(self, path: Path) -> bool:
        """Whether a file on the disk has the listed size and digest."""
        if path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            return self._is_digest_of(file)

    def holds(self, content: bytes) -> bool:
        """Whether bytes have the listed size and digest."""
        return len(content) == self.size and self._is_digest_of(io.BytesIO(content))

    def _is_digest_of(self, file: BinaryIO) -> bool:
        is_large = self.algorithm == "sha256"
        start = hashlib.sha256() if is_large else hashlib.sha1(f"blob {self.size}\0".encode())
        return hashlib.file_digest(file, lambda: start).hexdigest() == self.digest  # type: ignore[arg-type]


class Repository:
    """One repository on the hub; made by :func:`open_repository`. All methods raise HubError."""

    def __init__(self, address: HubAddress, api: HfApi) -> None:
        self.address, self._api = address, api

    @property
    def page(self) -> str:
        """Address of the repository's page."""
        datasets = "datasets/" * (self.address.kind == "dataset")
        return f"{self._api.endpoint}/{datasets}{self.address.name}"

    def head(self) -> str:
        """Return the commit that the revision stands for."""
        with self._asking():
            found = self._api.repo_info(
                self.address.name, repo_type=self.address.kind, revision=self.address.revision
            )
        if found.sha is None or not COMMIT.fullmatch(found.sha):
            what = f"the commit id {found.sha!r}"
            raise self._invalid(what)
        return found.sha

    def files(self, commit: str) -> dict[str, HubFile]:
        """List the files of a commit, by path."""
        from huggingface_hub.hf_api import RepoFile

        with self._asking():
            entries = list(
                self._api.list_repo_tree(
                    self.address.name, recursive=True, revision=commit, repo_type=self.address.kind
                )
            )
        found = (self._listed(one) for one in entries if isinstance(one, RepoFile))
        return {file.path: file for file in found}

    def _listed(self, entry: object) -> HubFile:
        """Check one entry of a listing."""
        path, size = getattr(entry, "path", None), getattr(entry, "size", None)
        large = getattr(entry, "lfs", None)
        algorithm: Literal["sha256", "git"] = "git" if large is None else "sha256"
        digest = getattr(entry, "blob_id", None) if large is None else large.sha256
        sized = type(size) is int and size >= 0
        if isinstance(path, str) and sized and _DIGESTS[algorithm].fullmatch(str(digest)):
            return HubFile(path, size, str(digest), algorithm)  # type: ignore[arg-type]
        what = f"{path!r} of {size!r} bytes with digest {digest!r}"
        raise self._invalid(what)

    def _invalid(self, what: str) -> HubError:
        return HubError(f"{self.address}: the hub lists {what}; expected a valid entry. Try again.")

    def fetch(self, file: HubFile, commit: str, folder: Path) -> Path:
        """Download a file into a folder and compare it with the listing.

        Raises
        ------
        UnsafeFile
            If its path leads out of the folder.
        """
        if not _PATH.fullmatch(file.path):
            msg = (
                f"{self.address}: lists the file {file.path!r}; expected a plain path. Nothing was "
                "written; get it from a source that you trust."
            )
            raise UnsafeFile(msg)
        with self._asking():
            path = Path(
                self._api.hf_hub_download(
                    self.address.name,
                    file.path,
                    repo_type=self.address.kind,
                    revision=commit,
                    local_dir=folder,
                )
            )
        if path.is_symlink() or not file.matches(path):
            msg = (
                f"{self.address}: {file.path} differs from its {file.algorithm} digest on the hub. "
                "Try again; if it happens again, do not use the repository."
            )
            raise HubError(msg)
        return path

    def create(self, *, private: bool) -> None:
        """Create the repository and the branch, unless they exist."""
        address = self.address
        if address.commit:
            msg = f"{address}: is a commit; expected a branch to add to. Leave out the commit."
            raise HubError(msg)
        with self._asking():
            self._api.create_repo(
                address.name, repo_type=address.kind, private=private or None, exist_ok=True
            )
            is_private = self._api.repo_info(address.name, repo_type=address.kind).private
            if address.revision not in (None, "main") and not (private and not is_private):
                self._api.create_branch(
                    address.name,
                    branch=str(address.revision),
                    repo_type=address.kind,
                    exist_ok=True,
                )
        if private and not is_private:
            msg = (
                f"{address}: is public, and --private was given; expected a private repository. "
                "Nothing was sent; give another name, or make it private on its page."
            )
            raise HubError(msg)

    def commit(
        self,
        contents: Mapping[str, Path | bytes],
        *,
        parent: str,
        message: str,
        remove: Iterable[str] = (),
    ) -> str:
        """Add files in one commit, and return its id.

        Raises
        ------
        HubChanged
            If `parent` is no longer the newest commit; nothing is changed.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._asking(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a Parquet file in a model's repository
            adds = [
                CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
                for name, content in contents.items()
            ]
            done = self._api.create_commit(
                self.address.name,
                [*adds, *(CommitOperationDelete(name) for name in remove)],
                commit_message=message,
                repo_type=self.address.kind,
                revision=self.address.revision,
                parent_commit=parent,
            )
        return str(done.oid)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn the errors of huggingface_hub into one line."""
        from huggingface_hub import errors

        network: tuple[type[Exception], ...] = (OSError,)
        network += errors.HfHubHTTPError.__bases__  # of httpx or requests, by version
        try:
            yield
        except errors.GatedRepoError as error:
            msg = (
                f"{self.address}: its owner has to grant access to it. Ask for access on its page, "
                "then log in: hf auth login."
            )
            raise HubError(msg) from error
        except errors.RepositoryNotFoundError as error:
            msg = (
                f"{self.address}: does not exist on the hub, or you may not see it; expected a "
                f"{self.address.kind}. Check the name, or log in: hf auth login."
            )
            raise HubError(msg) from error
        except errors.RevisionNotFoundError as error:
            msg = (
                f"{self.address}: has no such revision; expected a branch, a tag or a whole commit "
                "id. Check what follows the @."
            )
            raise HubError(msg) from error
        except errors.HfHubHTTPError as error:
            raise self._refused(error, error.response.status_code) from error
        except RuntimeError as error:  # huggingface_hub wraps what an upload raises
            if error.__cause__ is None:
                raise
            with self._asking():
                raise error.__cause__ from None
        except ValueError as error:
            msg = (
                f"{self.address}: the hub refuses this ({first_line(error)}). Change what it names."
            )
            raise HubError(msg) from error
        except (KeyError, TypeError, AttributeError) as error:  # not the JSON of a hub
            msg = (
                f"{self.address}: the hub's answer cannot be read ({error!r}); expected that of a "
                "hub. Check HF_ENDPOINT, or try again later."
            )
            raise HubError(msg) from error
        except network as error:
            if getattr(error, "errno", None) and not isinstance(error, ConnectionError):
                raise  # of this machine's disk
            msg = (
                f"{self.address}: the hub cannot be reached ({first_line(error)}); expected a "
                "network connection. Try again later."
            )
            raise HubUnreachable(msg) from error

    def _refused(self, error: Exception, status: int) -> HubError:
        if status in (401, 403):
            return HubError(
                f"{self.address}: access is denied ({first_line(error)}); expected a login with "
                "enough rights. Log in: hf auth login."
            )
        if status in (409, 412):
            return HubChanged(
                f"{self.address}: somebody else is changing it ({first_line(error)}). Try again."
            )
        return HubUnreachable(
            f"{self.address}: the hub answers with an error ({first_line(error)}). Try again later."
        )


@contextmanager
def open_repository(address: HubAddress) -> Iterator[Repository]:
    """Talk to a repository; messages and bars of huggingface_hub are off meanwhile."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    log = logging.getLogger("huggingface_hub")
    level, bars = log.level, not are_progress_bars_disabled()
    bars = bars and constants.HF_HUB_DISABLE_PROGRESS_BARS is None  # else the user has chosen
    log.setLevel(logging.ERROR)
    if bars:
        disable_progress_bars()
    try:
        yield Repository(address, HfApi())
    finally:
        log.setLevel(level)
        if bars:
            enable_progress_bars()


def check_room(folder: Path, files: Iterable[HubFile], where: HubAddress) -> None:
    """Raise HubError if files that are to be downloaded do not fit on the disk of a folder."""
    needed = sum(file.size for file in files)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        msg = (
            f"{where}: lists {needed:,} bytes to download; {folder} has {free:,} free. Nothing was "
            "written; make room, or choose another disk."
        )
        raise HubError(msg)
