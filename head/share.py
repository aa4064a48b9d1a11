"""Predictors for others: written in the layout of the hub, and sent there.

`predictor.folder` reads them, and checks each file against the manifest.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, TypedDict

from abag.core.errors import OptionError, OutputError
from abag.core.files import (
    is_partial,
    json_bytes,
    make_folder,
    read_inside,
    refuse_read_only,
    write_bytes,
)
from abag.core.hub import (
    Repository,
    is_hub_address,
    parse_address,
)
from abag.core.messages import say
from abag.core.options import names_folder
from abag.embed.encoders.registry import hub_source, known_alias
from abag.embed.store.shard import public_adapter_files, public_origin
from abag.embed.tables.chains import KINDS
from abag.head.predictor.folder import (
    ADAPTER_FILES,
    CARD,
    LICENCE,
    MANIFEST,
    READ,
    FileContents,
    contents_of,
    make_manifest,
    predictor_folder,
)
from abag.head.predictor.options import ShareOptions
from abag.head.predictor.predictor import RECORD, WEIGHTS, Predictor
from abag.head.runs.report import plain_markdown, render_template

NAMES = frozenset((MANIFEST, CARD, LICENCE, *READ))
_CONTENTS = re.compile(r"^## What this folder holds\n.*?\n(?=\n*(?:^## |\Z))", re.M | re.S)
"""Section of the card that `contents.md.j2` writes, without the empty line after it."""


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
    from abag.head.predictor.folder import load_predictor  # imports torch

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
    keeps = chosen.with_sequences and _has_sequences(predictor)
    address = parse_address(to, "model") if is_hub_address(to) else None
    where = Path(to).resolve().name if address is None else str(address)
    files = public_files(folder, predictor, chosen.license, where, with_sequences=keeps)
    if address is None:
        return _write(files, Path(to))
    hub = Repository(address)
    hub.create(private=chosen.private)
    before = hub.head()
    listed = hub.files(before)
    replaced = ", and replacing what differs" * (RECORD in listed)
    _announce(address, files, files, f"sending what is new{replaced}, of")
    stale = sorted(NAMES & listed.keys() - files.keys())
    if stale:
        say(f"{address}: removing {', '.join(stale)}, which this predictor does not have")
    message = "Share a predictor with abag"
    commit = hub.commit(files, message=message, remove=stale)
    sizes = {name: len(content) for name, content in files.items()}
    sent = [*files] if commit != before else []
    return ShareSummary(to=address.at(commit), page=hub.page, files=sizes, sent=sent)


def describe_share(summary: ShareSummary) -> str:
    """Describe what was shared, and how it is read."""
    size = sum(summary["files"].values())
    lines = [f"{summary['to']}: {len(summary['files'])} files, {size:,} bytes"]
    if summary["page"]:
        lines.append(f"page       {summary['page']}")
    run = shlex.quote(summary["to"])
    lines.append(f"predict    abag predict TABLE --run {run} --store DIR --out FILE")
    return "\n".join(lines)


# --- what is shared ------------------------------------------------------------------------------


def _contents(files: Mapping[str, bytes]) -> list[FileContents]:
    """Tell what each file holds; the card, which says so, is among them before it is written."""
    others = {*files, CARD, MANIFEST} - {RECORD, WEIGHTS}
    return contents_of(files[RECORD], BytesIO(files[WEIGHTS]), sorted(others))


def public_files(
    run: Path,
    predictor: Predictor,
    licence: str | None,
    where: str,
    *,
    with_sequences: bool,
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
    files[CARD] = _card(folder, predictor, licence, where, _contents(files))
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

    if not _has_sequences(predictor):
        return weights
    arrays = {name: x for name, x in load(weights).items() if not name.startswith("seen.")}
    for known in predictor.seen.values():
        arrays |= known.without_sequences().arrays()
    return save(arrays)


def _has_sequences(predictor: Predictor) -> bool:
    """Tell whether relatives of training sequences can be found, not only repeats."""
    return predictor.seen["antibody"].chains is not None


def _public_record(folder: Path, weights: bytes, *, with_sequences: bool) -> bytes:
    """Return predictor.json without places on this machine, with the digest of these weights."""
    from abag.head.predictor.folder import record_digest  # imports torch

    content = read_inside(folder, RECORD)
    record = json.loads(content)
    for kind in KINDS:
        for view in record[kind]["views"]:
            view["origin"] = public_origin(view["origin"])
    files = record["layout"]["sequences"]
    record["layout"]["sequences"] = [Path(path).name for path in files]
    if not with_sequences:
        record["layout"] |= {"antigen": "", "parent": ""}
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


def _card(
    folder: Path,
    predictor: Predictor,
    licence: str | None,
    where: str,
    contents: Sequence[FileContents],
) -> bytes:
    """Return the card of a run for others, with what is in their folder, which may be less."""
    try:
        text = read_inside(folder, CARD).decode(errors="replace")
    except FileNotFoundError:
        title = "Antibody-antigen affinity predictor"
        if not predictor.quantity.affinity:
            title = f"Predictor of {plain_markdown(predictor.quantity)}"
        text = f"# {title}\n\nMade with abag.\n"
    comment = "" if is_hub_address(where) else "  # this folder"
    python = f"load_predictor({json.dumps(where)}){comment}"
    shell = f"--run {shlex.quote(where)} "
    text = re.sub(r'load_predictor\("[^"\n]*"\)(  # this folder)?', lambda _: python, text)
    text = re.sub(r"--run [^`\n]*?(?=--store store)", lambda _: shell, text)
    section = render_template("contents.md.j2", files=contents)
    if not _CONTENTS.search(text):  # the card was written by hand
        text = f"{text.rstrip()}\n\n{section}"
    text = _CONTENTS.sub(lambda _: section, text)
    if text.startswith("---\n"):  # shared before
        return text.encode()
    base = []
    for encoder in (*predictor.antibody.encoders, *predictor.antigen.encoders):
        if not names_folder(encoder.origin):
            base.append(hub_source(encoder.origin).name)
    about: dict[str, object] = {"license": licence or "other"}
    if licence is None:
        about |= {"license_name": "see-license", "license_link": LICENCE}
    tags = ["abag", *predictor.kinds, "affinity", "protein"]
    if not predictor.quantity.affinity:
        tags.remove("affinity")
    about |= {"library_name": "abag", "pipeline_tag": "tabular-regression", "tags": tags}
    if named := [name for name in base if "/" in name]:
        about["base_model"] = named
    # JSON is YAML, and needs no quoting rules of its own
    lines = [f"{name}: {json.dumps(value)}" for name, value in about.items()]
    return "\n".join(["---", *lines, "---", "", text]).encode()


# --- where it goes -------------------------------------------------------------------------------


def _announce(where: object, files: Mapping[str, bytes], shown: Iterable[str], verb: str) -> None:
    """Say which files are shared, and what they contain of the training data."""
    sizes = [f"{name} ({len(files[name]):,} bytes)" for name in shown]
    read = [file for file in _contents(files) if file.name not in (CARD, LICENCE, MANIFEST)]
    held = [text for file in read for text in file.sequences]
    held += [text for file in read for text in file.other]
    say(
        f"{where}: {verb} {', '.join(sizes)}. It contains {'; '.join(dict.fromkeys(held))}. Share "
        "it only where you may share these."
    )


def _write(files: Mapping[str, bytes], folder: Path) -> ShareSummary:
    for path in [folder] if folder.is_file() else folder.rglob("*"):
        if not path.is_file() or is_partial(path):
            continue
        name = path.relative_to(folder).as_posix()
        if files.get(name) != path.read_bytes():
            msg = f"{path}: already exists and differs; expected a new folder. Give another --to."
            raise OutputError(msg)
    new = {name: c for name, c in files.items() if not (folder / name).is_file()}
    if new:
        refuse_read_only(folder)
        _announce(folder, files, new, "writing")
    for name, content in new.items():  # the manifest comes last
        make_folder((folder / name).parent)
        write_bytes(folder / name, content)
    sizes = {name: len(content) for name, content in files.items()}
    return ShareSummary(to=str(folder), page=None, files=sizes, sent=[*new])
