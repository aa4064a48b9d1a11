"""Pull a store from the hub: download the shards that a store lacks.

Shards are immutable, so pulling only adds files, and is continued by pulling again.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from abag.core.files import adopt, make_folder, scratch_folder
from abag.core.hub import HubFile, Repository, check_room, open_repository, parse_address
from abag.core.messages import bar, say
from abag.embed.shards.regular_files import DamagedShard
from abag.embed.shards.shard import check_file, read_table_of_contents
from abag.embed.shards.shard_index import refuse_foreign
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.filesystem import access
from abag.embed.store.hub_listing import StoreListing
from abag.embed.store.maintenance import is_same_shard, refuse_other_poolings
from abag.embed.store.store import NotAStore, Store, open_store
from abag.embed.store.store_files import ADAPTER_PATHS, write_adapter_files

DOWNLOADS = 4
"""Files that are downloaded at the same time."""


class PullSummary(TypedDict):
    """The keys of ``abag store pull --json``."""

    address: str
    """With the commit that was pulled."""
    store: str
    pulled: int
    """Shards."""
    present: int
    """Shards that the store held."""
    bytes: int
    """Of the shards that arrived."""


def pull(address: str, store: Path | str) -> PullSummary:
    """Add the shards of a store on the hub to a store, which is created if it is new.

    Shards that are there already are not downloaded again. Each one is checked byte by byte before
    it counts; an interruption costs the ones on the way.

    Parameters
    ----------
    address : str
        ``hf://datasets/user/name``, or with ``@`` and a branch, tag or commit.

    Raises
    ------
    HubError
        If the repository cannot be read, or a file differs from what it lists.
    UnsafeFile, DamagedShard, NotAStore
        If the repository is not a sound store.
    StoreMismatch
        If encoder folders or shards of one name differ.
    StoreUnreachable
    """
    source = parse_address(address, "dataset")
    target = open_store(store, create=True)
    with open_repository(source) as hub:
        commit = hub.head()
        listing = StoreListing(hub, commit)
        if not listing.folders:
            msg = f"{source}: holds no store; expected the folders of encoders. Check the address."
            raise NotAStore(msg)
        if source.commit is None:
            say(f"{source}: commit {commit}; to pull exactly this again, add @{commit}.")
        with TemporaryDirectory() as records:  # a repository that is refused leaves no folder
            encoders = listing.fetch_encoders(hub, Path(records))
        access(target.path, partial(make_folder, target.path))
        with scratch_folder(target.path) as scratch:
            return _Pull(hub, listing, target, scratch).run(encoders)


class _Pull:
    """One pull into a store."""

    def __init__(
        self, hub: Repository, listing: StoreListing, target: Store, scratch: Path
    ) -> None:
        self._hub, self._listing = hub, listing
        self._target, self._scratch = target, scratch

    def run(self, encoders: Mapping[str, EncoderFolder]) -> PullSummary:
        for folder in encoders.values():  # all of them first: nothing is added to a wrong store
            refuse_other_poolings(folder, self._target.find_folder(folder.kind, folder.info))
        missing = [file for file in self._listing.shards() if not self._is_here(file)]
        extras = [
            self._listing.folders[name][inner]
            for name in encoders
            for inner in ADAPTER_PATHS
            if inner in self._listing.folders[name]
        ]
        check_room(self._target.path, missing + extras, self._hub.address)
        for name, folder in encoders.items():
            into = self._target.create_folder(folder.kind, folder.info)
            adapter = {file.path: file for file in extras if file.path.startswith(f"{name}/")}
            content = {
                path.removeprefix(f"{name}/"): self._fetch(file).read_bytes()
                for path, file in adapter.items()
            }
            access(into.path, partial(write_adapter_files, into.path, content))
        pulled = self._pull_shards(missing, encoders)
        return PullSummary(
            address=self._listing.address,
            store=str(self._target.path),
            pulled=len(pulled),
            present=len(self._listing.shards()) - len(pulled),
            bytes=sum(file.size for file in pulled),
        )

    def _fetch(self, file: HubFile) -> Path:
        return self._hub.fetch(file, self._listing.commit, self._scratch)

    def _is_here(self, file: HubFile) -> bool:
        path = self._target.path / file.path
        return path.is_file() and not path.is_symlink() and access(path, lambda: file.matches(path))

    def _pull_shards(
        self, missing: list[HubFile], encoders: Mapping[str, EncoderFolder]
    ) -> list[HubFile]:
        pulled = []
        pool = ThreadPoolExecutor(DOWNLOADS)
        try:
            waiting = {
                pool.submit(copy_context().run, self._pull_shard, file, encoders): file
                for file in missing
            }
            with bar(
                total=sum(f.size for f in missing), desc="pull", unit="B", unit_scale=True
            ) as drawn:
                for future in as_completed(waiting):
                    if future.result():
                        pulled.append(waiting[future])
                    drawn.update(waiting[future].size)
        finally:
            pool.shutdown(cancel_futures=True)
        return pulled

    def _pull_shard(self, file: HubFile, encoders: Mapping[str, EncoderFolder]) -> bool:
        """Download, check and commit one shard; return whether the store lacked it."""
        arrived, path = self._fetch(file), self._target.path / file.path
        check_file(arrived)
        contents = read_table_of_contents(arrived)
        if len(contents.blocks) != 1 or contents.blocks[0].group != "/":
            msg = f"{self._listing.address}: {file.path} is not a shard; expected one block."
            raise DamagedShard(msg)
        folder, (block,) = encoders[file.path.partition("/")[0]], contents.blocks
        refuse_foreign(block, {"kind": folder.kind, "fingerprint": folder.fingerprint})
        if access(path, path.exists) and is_same_shard(path, block):
            arrived.unlink()
            return False
        access(path, partial(adopt, arrived, path))
        return True
