"""What `abag embed` and `abag fit` would do with a table, and how long it would take.

Nothing is encoded or written. Speeds were measured on one H100 and one H200 (benchmarks/results).
All other times are scaled by the speed of matrix products and marked as estimates.

The time of a fit with default options is interpolated between measured ones
(``benchmarks/bench_plan.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from abag.core.cores import count_cores
from abag.core.errors import AbagError
from abag.core.messages import align, counted, reporting
from abag.embed.families.registry import ALIASES, FAMILIES, Alias
from abag.embed.packing import Layout
from abag.embed.sequences.chains import KINDS, Kind
from abag.embed.sequences.columns import MissingColumn, quote_names
from abag.embed.sequences.pairs import SequenceTable, UniqueSequences, read_pairs
from abag.embed.sequences.tables import TableLike
from abag.head.data.feature_checks import with_feature_columns
from abag.head.data.label_column import UnclearLabel, has_numbers
from abag.head.data.label_options import PairColumnOptions
from abag.head.data.label_reading import label_sense
from abag.head.data.labels import (
    LabelledPairs,
    describe_columns,
    label_pairs,
    training_labels,
)
from abag.head.data.likelihoods import likelihoods_asked_for
from abag.head.data.quantity import PKD, Quantity
from abag.head.evaluation.verdicts import label_problems, summarize_labels
from abag.head.models.registry import describe_left_out
from abag.head.runs.run_options import PlanOptions

SESSION_HOURS = (4, 12, 24)


@dataclass(frozen=True, slots=True)
class EncoderSpeed:
    """Tokens/s on one H200, packed and in fp16 without Triton as on a GPU before Ampere."""

    weights: float
    """Weights in matrix products, per token."""
    width: int
    packed: float
    grouped: float
    measured: bool


_PACKED = {
    "igt5": 250e3, "igbert": 815e3, "antiberta2": 1468e3, "ablang2": 3737e3, "ankh-large": 233e3,
    "esm2-35m": 4266e3, "esm2-650m": 426e3, "esmc-300m": 715e3, "esmc-600m": 431e3,
    "amplify-350m": 664e3, "glm2-650m": 385e3,
}  # fmt: skip
"""Measured tokens/s (benchmarks/results/encoders_h200_2026-11-23.md)."""
_GROUPED = {True: ("igt5", 182e3), False: ("esm2-650m", 197e3)}
"""The same in fp16 without Triton, by whether attention has a bias."""


def _speed(name: str, alias: Alias) -> EncoderSpeed:
    def distance(measured: str) -> tuple[bool, float]:
        return ALIASES[measured].family != alias.family, abs(math.log(smaller(measured)))

    def smaller(measured: str) -> float:
        return ALIASES[measured].parameters / alias.parameters

    like = min(_PACKED, key=distance)
    alike, grouped = _GROUPED[FAMILIES[alias.family].biased_attention]
    speeds = _PACKED[like] * smaller(like), grouped * smaller(alike)
    return EncoderSpeed(alias.parameters, alias.width, *speeds, name in _PACKED)


SPEEDS: Mapping[str, EncoderSpeed] = {
    name: _speed(name, alias) for name, alias in ALIASES.items() if alias.parameters
}
"""By alias, where known."""


class Gpu(NamedTuple):
    """Published peak of half-precision products; whether bfloat16 and packed attention work."""

    tflops: float
    packed: bool


GPUS: Mapping[str, Gpu] = {
    "T4": Gpu(65, False), "L4": Gpu(121, True), "V100": Gpu(125, False),
    "A100": Gpu(312, True), "H100": Gpu(989, True), "H200": Gpu(989, True),
}  # fmt: skip
MEASURED_ON = ("H100", "H200")
SHOWN_GPUS = ("T4", "H100")
"""The free GPU of Colab and the fastest that is easy to rent; --all-gpus lists all."""
PEAK_REACHED = 0.81
"""Share of the published peak that a matrix product reached on the H200."""
CORE_FLOPS = 50e9
"""Of fp32 products on one core of a server; a measured rate would change from call to call."""
FIT_S: Mapping[bool, tuple[tuple[int, float], ...]] = {
    False: (
        (100, 8.7),
        (1_160, 28.3),
        (2_000, 27.9),
        (4_900, 56.6),
        (11_000, 113.9),
        (20_000, 166.8),
    ),
    True: ((100, 8.7), (1_160, 28.3), (160_000, 56.7)),
}
"""Pairs, and measured seconds of a first fit: on 2 CPU cores and, the largest, on an H100, because
models of small tables are fitted on the CPU. See benchmarks/results/default_fit_h200-16core."""


WITH_FEATURES = 2.1
"""CPU time of a fit with three features over that of the same fit without: 1.7, 2.3 and 2.4, see
benchmarks/results/plan_features_2core_2026-11-28.md. The mean of the logarithms."""

ON_THE_CPU = "fit: clusters and kernels use the CPU, networks a GPU if there is one"
"""Which part of a fit a GPU does not shorten."""


class Plan(TypedDict):
    """What `plan` returns, and ``abag plan --json`` prints."""

    table: str
    rows: int
    antibodies: dict[str, Any]
    """The unique sequences, and what encoding them takes: ``encoder``, ``unique``, ``tokens``,
    ``longest`` and ``mean_length`` (residues of all chains), ``window`` (most residues of a chain
    that are encoded at once; None: any), ``long_chains``, their ``windows``, and ``bytes`` in the
    store (None for an encoder of unknown width)."""
    antigens: dict[str, Any]
    found: dict[str, int]
    notes: list[str]
    """What was done to the sequences."""
    labels: dict[str, Any] | None
    """None without a label column."""
    columns: str
    """Which column plays which role."""
    beside: list[str]
    """What features, categories, errors and weights add, one line each; empty without them."""
    sense: str
    """Whether a higher label means stronger binding, and what supports it; may be empty."""
    problems: list[str]
    refused: str
    """Why ``fit`` would refuse this table, which is also a problem; empty if it would not."""
    head: str
    """What the default head leaves out for a table of this size; empty if nothing."""
    machines: dict[str, dict[str, Any]]
    """Times in seconds: ``embed_s`` (None if the speed of an encoder is not known; the others are
    then absent) and ``fit_s``; whether the encoders were ``measured`` on this kind of device, the
    ``basis``, ``memory_gib``, ``sessions`` and ``price``."""


def plan(
    table: TableLike,
    **options: Any,  # noqa: ANN401 - the fields of PlanOptions
) -> Plan:
    """Describe a table, and estimate what encoding and training on it would cost.

    Encoders that are not an alias get no times. A table whose labels, features or errors ``fit``
    would refuse is described, too, with the reason under ``refused``.

    Raises
    ------
    AbagError
        The table cannot be read, or has a bad row.
    """
    chosen = PlanOptions.from_keywords(options, "plan")
    read = read_pairs(table, replace(chosen, bad_rows="skip"))
    pairs, refused, beside = _read_columns(read, chosen)
    labels = None if pairs is None else summarize_labels(pairs)
    sense = ""
    problems = list[str]()
    what = PKD
    with suppress(AbagError):  # no label column: maybe it is for predict
        read, reading = label_sense(read, chosen)
        sense = reading.line
        problems = [*reading.problems]
        what = reading.quantity
    problems += [refused] if refused else []
    if pairs is not None and labels is not None:
        labels["quantity"] = str(pairs.quantity)
        labels |= {} if pairs.quantity.affinity else {"better": pairs.quantity.better}
        problems += label_problems(pairs)
        read = pairs.table
    if chosen.skipped is not None:
        read.skipped.write(Path(chosen.skipped))
    antibodies = _plan_sequences(read.antibodies, chosen.antibody_encoder)
    antigens = (
        _no_antigens()
        if chosen.no_antigen
        else _plan_sequences(read.antigens, chosen.antigen_encoder)
    )
    views = {kind: _encoders_of_views(chosen, kind) for kind in KINDS}
    to_encode = [
        (kind, encoder, _plan_sequences(read.sequences[kind], encoder)["tokens"])
        for kind, names in views.items()
        if kind == "antibody" or not chosen.no_antigen
        for encoder in dict.fromkeys(names)
    ]
    rows = len(read.frame) if labels is None else labels["pairs"]  # replicates are one pair
    work = _Work(to_encode, rows, chosen.price_per_hour, features=chosen.has_features)
    shown = GPUS if chosen.all_gpus else SHOWN_GPUS
    machines = {n: _on_gpu(GPUS[n], work, measured=n in MEASURED_ON) for n in shown}
    name, machine = _on_this_machine(work)
    machines[name] = machine
    return {
        "table": read.source, "rows": len(read.frame), "antibodies": antibodies,
        "antigens": antigens, "found": read.counts, "notes": read.notes, "labels": labels,
        "columns": describe_columns(read, what, chosen), "beside": beside, "sense": sense,
        "problems": problems, "refused": refused,
        "head": describe_left_out(rows),
        "machines": machines,
    }  # fmt: skip


def _plan_sequences(sequences: UniqueSequences, encoder: str) -> dict[str, Any]:
    speed = SPEEDS.get(encoder)
    family = ALIASES[encoder].family if encoder in ALIASES else "esm"  # the rest count as ESM-2
    layout = Layout(sequences.kind, FAMILIES[family].vocabulary)
    limit = math.inf if layout.limit is None else layout.limit
    tokens = long_chains = windows = 0
    for chains in sequences.chains:
        spans = layout.span_lengths(chains)
        tokens += sum(spans)
        long = sum(len(chain) > limit for chain in chains)
        if long:  # each of the other chains is one span
            long_chains += long
            windows += len(spans) - (sum(map(bool, chains)) - long)
    lengths = np.array([sum(map(len, chains)) for chains in sequences.chains])
    stored = None if speed is None else len(layout.poolings) * speed.width * 2 + 22
    return {
        "encoder": encoder, "unique": len(lengths), "tokens": tokens,
        "longest": int(lengths.max()), "mean_length": float(lengths.mean()),
        "window": layout.limit, "long_chains": long_chains,
        "windows": windows, "bytes": None if stored is None else len(lengths) * stored,
    }  # fmt: skip


def _no_antigens() -> dict[str, Any]:
    """Return the plan of antigens that a table does not have."""
    return {
        "encoder": None, "unique": 0, "tokens": 0, "longest": 0, "mean_length": 0.0,
        "window": None, "long_chains": 0, "windows": 0, "bytes": 0,
    }  # fmt: skip


class _ReadColumns(NamedTuple):
    """The columns of labels, features and errors of a table."""

    pairs: LabelledPairs | None
    refused: str
    """Why `fit` would refuse the table; empty if it would not, or if there are no labels."""
    beside: list[str]
    """What was said of features, errors and weights."""


def _read_columns(table: SequenceTable, options: PlanOptions) -> _ReadColumns:
    """Read labels and the columns beside them as `fit` would.

    If it would refuse the latter, the labels are read without them.
    """
    beside = list[str]()
    if not options.named_columns:
        return _ReadColumns(*_read_labels(table, options, PairColumnOptions()), beside)
    named, of_store = _without_likelihoods(table, options)
    with reporting(beside.append):
        pairs, refused = _read_labels(table, options, named)
    if pairs is None:
        pairs, of_labels = _read_labels(table, options, PairColumnOptions())
        return _ReadColumns(pairs, of_labels or refused, [])
    if of_store:
        beside.append(
            f"features {quote_names(of_store)}: likelihoods of a store that was begun with abag "
            "embed --loglik; not looked for here"
        )
    return _ReadColumns(pairs, refused, beside)


def _without_likelihoods(
    table: SequenceTable, options: PlanOptions
) -> tuple[PairColumnOptions, list[str]]:
    """Return the columns that the table has to have, and the features that a store has."""
    of_store = likelihoods_asked_for(table, options)
    features = tuple(name for name in options.features or () if name not in of_store)
    named = PairColumnOptions(
        features=features or None,
        categories=options.categories,
        error=options.error,
        weight=options.weight,
    )
    return named, of_store


def _read_labels(
    table: SequenceTable, options: PlanOptions, named: PairColumnOptions
) -> tuple[LabelledPairs | None, str]:
    """Label the pairs as `fit` would; None, and why, if it would refuse them."""
    strict = options.bad_rows == "error" and bool(table.skipped.bad)
    try:
        pairs = label_pairs(table, options, refuse_sequences=strict, named=named)
        training_labels(pairs, np.arange(len(pairs)))
        pairs = with_feature_columns(pairs, named, {})
    except AbagError as error:
        is_missing = isinstance(error, MissingColumn) and not isinstance(error, UnclearLabel)
        # a table to predict has no labels, but columns beside labels are of a table to fit
        no_label = is_missing and not has_numbers(table) and not named.named_columns
        if strict:
            refusal = table.skipped.refusal(table.source, kept=len(table.frame))
            raise (refusal if isinstance(error, MissingColumn) else error) from None
        return None, "" if no_label else str(error)
    return pairs, ""


def _encoders_of_views(options: PlanOptions, kind: Kind) -> list[str]:
    usual = options.antibody_encoder if kind == "antibody" else options.antigen_encoder
    views = options.named_views(kind)
    return [usual] if views is None else [view["encoder"] or usual for view in views]


class _Work(NamedTuple):
    encodings: list[tuple[Kind, str, int]]
    pairs: int
    price_per_hour: float | None
    features: bool

    def speeds(self) -> list[EncoderSpeed] | None:
        names = [name for _, name, _ in self.encodings]
        return [SPEEDS[name] for name in names] if all(name in SPEEDS for name in names) else None

    @property
    def tokens(self) -> list[int]:
        return [tokens for _, _, tokens in self.encodings]

    def estimate(
        self, embed_s: float, memory_gib: float | None, basis: str, *, on_gpu: bool, measured: bool
    ) -> dict[str, Any]:
        fit_s = fit_time(self.pairs, on_gpu=on_gpu, features=self.features)
        hours = (embed_s + fit_s) / 3600
        return {
            "embed_s": embed_s, "fit_s": fit_s, "memory_gib": memory_gib,
            "measured": measured, "basis": basis,
            "sessions": {f"{h} h": math.ceil(hours / h) for h in SESSION_HOURS},
            "price": self.price_per_hour and hours * self.price_per_hour,
        }  # fmt: skip


def _on_gpu(gpu: Gpu, work: _Work, *, measured: bool) -> dict[str, Any]:
    speeds = work.speeds()
    if speeds is None:
        return {"embed_s": None, "measured": False}
    relative = gpu.tflops / GPUS["H200"].tflops
    rates = [(speed.packed if gpu.packed else speed.grouped) * relative for speed in speeds]
    # half-precision weights of the larger encoder, and activations of 16k tokens
    memory_gib = max(speed.weights for speed in speeds) * 2 / 2**30 + 6
    embed_s = sum(n / rate for n, rate in zip(work.tokens, rates, strict=True))
    path = "" if gpu.packed else " in fp16 without Triton"
    basis = f"estimate: {relative:.0%} of the speed of an H200{path}"
    if not all(speed.measured for speed in speeds):
        measured = False
        basis = "estimate from the number of weights"
    elif measured:
        basis = "from measured tokens/s"
    return work.estimate(embed_s, memory_gib, basis, on_gpu=True, measured=measured)


def _on_this_machine(work: _Work) -> tuple[str, dict[str, Any]]:
    from abag.core.device import device_name, measure_matmul_flops, plan_device

    device = plan_device()
    speeds = work.speeds()
    on_gpu = device.device.type == "cuda"
    name = f"this machine ({device_name(device.device) if on_gpu else 'CPU'})"
    if speeds is None:
        return name, {"embed_s": None, "measured": False}
    if on_gpu:
        tflops = measure_matmul_flops(device) / PEAK_REACHED / 1e12
        return name, _on_gpu(Gpu(tflops, device.precision == "bf16"), work, measured=False)
    products = sum(2 * speed.weights * n for speed, n in zip(speeds, work.tokens, strict=True))
    memory_gib = max(speed.weights for speed in speeds) * 4 / 2**30 + 2
    embed_s = products / (0.5 * CORE_FLOPS * count_cores())
    basis = "estimate from the number of cores"
    return name, work.estimate(embed_s, memory_gib, basis, on_gpu=False, measured=False)


def describe_plan(found: Plan, *, verbose: bool = False) -> list[str]:
    """Describe a plan; with `verbose` also where each estimate comes from."""
    sequences = {"antibodies": found["antibodies"], "antigens": found["antigens"]}
    alone = not found["antigens"]["unique"]
    if alone:
        sequences.pop("antigens")
    lines = [
        f"{found['table']}: {counted(found['rows'], 'row')}",
        found["columns"],
        *found["notes"],
        *(["antibodies alone (--no-antigen)"] if alone else []),
    ]
    lines += _sequence_table(sequences)
    for plural, one in sequences.items():
        if one["long_chains"]:
            chains = f"{plural}: {one['long_chains']:,} chains over {one['window']} residues"
            lines.append(f"{chains} are encoded in {one['windows']:,} windows")
    if (labels := found["labels"]) is not None:
        lines.append(
            f"{counted(labels['pairs'], 'pair')} with {labels['quantity']} "
            f"{_range_of(labels)}; "
            f"{counted(labels['duplicate_rows'], 'replicate row')}, "
            f"{counted(labels['censored'], 'censored pair')}"
        )
    lines += [*found["beside"]]
    lines += [line for line in (found["sense"], found["head"]) if line]
    for line in found["problems"]:
        refused = line == found["refused"]
        lines.append(f"abag fit refuses this table: {line}" if refused else f"problem: {line}")
    return lines + _describe_machines(found["machines"], verbose=verbose)


def _range_of(labels: Mapping[str, Any]) -> str:
    """Write the lowest and the highest label."""
    show = Quantity(name=labels["quantity"], affinity="better" not in labels).show
    return " to ".join(map(show, labels["range"]))


def _sequence_table(sequences: Mapping[str, dict[str, Any]]) -> list[str]:
    rows = [["", "unique", "mean length", "longest", "tokens", "encoder", "in the store"]]
    for plural, one in sequences.items():
        size = "-" if one["bytes"] is None else f"{one['bytes'] / 2**20:,.1f} MiB"
        numbers = [f"{one['mean_length']:.0f}", f"{one['longest']:,}", f"{one['tokens']:,}"]
        rows.append([plural, f"{one['unique']:,}", *numbers, one["encoder"], size])
    return align(rows, numbers=True)


def _describe_machines(machines: Mapping[str, dict[str, Any]], *, verbose: bool) -> list[str]:
    known = {name: one for name, one in machines.items() if one["embed_s"] is not None}
    if not known:
        return ["times: no speed known for these encoders; try abag embed --limit 1000"]
    sessions = any(n > 1 for one in known.values() for n in one["sessions"].values())
    prices = any(one["price"] is not None for one in known.values())
    hours = " / ".join(next(iter(known.values()))["sessions"])
    titles = ["machine", "embed", "fit", "memory"]
    rows = [titles + ["sessions"] * sessions + ["price"] * prices]
    for name, one in known.items():
        row = [name, format_duration(one["embed_s"]), format_duration(one["fit_s"])]
        row.append("-" if one["memory_gib"] is None else f"{one['memory_gib']:.0f} GiB")
        row += ["/".join(map(str, one["sessions"].values()))] * sessions
        row += ["-" if one["price"] is None else f"{one['price']:.2f}"] * prices
        rows.append(row)
    measured = " and ".join(name for name, one in known.items() if one["measured"])
    others = f"{measured} from measured tokens/s; others are estimates"
    notes = [others if measured else "all are estimates"]
    notes += [f"Colab sessions needed ({hours} each)"] * sessions
    lines = [*align(rows, numbers=True), ON_THE_CPU, f"times: {'; '.join(notes)}"]
    return lines + [f"{name}: {one['basis']}" for name, one in known.items() if verbose]


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 1440 else f"{minutes / 60:,.0f} h"


def fit_time(pairs: int, *, on_gpu: bool, features: bool = False) -> float:
    """Estimate the wall time of a first fit with default options, in seconds.

    `features` says whether pairs have columns of numbers or categories beside their vectors.
    """
    sizes, seconds = np.array(FIT_S[on_gpu]).T
    beyond = max(1.0, pairs / sizes[-1])  # in proportion to the largest that was measured
    beyond *= WITH_FEATURES if features else 1.0
    return float(beyond * np.exp(np.interp(np.log(max(1, pairs)), np.log(sizes), np.log(seconds))))
