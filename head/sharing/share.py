"""Write a predictor in the layout of the hub, into a folder or into a repository on the hub."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from abag import AbagError
from abag.core.files import is_partial, json_bytes, make_folder, sweep_partials_of, write_bytes
from abag.core.hub import HubAddress, is_hub_address, open_repository, parse_address
from abag.core.messages import say
from abag.core.names import read_inside
from abag.embed.families.registry import hub_source, known_alias
from abag.embed.sequences.chains import KINDS
from abag.embed.store.store_files import PrivatePath, public_adapter_files, public_origin
from abag.head.models.registry import MODELS
from abag.head.prediction.bundle import RECORD, WEIGHTS, load_predictor, record_digest
from abag.head.prediction.predictor import Predictor
from abag.head.sharing.fetch import (
    ADAPTER_FILES,
    CARD,
    LICENCE,
    MANIFEST,
    NAMES,
    make_manifest,
    predictor_folder,
)
from abag.head.sharing.options import ShareOptions

_METRICS = {"spearman": "spearmanr", "pearson": "pearsonr", "rmse": "rmse", "mae": "mae"}
"""Metrics on the page of the hub, by our names."""


class FolderTaken(AbagError):
    """The folder to write holds something else."""


class ShareSummary(TypedDict):
    """The keys of ``abag share --json``."""

    to: str
    """The folder; on the hub, the address with its commit."""
    page: str | None
    """Address of the page on the hub."""
    files: dict[str, int]
    """Bytes by name."""
    sent: list[str]
    """Files that were not there; on the hub all of them, if one was new or differed."""


def share(run: Path | str, to: Path | str, **options: Any) -> ShareSummary:  # noqa: ANN401
    """Write the predictor of a run for others: into a folder, or into a repository on the hub.

    The files are the predictor, its card with the data that the hub shows, a note on licences and
    a manifest with digests. What they contain of the training data is reported before they are
    written. Paths of this machine are left out. Sharing the same predictor again changes nothing.

    Parameters
    ----------
    run : path
        Folder of a run, or a copy of its folder ``predictor``.
    to : path
        A new folder, or ``hf://user/name``, optionally with ``@branch``.
    **options
        The fields of `ShareOptions`.

    Raises
    ------
    HubError
        If the hub cannot be reached or refuses.
    FolderTaken
        If the folder holds something else.
    PrivatePath
        If a file contains a path of this machine.
    AbagError
        If the predictor is damaged, or an option is invalid.
    """
    chosen = ShareOptions.from_keywords(options, "share")
    folder = predictor_folder(run)
    predictor = load_predictor(folder)  # checks all of it
    held = _held_of_training(predictor)
    if not is_hub_address(to):
        files = public_files(folder, predictor, chosen.license, Path(to).resolve().name)
        return _write(files, Path(to), held)
    address = parse_address(to, "model")
    files = public_files(folder, predictor, chosen.license, str(address))
    return _send(files, address, held, private=chosen.private)


def describe_share(summary: ShareSummary) -> str:
    """Describe what was shared, and how it is read."""
    size = sum(summary["files"].values())
    lines = [f"{summary['to']}: {len(summary['files'])} files, {size:,} bytes"]
    lines += [f"page       {summary['page']}"] if summary["page"] else []
    return "\n".join([*lines, f"predict    abag predict TABLE --run {summary['to']} --out FILE"])


# --- what is shared ------------------------------------------------------------------------------


def _held_of_training(predictor: Predictor) -> str:
    """Say what a predictor holds of the data that it was trained on."""
    entries = [MODELS[part.name] for part in predictor.parts]
    held = ["sketches of the training sequences, with which guesses can be tested"]
    if any(one.has_posterior for one in entries):
        antibodies, antigens = (predictor.spec(kind).training_sequences for kind in KINDS)
        held.append(
            f"vectors of up to {antibodies:,} training antibodies and {antigens:,} antigens"
        )
        held.append("which of them are training pairs, with weights that follow from their labels")
    if predictor.seen.mutations is not None:
        held.append("which residues the training antibodies have at each position")
    if any(one.has_posterior and one.reads == "residues" for one in entries):
        held.append("sequences of training antibodies")
    if predictor.adapters:
        held.append("the keys of the pairs that its adapters were trained on")
    return f"It contains {'; '.join(held)}. Share it only where you may share these."


def public_files(
    run: Path, predictor: Predictor, licence: str | None, where: str
) -> dict[str, bytes]:
    """Return the files of a predictor by name, without paths of this machine.

    `where` is the name of the folder, or the address on the hub, from which the card loads it.

    Raises
    ------
    PredictorDamaged, PrivatePath, UnsafeFile
    """
    folder = run / "predictor" if (run / "predictor").is_dir() else run
    files = {WEIGHTS: read_inside(folder, WEIGHTS), RECORD: _public_record(folder)}
    adapters = {name: folder / name for name in ADAPTER_FILES if (folder / name).exists()}
    contents = {name: read_inside(folder, name) for name in adapters}
    files |= public_adapter_files(folder, contents)
    files[LICENCE] = _licence_note(predictor, licence)
    files[CARD] = _card(folder, predictor, _test_scores(run, where), licence, where)
    _refuse_paths(folder, files)
    return {**files, MANIFEST: make_manifest(files)}


def _public_record(folder: Path) -> bytes:
    """Return predictor.json, in which encoders have no path of this machine."""
    content = read_inside(folder, RECORD)
    record = json.loads(content)
    origins = [record[kind]["origin"] for kind in KINDS]
    public = [public_origin(origin) for origin in origins]
    if public == origins:
        return content
    for kind, origin in zip(KINDS, public, strict=True):
        record[kind]["origin"] = origin
    record["digest"] = record_digest(record, read_inside(folder, WEIGHTS))
    return json_bytes(record)


def _licence_note(predictor: Predictor, licence: str | None) -> bytes:
    own = f"of the licence {licence}" if licence else "that its owner states; ask if there are none"
    encoders = [_encoder_line(kind, predictor) for kind in KINDS]
    lines = [
        f"This predictor may be used under the terms {own}.",
        "The terms of the data that it was trained on apply too, and those of the encoders,",
        "whose weights are not part of it:",
        "",
        *encoders,
    ]
    return ("\n".join(lines) + "\n").encode()


def _encoder_line(kind: str, predictor: Predictor) -> str:
    spec = getattr(predictor, kind)
    alias = known_alias(spec.name, spec.origin)
    licence = alias.licence if alias is not None else "see the source of the weights"
    return f"{kind}: {spec.name} ({public_origin(spec.origin)}), {licence}"


def _card(
    folder: Path, predictor: Predictor, scores: dict[str, Any], licence: str | None, where: str
) -> bytes:
    """Return the model card with the metadata that the page of the hub shows."""
    try:
        text = read_inside(folder, CARD).decode(errors="replace")
    except FileNotFoundError:
        text = "# Antibody-antigen affinity predictor\n\nMade with abag.\n"
    text = _loaded_from(text, where)
    if text.startswith("---\n"):  # shared before
        return text.encode()
    base = [hub_source(spec.origin).name for spec in (predictor.antibody, predictor.antigen)
            if public_origin(spec.origin) == spec.origin]  # fmt: skip
    about: dict[str, object] = {"license": licence or "other"}
    if licence is None:
        about |= {"license_name": "see-license", "license_link": LICENCE}
    about |= {
        "library_name": "abag",
        "pipeline_tag": "tabular-regression",
        "tags": ["abag", "antibody", "antigen", "affinity", "protein"],
    }
    if named := [name for name in base if "/" in name]:
        about["base_model"] = named
    # JSON is YAML, and needs no quoting rules of its own
    lines = [f"{name}: {json.dumps(value)}" for name, value in (about | scores).items()]
    return "\n".join(["---", *lines, "---", "", text]).encode()


def _loaded_from(card: str, where: str) -> str:
    """Replace the folder or address in the examples of a card."""
    comment = "" if is_hub_address(where) else "  # this folder"
    python, shell = f"load_predictor({json.dumps(where)}){comment}", f"--run {shlex.quote(where)} "
    card = re.sub(r'load_predictor\("[^"\n]*"\)(  # this folder)?', lambda _: python, card)
    return re.sub(r"--run [^`\n]*?(?=--store store)", lambda _: shell, card)


def _test_scores(run: Path, where: str) -> dict[str, Any]:
    """Return the held-out scores of a run as the hub's ``model-index``; empty if there are none."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        results = [found for regime in summary["regimes"] if (found := _hub_result(regime))]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    name = where.partition("@")[0].rpartition("/")[2]
    return {"model-index": [{"name": name, "results": results}]} if results else {}


def _hub_result(regime: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scores of a regime as one result of a ``model-index``."""
    scores = regime["metrics"]["head"]
    found = {
        name: value
        for name in _METRICS
        if isinstance(value := scores.get(name), float) and math.isfinite(value)
    }
    if not found:
        return None
    return {
        "task": {"type": "tabular-regression"},
        "dataset": {"type": "pairs", "name": f"held-out pairs: {regime['words']}"},
        "metrics": [
            {"type": _METRICS[name], "name": name, "value": round(value, 4)}
            for name, value in found.items()
        ],
    }


def _refuse_paths(folder: Path, files: Mapping[str, bytes]) -> None:
    """Refuse text with the user's home or the run's folder in it; a card may have been edited."""
    for path in (Path.home(), folder.resolve().parent):
        for name, content in files.items():
            if len(path.parts) > 1 and name != WEIGHTS and f"{path}/".encode() in content:
                msg = (
                    f"{folder / name}: contains the path {path}; expected none of this machine in "
                    "what is shared. Remove it from the file."
                )
                raise PrivatePath(msg)


# --- where it goes -------------------------------------------------------------------------------


def _announce(where: object, files: Mapping[str, bytes], verb: str, held: str) -> None:
    listed = ", ".join(f"{name} ({len(content):,} bytes)" for name, content in files.items())
    say(f"{where}: {verb} {listed}. {held}")


def _write(files: Mapping[str, bytes], folder: Path, held: str) -> ShareSummary:
    """Write files into a folder that is new, or holds some of the same files."""
    found = [path for path in folder.rglob("*") if path.is_file() and not is_partial(path)]
    for path in [folder] if folder.is_file() else found:
        name = path.relative_to(folder).as_posix()
        if files.get(name) != path.read_bytes():
            msg = f"{path}: already exists and differs; expected a new folder. Give another --to."
            raise FolderTaken(msg)
    new = {name: c for name, c in files.items() if not (folder / name).is_file()}
    if new:
        _announce(folder, new, "writing", held)
    for name in files:  # a killed process leaves its host's name there
        sweep_partials_of(folder / name)
    for name, content in new.items():  # the manifest comes last
        make_folder((folder / name).parent)
        write_bytes(folder / name, content)
    return _summary(str(folder), None, files, new)


def _send(
    files: Mapping[str, bytes], address: HubAddress, held: str, *, private: bool
) -> ShareSummary:
    """Send what is new of the files, in one commit that also removes what no longer belongs."""
    with open_repository(address) as hub:
        hub.create(private=private)
        before = hub.head()
        listed = hub.files(before)
        replaced = ", and replacing what differs" * (RECORD in listed)
        _announce(address, files, f"sending what is new{replaced}, of", held)
        if stale := sorted(NAMES & listed.keys() - files.keys()):
            say(f"{address}: removing {', '.join(stale)}, which this predictor does not have")
        message = "Share a predictor with abag"
        commit = hub.commit(files, parent=before, message=message, remove=stale)
        return _summary(address.at(commit), hub.page, files, files if commit != before else {})


def _summary(
    to: str, page: str | None, files: Mapping[str, bytes], sent: Mapping[str, bytes]
) -> ShareSummary:
    sizes = {name: len(content) for name, content in files.items()}
    return ShareSummary(to=to, page=page, files=sizes, sent=[*sent])
