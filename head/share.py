"""Predictors for others: written in the layout of the hub, and sent there.

`prediction.shared_folder` reads them, and checks each file against the manifest.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from abag.core.errors import OptionError, OutputError
from abag.core.files import (
    is_partial,
    json_bytes,
    make_folder,
    read_inside,
    write_bytes,
)
from abag.core.hub import (
    HubAddress,
    Repository,
    is_hub_address,
    parse_address,
)
from abag.core.messages import say
from abag.embed.families.registry import hub_source, known_alias
from abag.embed.sequences.chains import KINDS, PLURAL
from abag.embed.store.store_files import public_adapter_files, public_origin
from abag.head.prediction.predictor import Predictor
from abag.head.prediction.shared_folder import (
    ADAPTER_FILES,
    MANIFEST,
    READ,
    make_manifest,
    predictor_folder,
)
from abag.head.prediction.specs import RECORD, WEIGHTS
from abag.head.share_options import ShareOptions

CARD = "README.md"
LICENCE = "LICENSE"
NAMES = frozenset((MANIFEST, CARD, LICENCE, *READ))


class ShareSummary(TypedDict):
    """The keys of ``abag share --json``."""

    to: str
    """The folder; on the hub, the address with its commit."""
    page: str | None
    """Address of the page on the hub."""
    files: dict[str, int]
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
    OutputError
        If the folder holds something else.
    OutputError
        If a file contains a path of this machine.
    AbagError
        If the predictor is damaged, or an option is invalid.
    """
    from abag.head.prediction.bundle import load_predictor  # imports torch

    chosen = ShareOptions.from_keywords(options, "share")
    # which licences exist is for the hub to know
    if chosen.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,40}", chosen.license):
        msg = (
            f"--license: {chosen.license!r} is not the id of a licence; expected one of the hub, "
            "such as mit or cc-by-4.0."
        )
        raise OptionError(msg)
    folder = predictor_folder(run)
    predictor = load_predictor(folder)  # checks all of it
    keeps = chosen.with_sequences and predictor.seen.has_sequences
    held = _held_of_training(predictor, keeps)
    if not is_hub_address(to):
        where = Path(to).resolve().name
        files = public_files(folder, predictor, chosen.license, where, with_sequences=keeps)
        return _write(files, Path(to), held)
    address = parse_address(to, "model")
    files = public_files(folder, predictor, chosen.license, str(address), with_sequences=keeps)
    return _send(files, address, held, private=chosen.private)


def describe_share(summary: ShareSummary) -> str:
    """Describe what was shared, and how it is read."""
    size = sum(summary["files"].values())
    lines = [f"{summary['to']}: {len(summary['files'])} files, {size:,} bytes"]
    if summary["page"]:
        lines.append(f"page       {summary['page']}")
    lines.append(f"predict    abag predict TABLE --run {summary['to']} --store DIR --out FILE")
    return "\n".join(lines)


# --- what is shared ------------------------------------------------------------------------------


def _held_of_training(predictor: Predictor, with_sequences: bool) -> str:
    from abag.head.models.registry import MODELS  # imports torch
    from abag.head.models.residues import ResidueSettings

    entries = [MODELS[part.name] for part in predictor.parts]
    held = ["keys of the training sequences, with which guesses can be tested"]
    if with_sequences:
        held = ["the training sequences"]
    if any(entry.has_posterior for entry in entries):
        antibodies, antigens = (predictor.spec(kind).training_sequences for kind in KINDS)
        held.append(
            f"vectors of up to {antibodies:,} training antibodies and {antigens:,} antigens"
        )
        held.append("which of them are training pairs, with weights that follow from their labels")
    if predictor.noise:
        held.append("which training sequences have smaller or larger errors than others")
    if predictor.category_noise:
        held.append(f"how large errors are by {', '.join(predictor.category_noise)}")
    kinds = set()
    for part in predictor.parts:
        for model in part.models:
            if isinstance(model.settings, ResidueSettings):
                kinds |= {side.kind for side in model.settings.sides}
    if kinds and not with_sequences:
        both_kinds = " and ".join(PLURAL[kind] for kind in KINDS if kind in kinds)
        held.append(f"sequences of training {both_kinds}")
    if predictor.features is not None:
        held.append(f"ranges and values of categories of the columns {predictor.features.words}")
    if predictor.adapters:
        held.append("the keys of the pairs that its adapters were trained on")
    return f"It contains {'; '.join(held)}. Share it only where you may share these."


def public_files(
    run: Path,
    predictor: Predictor,
    licence: str | None,
    where: str,
    *,
    with_sequences: bool = False,
) -> dict[str, bytes]:
    """Return the files of a predictor, without paths of this machine; the card loads `where`."""
    folder = run / "predictor" if (run / "predictor").is_dir() else run
    weights = read_inside(folder, WEIGHTS)
    if not with_sequences:
        weights = _without_sequences(weights, predictor)
    files = {
        WEIGHTS: weights,
        RECORD: _public_record(folder, weights, with_sequences=with_sequences),
    }
    adapters = [name for name in ADAPTER_FILES if (folder / name).exists()]
    files |= public_adapter_files(folder, {name: read_inside(folder, name) for name in adapters})
    files[LICENCE] = _licence_note(predictor, licence)
    files[CARD] = _card(folder, predictor, licence, where)
    for path in (Path.home(), folder.resolve().parent):  # a card may have been edited
        for name, content in files.items():
            if len(path.parts) > 1 and name != WEIGHTS and f"{path}/".encode() in content:
                msg = (
                    f"{folder / name}: contains the path {path}; expected none of this machine in "
                    "what is shared. Remove it from the file."
                )
                raise OutputError(msg)
    return {**files, MANIFEST: make_manifest(files)}


def _without_sequences(weights: bytes, predictor: Predictor) -> bytes:
    """Leave out the arrays from which training sequences are recognised, apart from their keys."""
    from safetensors.numpy import load, save

    if not predictor.seen.has_sequences:
        return weights
    arrays = {name: x for name, x in load(weights).items() if not name.startswith("seen.")}
    return save(arrays | predictor.seen.without_sequences().arrays())


def _public_record(folder: Path, weights: bytes, *, with_sequences: bool) -> bytes:
    """Return predictor.json without places on this machine, with the digest of these weights."""
    from abag.head.prediction.bundle import record_digest  # imports torch

    content = read_inside(folder, RECORD)
    record = json.loads(content)
    for kind in KINDS:
        for view in record[kind]["views"]:
            view["origin"] = public_origin(view["origin"])
    for file in record["reading"]["sequences"]:
        file["path"] = Path(file["path"]).name
    if not with_sequences:
        record["reading"] |= {"antigen": "", "parent": ""}
    digest = record_digest(record, weights)
    if digest == record["digest"]:
        return content
    record["digest"] = digest
    return json_bytes(record)


def _licence_note(predictor: Predictor, licence: str | None) -> bytes:
    own_terms = (
        f"of the licence {licence}" if licence else "that its owner states; ask if there are none"
    )
    lines = [
        f"This predictor may be used under the terms {own_terms}.",
        "The terms of the data that it was trained on apply too, and those of the encoders,",
        "whose weights are not part of it:",
        "",
    ]
    for kind in KINDS:
        for view in predictor.spec(kind).encoders:
            alias = known_alias(view.name, view.origin)
            terms = alias.licence if alias is not None else "see the source of the weights"
            lines.append(f"{kind}: {view.name} ({public_origin(view.origin)}), {terms}")
    return ("\n".join(lines) + "\n").encode()


def _card(folder: Path, predictor: Predictor, licence: str | None, where: str) -> bytes:
    try:
        text = read_inside(folder, CARD).decode(errors="replace")
    except FileNotFoundError:
        title = "Antibody-antigen affinity predictor"
        if not predictor.quantity.affinity:
            title = f"Predictor of {predictor.quantity}"
        text = f"# {title}\n\nMade with abag.\n"
    comment = "" if is_hub_address(where) else "  # this folder"
    python = f"load_predictor({json.dumps(where)}){comment}"
    shell = f"--run {shlex.quote(where)} "
    text = re.sub(r'load_predictor\("[^"\n]*"\)(  # this folder)?', lambda _: python, text)
    text = re.sub(r"--run [^`\n]*?(?=--store store)", lambda _: shell, text)
    if text.startswith("---\n"):  # shared before
        return text.encode()
    base = []
    for encoder in (*predictor.antibody.encoders, *predictor.antigen.encoders):
        if public_origin(encoder.origin) == encoder.origin:  # not a folder of this machine
            base.append(hub_source(encoder.origin).name)
    about: dict[str, object] = {"license": licence or "other"}
    if licence is None:
        about |= {"license_name": "see-license", "license_link": LICENCE}
    tags = ["abag", "antibody", "antigen", "affinity", "protein"]
    if predictor.no_antigen:
        tags.remove("antigen")
    if not predictor.quantity.affinity:
        tags.remove("affinity")
    about |= {"library_name": "abag", "pipeline_tag": "tabular-regression", "tags": tags}
    if named := [name for name in base if "/" in name]:
        about["base_model"] = named
    # JSON is YAML, and needs no quoting rules of its own
    lines = [f"{name}: {json.dumps(value)}" for name, value in about.items()]
    return "\n".join(["---", *lines, "---", "", text]).encode()


# --- where it goes -------------------------------------------------------------------------------


def _announce(where: object, files: Mapping[str, bytes], verb: str, held: str) -> None:
    sizes = [f"{name} ({len(content):,} bytes)" for name, content in files.items()]
    say(f"{where}: {verb} {', '.join(sizes)}. {held}")


def _write(files: Mapping[str, bytes], folder: Path, held: str) -> ShareSummary:
    present = [path for path in folder.rglob("*") if path.is_file() and not is_partial(path)]
    for path in [folder] if folder.is_file() else present:
        name = path.relative_to(folder).as_posix()
        if files.get(name) != path.read_bytes():
            msg = f"{path}: already exists and differs; expected a new folder. Give another --to."
            raise OutputError(msg)
    new = {name: c for name, c in files.items() if not (folder / name).is_file()}
    if new:
        _announce(folder, new, "writing", held)
    for name, content in new.items():  # the manifest comes last
        make_folder((folder / name).parent)
        write_bytes(folder / name, content)
    sizes = {name: len(content) for name, content in files.items()}
    return ShareSummary(to=str(folder), page=None, files=sizes, sent=[*new])


def _send(
    files: Mapping[str, bytes], address: HubAddress, held: str, *, private: bool
) -> ShareSummary:
    hub = Repository(address)
    hub.create(private=private)
    before = hub.head()
    listed = hub.files(before)
    replaced = ", and replacing what differs" * (RECORD in listed)
    _announce(address, files, f"sending what is new{replaced}, of", held)
    stale = sorted(NAMES & listed.keys() - files.keys())
    if stale:
        say(f"{address}: removing {', '.join(stale)}, which this predictor does not have")
    message = "Share a predictor with abag"
    commit = hub.commit(files, message=message, remove=stale)
    sizes = {name: len(content) for name, content in files.items()}
    sent = [*files] if commit != before else []
    return ShareSummary(to=address.at(commit), page=hub.page, files=sizes, sent=sent)
