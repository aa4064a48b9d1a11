"""Folders of predictors: what they hold, and of shared ones layout, manifest and download.

A manifest lists the files that are read, with their digests, which are checked each time. What was
downloaded of a commit once is read without a network connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from abag.core.cache import cache_dir
from abag.core.errors import DamagedFile
from abag.core.files import check_names, json_bytes, make_folder, read_inside, write_bytes
from abag.core.hub import Repository, is_hub_address, parse_address
from abag.core.messages import counted, say
from abag.core.options import user_path
from abag.embed.sequences.chains import KINDS, PLURAL, Kind
from abag.embed.sequences.columns import quote_some
from abag.embed.store.store_files import ADAPTER_PATHS, ROWS_FILE
from abag.head.prediction.specs import RECORD, WEIGHTS

MANIFEST = "manifest.json"
CARD = "README.md"
LICENCE = "LICENSE"
ADAPTER_FILES = tuple(f"{kind}-{path}" for kind in KINDS for path in ADAPTER_PATHS)
"""Files of the adapters, whose paths in a store are ``adapter/...``, by kind."""
READ = (RECORD, WEIGHTS, *ADAPTER_FILES)
"""Files that are read; the card and the licence are for people."""
FORMAT = {"format": "abag-predictor", "version": 1}


@dataclass(frozen=True, slots=True)
class FileContents:
    """What a file of a predictor holds of the data that it was trained on."""

    name: str
    sequences: tuple[str, ...]
    """Which sequences can be read in it."""
    other: tuple[str, ...]

    @property
    def words(self) -> str:
        """All of it in one line."""
        return "; ".join((*self.sequences, *self.other))


def contents_of(record: bytes, weights: BinaryIO, others: Iterable[str]) -> list[FileContents]:
    """Tell what the files of a predictor hold, from what is in them.

    Parameters
    ----------
    record : bytes
        Content of predictor.json.
    weights : file
        The weights, of which the shapes of the arrays are read.
    others : iterable of str
        Names of the other files in the folder.
    """
    fields = json.loads(record)
    shapes = _shapes(weights)
    sides = _residue_sides(fields)
    files = [
        FileContents(RECORD, *_held_by_record(fields, sides)),
        FileContents(WEIGHTS, *_held_by_weights(fields, shapes, sides)),
    ]
    for name in others:
        held = "nothing of the training data"
        if name == CARD:
            held = "names of the table and of columns, counts and scores"
        elif name.endswith(ROWS_FILE):
            held = "the keys of the pairs that its adapters were trained on"
        elif name in ADAPTER_FILES:
            held = "an adapter, whose numbers were fitted to labels"
        files.append(FileContents(name, (), (held,)))
    return files


def _shapes(weights: BinaryIO) -> dict[str, list[int]]:
    """Read the shapes in the head of a safetensors file, which begins with its length."""
    head = json.loads(weights.read(int.from_bytes(weights.read(8), "little")))
    return {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}


def _residue_sides(fields: Mapping[str, Any]) -> dict[str, set[Kind]]:
    """Return the kinds that the models of a predictor compare by residues, by prefix of arrays."""
    sides: dict[str, set[Kind]] = {}
    for k, part in enumerate(fields["parts"]):
        for i, settings in enumerate(part["settings"]):
            sides[f"{k}.{i}."] = {side["kind"] for side in settings.get("sides", ())}
    return sides


def _held_by_record(
    fields: Mapping[str, Any], sides: Mapping[str, set[Kind]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sequences = []
    for kind in KINDS:
        if any(kind in kinds for kinds in sides.values()):
            sequences.append(
                f"the consensus of the training {PLURAL[kind]}, of a library usually their parent, "
                "with the residues that they have at each position"
            )
    if fields["reading"]["parent"]:
        sequences.append("the parent that mutations are of")
    if fields["reading"]["antigen"]:
        sequences.append("the antigen of all rows")
    other = ["scores by regime", "names of encoders and columns"]
    if "features" in fields:
        columns = [*fields["features"]["numbers"], *fields["features"]["categories"]]
        names = quote_some([column["name"] for column in columns])
        other.append(f"ranges and values of categories of the columns {names}")
    return tuple(sequences), tuple(other)


def _held_by_weights(
    fields: Mapping[str, Any], shapes: Mapping[str, list[int]], sides: Mapping[str, set[Kind]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sequences = []
    other = ["numbers that were fitted to the labels"]
    stored: dict[Kind, int] = {}
    by_residues: dict[Kind, int] = {}
    by_vectors: dict[Kind, int] = {}
    for kind in KINDS:
        if not fields[kind]["views"]:
            continue  # the one antigen of antibodies alone, which is empty
        if f"seen.{kind}.sequences" in shapes:
            stored[kind] = shapes[f"seen.{kind}.keys"][0]
        for prefix, kinds in sides.items():
            rows = shapes.get(f"{prefix}{kind}.train", [0])[0]
            found = by_residues if kind in kinds else by_vectors
            found[kind] = max(rows, found.get(kind, 0))
    sequences += _of_training("the sequences of {}", stored)
    sequences += _of_training(
        "the sequences of {}, as residues that differ from the consensus", by_residues
    )
    other.append("keys of the training sequences, with which guesses can be tested")
    other += _of_training("vectors of {}", by_vectors)
    if any(name.endswith(".of_pair") for name in shapes):
        other.append("which of them are training pairs, with weights that follow from their labels")
    if any(name.endswith("features.train") for name in shapes):
        other.append("features of the training pairs")
    if any(f"noise.{kind}.keys" in shapes for kind in KINDS):
        other.append("which training sequences have smaller or larger errors than others")
    columns = [column["name"] for column in fields.get("features", {}).get("categories", ())]
    noisy = [name for n, name in enumerate(columns) if f"noise.category.{n}" in shapes]
    if noisy:
        other.append(f"how large errors are by {', '.join(noisy)}")
    return tuple(sequences), tuple(other)


def _of_training(words: str, numbers: Mapping[Kind, int]) -> list[str]:
    """Put numbers of training sequences into words; nothing if there are none."""
    both = [counted(number, kind) for kind, number in numbers.items() if number]
    return [words.format(f"{' and '.join(both)} of the training data")] if both else []


def make_manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the content of manifest.json for files by name; the card may change later."""
    records = {name: _record(files[name]) for name in sorted(files) if name in READ}
    return json_bytes({**FORMAT, "files": records})


def _record(content: bytes) -> dict[str, object]:
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}


def check_manifest(folder: Path) -> None:
    """Check the names of the files of a shared predictor, and each against its digest."""
    path = folder / MANIFEST
    try:
        written = json.loads(read_inside(folder, MANIFEST))
        files = dict(written["files"])
        format_fields = {name: written[name] for name in FORMAT}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path}: is not the manifest of a predictor ({error}). Get the predictor again."
        raise DamagedFile(msg) from error
    check_names(path, files, READ)
    if format_fields != FORMAT:
        msg = (
            f"{path}: {format_fields} is not supported; this abag reads {FORMAT}. Have the "
            "predictor shared again, or use the version of abag that wrote it."
        )
        raise DamagedFile(msg)
    unlisted = {name for name in READ if name in (RECORD, WEIGHTS) or (folder / name).exists()}
    for name in sorted(unlisted - files.keys()):
        msg = f"{folder / name}: is not listed in {MANIFEST}. Get the predictor again."
        raise DamagedFile(msg)
    for name, expected in files.items():
        try:
            is_same = _record(read_inside(folder, name)) == expected
        except OSError as error:
            msg = f"{folder / name}: cannot be read ({error}). Get the predictor again."
            raise DamagedFile(msg) from error
        if not is_same:
            msg = (
                f"{folder / name}: differs from its digest in {MANIFEST}; expected the file that "
                "was shared. Remove the folder and get it again."
            )
            raise DamagedFile(msg)


def predictor_folder(path: Path | str) -> Path:
    """Return the folder of a predictor, or of a run; download it if `path` is an address."""
    if not is_hub_address(path):
        folder = user_path(path, "run")
        if (folder / MANIFEST).exists():
            check_manifest(folder)
        return folder
    address = parse_address(path, "model")
    place = cache_dir() / "hub" / address.name
    commit = address.commit
    if commit is None or not (place / commit / MANIFEST).exists():
        hub = Repository(address)
        commit = hub.head()
        if address.commit is None:
            say(f"{address}: commit {commit}; for exactly this predictor, add @{commit}.")
        if not (place / commit / MANIFEST).exists():
            _save(hub, commit, place / commit)
    check_manifest(place / commit)
    return place / commit


def _save(hub: Repository, commit: str, folder: Path) -> None:
    listed = hub.files(commit)
    if MANIFEST not in listed or RECORD not in listed:
        where = hub.address.at(commit)
        msg = f"{where}: holds no predictor; expected a repository written by abag share."
        raise DamagedFile(msg)
    with TemporaryDirectory() as scratch:
        arrived = Path(scratch) / "arrived"
        names = [name for name in (*READ, MANIFEST) if name in listed]
        hub.download({name: listed[name] for name in names}, commit, arrived)
        # before any of it is in the cache
        check_manifest(arrived)
        # the manifest comes last: without it, the folder is downloaded again
        for name in names:
            make_folder((folder / name).parent)
            write_bytes(folder / name, read_inside(arrived, name))
