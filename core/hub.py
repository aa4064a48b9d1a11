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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from abag.core.errors import HubError
from abag.core.files import check_names, make_folder, replacing
from abag.core.messages import bar, first_line

_NO_HUB = (KeyError, TypeError, AttributeError, ArithmeticError)  # what is not the JSON of a hub
DOWNLOADS = 8
"""Files that are downloaded at the same time."""
MAX_PAGES = 1000
"""Pages of a listing, of 1,000 files each."""
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

    @property
    def short(self) -> str:
        """``user/name@revision``, as encoders are named."""
        return str(self).removeprefix("hf://")

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


def is_repository_name(text: str) -> bool:
    """Tell whether a text can be ``user/name``, and not a path."""
    return bool(re.fullmatch(rf"{_PART}/{_PART}", text, re.ASCII))


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
        """List the files of a commit: bytes by path, neither of which is to be trusted.

        No path leads out of the folder that it is joined to; `UnsafeFile` if one would.
        """
        sizes: dict[str, int] = {}
        with self._asking():
            for entry in self._listed(commit):
                if entry["type"] == "file":
                    sizes[str(entry["path"])] = int(entry["size"])
        check_names(Path(self.address.at(commit)), sizes, set(filter(_is_inside, sizes)))
        return sizes

    def _listed(self, commit: str) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of a listing, whose pages end."""
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

        # not list_repo_tree, which follows the address of a next page for ever, and to any host
        url = f"{self._api.endpoint}/api/{self.address.kind}s/{self.address.name}/tree/{commit}"
        query = {"recursive": "true", "expand": "false"}
        paths: set[str] = set()
        for _ in range(MAX_PAGES):
            response = http_backoff("GET", url, params=query, headers=build_hf_headers())
            hf_raise_for_status(response)
            entries = response.json()
            yield from entries
            next_page = response.links.get("next", {}).get("url")
            if next_page is None:
                return
            new_paths = {str(entry["path"]) for entry in entries} - paths
            if not new_paths:
                break
            paths |= new_paths
            query = dict(parse_qsl(urlsplit(next_page).query))
        msg = (
            f"{self.address}: its list of files has no end; expected at most {MAX_PAGES:,} pages, "
            "each of other files. Check HF_ENDPOINT; if it happens again, do not use the "
            "repository."
        )
        raise HubError(msg)

    def check_room(self, files: Mapping[str, int], folder: Path) -> None:
        """Raise HubError if files, with their bytes, do not fit on the disk of a folder."""
        needed = sum(files.values())
        free = shutil.disk_usage(folder).free
        if needed > free:
            msg = f"{self.address}: lists {needed:,} bytes; {folder} has {free:,} free. Make room."
            raise HubError(msg)

    def download(self, files: Mapping[str, int], commit: str, folder: Path) -> None:
        """Download some of the `files` into a folder, each whole or not at all.

        Their names are those in the repository: no header decides where anything is written.
        `HubError` if the hub sends more bytes than it lists.
        """
        if not files:
            return
        make_folder(folder)
        self.check_room(files, folder)
        stopped = Event()
        size = sum(files.values())
        shown: dict[str, Any] = {"disable": False} if sys.stderr.isatty() else {}
        progress = bar(total=size, desc=f"downloading {self.address.name}", **shown)
        pool = ThreadPoolExecutor(DOWNLOADS)
        with self._asking(), progress:
            try:
                jobs = []
                for path, limit in files.items():
                    target = _Target(folder / path, limit, progress, stopped)
                    jobs.append(pool.submit(self._download_one, path, commit, target))
                for job in jobs:
                    job.result()
            finally:
                stopped.set()  # also Ctrl-C: what the others still receive is not wanted
                pool.shutdown(cancel_futures=True)

    def _download_one(self, path: str, commit: str, target: _Target) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        address = self.address
        # not hf_hub_download: it names files by the ETag, a header that may be anything
        url = hf_hub_url(
            address.name, path, repo_type=address.kind, revision=commit, endpoint=self._api.endpoint
        )
        make_folder(target.path.parent)
        with replacing(target.path) as partial, _Received(partial, target) as file:
            headers = build_hf_headers()
            silent = bar(disable=True)  # all files share one
            http_get(url, file, headers=headers, expected_size=target.limit, _tqdm_bar=silent)

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
            is_nested = isinstance(cause, RecursionError)  # more deeply than an answer of any hub
            if is_disk_error or (isinstance(cause, RuntimeError) and not is_nested):
                raise cause from None
            msg = f"{self.address}: {explain_refusal(cause, self.address) or _explain(cause)}"
            raise HubError(msg) from error
        finally:
            log.setLevel(level)


class _Target(NamedTuple):
    """Where a file is downloaded to, and at most how many bytes."""

    path: Path
    limit: int
    progress: Any
    stopped: Event


class _Received(FileIO):
    """A file that refuses more bytes than were listed."""

    def __init__(self, partial: Path, target: _Target) -> None:
        super().__init__(partial, "w")
        self._target = target

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - bytes of any kind
        """Write what has arrived; `HubError` if that is more than was listed."""
        arrived = len(data)
        if self.tell() + arrived > self._target.limit:
            msg = (
                f"{self._target.path.name}: the hub sends more than the {self._target.limit:,} "
                "bytes that it lists. Try again; if it happens again, do not use the repository."
            )
            raise HubError(msg)
        if self._target.stopped.is_set():
            msg = f"{self._target.path.name}: the download was stopped."
            raise HubError(msg)
        self._target.progress.update(arrived)
        return super().write(data)


def _is_inside(path: str) -> bool:
    """Tell whether a path in a repository stays in the folder that it is joined to."""
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and not {"", ".", ".."} & {*parts}


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
    if isinstance(error, ValueError | RecursionError | KeyError | TypeError | AttributeError):
        return (
            f"the hub refuses this, or is not a hub ({error!r}). Check what it names, and "
            "HF_ENDPOINT, or try again later."
        )
    return f"the hub cannot be reached {why}; expected a network connection. Try again later."
