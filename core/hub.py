"""Repositories on the model hub: the one module that knows huggingface_hub.

Logging in is left to huggingface_hub (``hf auth login``, ``HF_TOKEN``). Callers check the names
and the content of what they download: a shard by its name, a predictor by its manifest.
"""

from __future__ import annotations

import logging
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from abag.core.errors import HubError
from abag.core.messages import first_line

_NO_HUB = (KeyError, TypeError, AttributeError)  # what is not the JSON of a hub
RepositoryKind = Literal["model", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")
_PART = r"[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(
    # a path has lost one of the two slashes
    rf"hf:/{{1,2}}(?P<datasets>datasets/)?(?P<name>{_PART}/{_PART})(@(?P<revision>{_PART}(/{_PART})*))?",
    re.ASCII,
)


class HubAddress(NamedTuple):
    """A repository ``user/name`` on the hub, and a branch, tag or commit; None: the newest."""

    kind: RepositoryKind
    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.at(self.revision)

    def at(self, revision: str | None) -> str:
        """Spell the address of another revision; None: without one."""
        datasets = "datasets/" if self.kind == "dataset" else ""
        return f"hf://{datasets}{self.name}" + (f"@{revision}" if revision else "")

    @property
    def commit(self) -> str | None:
        """The revision, if it is the id of a commit."""
        return self.revision if COMMIT.fullmatch(self.revision or "") else None


def is_hub_address(text: Path | str) -> bool:
    """Tell whether a path that the user gave is an address on the hub."""
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


class Repository:
    """One repository on the hub. Methods raise HubError; huggingface_hub logs nothing."""

    def __init__(self, address: HubAddress) -> None:
        from huggingface_hub import HfApi

        self.address = address
        self._api = HfApi()
        self._repo: dict[str, Any] = {"repo_id": address.name, "repo_type": address.kind}

    @property
    def page(self) -> str:
        """The address of the repository's page."""
        return f"{self._api.endpoint}/{self.address.at(None).removeprefix('hf://')}"

    def head(self) -> str:
        """Return the id of the commit at the revision of the address, or of the newest one."""
        with self._asking():
            info = self._api.repo_info(**self._repo, revision=self.address.revision)
        if COMMIT.fullmatch(info.sha or ""):
            return str(info.sha)
        msg = f"{self.address}: lists the commit {info.sha!r}; expected an id. Try again."
        raise HubError(msg)

    def files(self, commit: str) -> dict[str, int]:
        """List the files of a commit: bytes by path, neither of which is to be trusted."""
        from huggingface_hub.hf_api import RepoFile

        with self._asking():
            sizes = {}
            # the pages of the list are asked for inside the loop
            for entry in self._api.list_repo_tree(**self._repo, recursive=True, revision=commit):
                if isinstance(entry, RepoFile):
                    sizes[str(entry.path)] = int(entry.size)
            return sizes

    def check_room(self, files: Mapping[str, int], folder: Path) -> None:
        """Raise HubError if files, with their bytes, do not fit on the disk of a folder."""
        needed = sum(files.values())
        free = shutil.disk_usage(folder).free
        if needed > free:
            msg = f"{self.address}: lists {needed:,} bytes; {folder} has {free:,} free. Make room."
            raise HubError(msg)

    def download(self, files: Mapping[str, int], commit: str, folder: Path) -> None:
        """Download files by path, all checked by the caller, into a folder that does not exist."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import tqdm

        class TerminalBar(tqdm):
            __init__ = partialmethod(tqdm.__init__, disable=None)

        if not files:  # no pattern at all would match every file
            return
        self.check_room(files, folder.parent)
        with self._asking():
            options = self._repo | {"revision": commit, "tqdm_class": TerminalBar}
            snapshot_download(allow_patterns=[*files], local_dir=folder, **options)
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # notes of huggingface_hub

    def create(self, *, private: bool) -> None:
        """Create the repository and the branch, unless they exist."""
        address = self.address
        if address.commit:
            msg = f"{address}: is a commit; expected a branch to add to. Leave out the commit."
            raise HubError(msg)
        with self._asking():
            self._api.create_repo(**self._repo, private=private or None, exist_ok=True)
            if private and not self._api.repo_info(**self._repo).private:
                msg = (
                    f"{address}: is public, and --private was given; expected a private "
                    "repository. Give another name, or make it private on its page."
                )
                raise HubError(msg)
            if address.revision not in (None, "main"):
                self._api.create_branch(**self._repo, branch=str(address.revision), exist_ok=True)

    def commit(
        self, contents: Mapping[str, Path | bytes], *, message: str, remove: Iterable[str] = ()
    ) -> str:
        """Add files in one commit, and return its id; the newest one, if they are there already."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._asking(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a Parquet file in a model's repository
            changes: list[Any] = [*map(CommitOperationDelete, remove)]
            for name, content in contents.items():
                whole = content if isinstance(content, bytes) else str(content)
                changes.append(CommitOperationAdd(name, whole))
            options = self._repo | {"commit_message": message, "revision": self.address.revision}
            return str(self._api.create_commit(operations=changes, **options).oid)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Make failures of the hub `HubError`; those of this disk stay what they are."""
        from huggingface_hub import errors

        log = logging.getLogger("huggingface_hub")
        level = log.level
        # of httpx or requests, by version
        network: tuple[Any, ...] = errors.HfHubHTTPError.__bases__
        try:
            log.setLevel(logging.ERROR)
            yield
        except (OSError, ValueError, RuntimeError, *_NO_HUB, *network) as error:
            cause: BaseException = error
            if isinstance(error, RuntimeError | errors.LocalEntryNotFoundError):
                cause = error.__cause__ or error  # of a failed upload, or download of many files
            is_os_error = isinstance(cause, OSError) and cause.errno is not None
            is_disk_error = is_os_error and not isinstance(cause, ConnectionError)
            if is_disk_error or isinstance(cause, RuntimeError):
                raise cause from None
            msg = f"{self.address}: {explain_refusal(cause, self.address) or _explain(cause)}"
            raise HubError(msg) from error
        finally:
            log.setLevel(level)


def explain_refusal(error: BaseException, address: HubAddress) -> str:
    """Say what a repository lacks or does not allow; empty for other errors."""
    from huggingface_hub import errors

    name = address.name
    login = "log in: hf auth login."
    if isinstance(error, errors.GatedRepoError):
        return (
            f"the owner of {name} has to grant access to it. Ask for access on its page on the "
            f"hub, then {login}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{name} does not exist on the hub, or you may not see it; expected a {address.kind}. "
            f"Check the name, or {login}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{name} has no revision {address.revision}; expected a branch, a tag or a whole "
            "commit id. Check what follows the @."
        )
    return ""


def _explain(error: BaseException) -> str:
    why = f"({first_line(error)})"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return (
            f"access is denied {why}; expected a login with enough rights; log in: hf auth login."
        )
    if status is not None:  # also of two people who push at the same time
        return f"the hub answers with an error {why}. Try again later."
    if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
        return (
            f"the hub refuses this, or is not a hub ({error!r}). Check what it names, and "
            "HF_ENDPOINT, or try again later."
        )
    return f"the hub cannot be reached {why}; expected a network connection. Try again later."
