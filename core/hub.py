"""Repositories on the model hub: the one module that knows huggingface_hub.

Logging in is left to huggingface_hub (``hf auth login``, ``HF_TOKEN``). Callers check the names
and the content of what they download: a shard by its name, a predictor by its manifest.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from abag import AbagError
from abag.core.messages import first_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NO_HUB = (KeyError, TypeError, AttributeError)  # what is not the JSON of a hub
RepositoryKind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
_PART = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(
    # a path has lost one of the two slashes
    rf"hf:/{{1,2}}(?P<datasets>datasets/)?(?P<name>{_PART}/{_PART})(@(?P<revision>{_PART}(/{_PART})*))?",
    re.ASCII,
)


class HubError(AbagError):
    """The hub cannot be reached, refuses, or lists what a hub does not."""


class HubUnreachable(HubError):
    """There is no connection to the hub."""


class HubAddress(NamedTuple):
    """A repository ``user/name`` on the hub, and a branch, tag or commit; None: the newest."""

    kind: RepositoryKind
    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.at(self.revision)

    def at(self, revision: str | None) -> str:
        datasets = "datasets/" * (self.kind == "dataset")
        return f"hf://{datasets}{self.name}" + (f"@{revision}" if revision else "")

    @property
    def commit(self) -> str | None:
        return self.revision if COMMIT.fullmatch(self.revision or "") else None


def is_hub_address(text: Path | str) -> bool:
    """Whether a path given by the user is an address on the hub."""
    return bool(re.match("hf:/", str(text)))


def parse_address(text: Path | str, kind: RepositoryKind) -> HubAddress:
    """Read an address: ``hf://user/name``, for a dataset ``hf://datasets/user/name``."""
    match = _ADDRESS.fullmatch(str(text))
    if match is None or bool(match["datasets"]) != (kind == "dataset"):
        form = HubAddress(kind, "user/name")
        msg = f"{text}: is not the address of a {kind}; expected {form}, or {form}@revision."
        raise HubError(msg)
    return HubAddress(kind, match["name"], match["revision"])


class Repository:
    """One repository on the hub; made by :func:`open_repository`. Methods raise HubError."""

    def __init__(self, address: HubAddress, api: HfApi) -> None:
        self.address, self._api = address, api
        self._repo: dict[str, Any] = {"repo_id": address.name, "repo_type": address.kind}

    @property
    def page(self) -> str:
        datasets = "datasets/" * (self.address.kind == "dataset")
        return f"{self._api.endpoint}/{datasets}{self.address.name}"

    def head(self) -> str:
        with self._asking():
            found = self._api.repo_info(**self._repo, revision=self.address.revision)
        if found.sha is None or not COMMIT.fullmatch(found.sha):
            msg = f"{self.address}: lists the commit {found.sha!r}; expected an id. Try again."
            raise HubError(msg)
        return found.sha

    def files(self, commit: str) -> dict[str, int]:
        """List the files of a commit: bytes by path, neither of which is to be trusted."""
        from huggingface_hub.hf_api import RepoFile

        with self._asking():
            entries = self._api.list_repo_tree(**self._repo, recursive=True, revision=commit)
            return {str(one.path): int(one.size) for one in entries if isinstance(one, RepoFile)}

    def check_room(self, files: Mapping[str, int], folder: Path) -> None:
        """Raise HubError if files, with their bytes, do not fit on the disk of a folder."""
        needed, free = sum(files.values()), shutil.disk_usage(folder).free
        if needed > free:
            msg = f"{self.address}: lists {needed:,} bytes; {folder} has {free:,} free. Make room."
            raise HubError(msg)

    def download(self, files: Mapping[str, int], commit: str, folder: Path) -> None:
        """Download files by path, all checked by the caller, into a folder that does not exist."""
        from huggingface_hub import snapshot_download

        if not files:  # no pattern at all would match every file
            return
        self.check_room(files, folder.parent)
        with self._asking():
            snapshot_download(
                **self._repo, revision=commit, allow_patterns=[*files], local_dir=folder
            )
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # notes of huggingface_hub

    def create(self, *, private: bool) -> None:
        """Create the repository and the branch, unless they exist."""
        address = self.address
        if address.commit:
            msg = f"{address}: is a commit; expected a branch to add to. Leave out the commit."
            raise HubError(msg)
        with self._asking():
            self._api.create_repo(**self._repo, private=private or None, exist_ok=True)
            is_private = self._api.repo_info(**self._repo).private
        if private and not is_private:
            msg = (
                f"{address}: is public, and --private was given; expected a private repository. "
                "Give another name, or make it private on its page."
            )
            raise HubError(msg)
        if address.revision not in (None, "main"):
            with self._asking():
                self._api.create_branch(**self._repo, branch=str(address.revision), exist_ok=True)

    def commit(
        self, contents: Mapping[str, Path | bytes], *, message: str, remove: Iterable[str] = ()
    ) -> str:
        """Add files in one commit, and return its id; the newest one, if they are there already."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._asking(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a Parquet file in a model's repository
            adds = [
                CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
                for name, content in contents.items()
            ]
            done = self._api.create_commit(
                **self._repo,
                operations=[*adds, *map(CommitOperationDelete, remove)],
                commit_message=message,
                revision=self.address.revision,
            )
        return str(done.oid)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        from huggingface_hub import errors

        # of httpx or requests, by version
        network: tuple[Any, ...] = errors.HfHubHTTPError.__bases__
        try:
            yield
        except (OSError, ValueError, RuntimeError, *_NO_HUB, *network) as error:
            cause: BaseException = error
            if isinstance(error, RuntimeError | errors.LocalEntryNotFoundError):
                cause = error.__cause__ or error  # of a failed upload, or download of many files
            of_this_disk = isinstance(cause, OSError) and cause.errno is not None
            if of_this_disk and not isinstance(cause, ConnectionError):
                raise cause from None
            if isinstance(cause, RuntimeError):
                raise
            kind, text = self._explain(cause)
            msg = f"{self.address}: {text}"
            raise kind(msg) from error

    def _explain(self, error: BaseException) -> tuple[type[HubError], str]:
        from huggingface_hub import errors

        why, login = first_line(error), "log in: hf auth login."
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.GatedRepoError):
            text = f"its owner has to grant access to it. Ask for access on its page, then {login}"
        elif isinstance(error, errors.RepositoryNotFoundError):
            text = (
                "does not exist on the hub, or you may not see it; expected a "
                f"{self.address.kind}. Check the name, or {login}"
            )
        elif isinstance(error, errors.RevisionNotFoundError):
            text = "has no such revision; expected a branch, a tag or a commit id. Check the @."
        elif status in (401, 403):
            text = f"access is denied ({why}); expected a login with enough rights; {login}"
        elif status is not None:  # also of two people who push at the same time
            return HubUnreachable, f"the hub answers with an error ({why}). Try again later."
        elif isinstance(error, ValueError | KeyError | TypeError | AttributeError):
            text = (
                f"the hub refuses this, or is not a hub ({error!r}). Check what it names, and "
                "HF_ENDPOINT, or try again later."
            )
        else:
            text = f"the hub cannot be reached ({why}); expected a network connection."
            return HubUnreachable, f"{text} Try again later."
        return HubError, " ".join(text.split())


@contextmanager
def open_repository(address: HubAddress) -> Iterator[Repository]:
    """Talk to a repository; huggingface_hub logs nothing, and draws bars on a terminal only."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    log = logging.getLogger("huggingface_hub")
    is_free = constants.HF_HUB_DISABLE_PROGRESS_BARS is None  # else the user has chosen
    with ExitStack() as after:
        after.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        if is_free and not sys.stderr.isatty():
            after.callback(enable_progress_bars)
            disable_progress_bars()
        yield Repository(address, HfApi())
