"""What `abag embed` and `abag fit` would do with a table, and how long it would take.

Nothing is encoded or written. Speeds of encoders were measured on one H100 and one H200
(benchmarks/results). All other times are scaled by the speed of matrix products and marked as
estimates. The time of a fit with default options is interpolated between measured ones
(``benchmarks/bench_plan.py``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from abag.core.cores import count_cores
from abag.core.errors import AbagError
from abag.core.messages import align, counted, duration_text, reporting, size_text
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.packing import TokenLayout
from abag.embed.encoders.registry import ALIASES, refuse_unknown_name
from abag.embed.tables.chains import ALONE
from abag.embed.tables.columns import MissingColumn, quote_names
from abag.embed.tables.pairs import SequenceTable, UniqueSequences, describe_rows, read_pairs
from abag.embed.tables.table import TableLike
from abag.head.evaluation.verdicts import label_problems, summarize_labels
from abag.head.labels.column import decide_label
from abag.head.labels.headers import PKD, Quantity
from abag.head.labels.labelled_pairs import (
    LabelledPairs,
    ReadLabel,
    columns_beside,
    describe_columns,
    label_pairs,
    read_label,
    training_labels,
    with_feature_columns,
)
from abag.head.models.registry import describe_left_out
from abag.head.predictor.options import PlanOptions
from abag.head.regimes.folds import LEAST_PAIRS

SHOWN_GPUS = ("T4", "H100")
"""The free GPU of Colab and the fastest that is easy to rent; --all-gpus lists all."""
ON_THE_CPU = "fit: clusters and kernels use the CPU, networks a GPU if there is one"
"""Which part of a fit a GPU does not shorten."""


NO_ANTIGENS: dict[str, Any] = {
    "encoder": None, "unique": 0, "tokens": 0, "longest": 0, "mean_length": 0.0,
    "window": None, "long_chains": 0, "windows": 0, "bytes": 0,
}  # fmt: skip
"""The plan of antigens that a table does not have."""


class Plan(TypedDict):
    """Result of `plan`: the keys of ``abag plan --json``."""

    table: str
    rows: int
    """Rows with valid sequences."""
    read: str
    """How many rows were read, and if not all are used, where the others are."""
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
    """None without a label column, and where ``fit`` would refuse one of its cells."""
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
        The table cannot be read, or has a bad row; or an encoder has a name that nothing has.
    """
    chosen = PlanOptions.from_keywords(options, "plan")
    decide = partial(decide_label, options=chosen)
    read = read_pairs(table, chosen, label=decide, refuse=False)
    label = None
    sense = ""
    problems = list[str]()
    what = PKD
    with suppress(AbagError):  # no label column: maybe it is for predict
        label = read_label(read)
        sense = label.reading.line
        problems = [*label.reading.problems]
        what = label.reading.quantity
    pairs, refused, beside = _read_columns(read, label)
    labels = None if pairs is None else summarize_labels(pairs)
    if refused:
        problems.append(refused)
    if pairs is not None and labels is not None:
        labels["quantity"] = str(pairs.quantity)
        if not pairs.quantity.affinity:
            labels["better"] = pairs.quantity.better
        if pairs.quantity.classes:
            labels["classes"] = pairs.quantity.count_classes(pairs.pkd)
        problems += label_problems(pairs)
        if labels["pairs"] < LEAST_PAIRS:
            problems.append(
                f"Only {counted(labels['pairs'], 'pair')}: abag fit may find too few to hold any "
                f"out. {LEAST_PAIRS} distinct pairs are enough."
            )
        read = pairs.table
    if chosen.skipped is not None:
        read.skipped.write(Path(chosen.skipped))
    antibodies = _plan_sequences(read.antibodies, chosen.antibody_encoder)
    antigens = dict(NO_ANTIGENS)
    if "antigen" in read.kinds:
        antigens = _plan_sequences(read.antigens, chosen.antigen_encoder)
    rows_text = describe_rows(len(read.frame), len(read.skipped))
    if pairs is not None:
        rows_text = pairs.rows_text
    rows = len(read.frame) if labels is None else labels["pairs"]  # replicates are one pair
    work = _work(read, rows, chosen)
    machines = {}
    for name in GPUS if chosen.all_gpus else SHOWN_GPUS:
        machines[name] = _on_gpu(GPUS[name], work, measured=name in MEASURED_ON)
    name, machine = estimate_here(work)
    machines[name] = machine
    return {
        "table": read.source, "rows": len(read.frame), "read": rows_text, "antibodies": antibodies,
        "antigens": antigens, "found": read.counts, "notes": read.notes, "labels": labels,
        "columns": describe_columns(read, what), "beside": beside, "sense": sense,
        "problems": problems, "refused": refused,
        "head": describe_left_out(rows),
        "machines": machines,
    }  # fmt: skip


def _plan_sequences(sequences: UniqueSequences, encoder: str) -> dict[str, Any]:
    refuse_unknown_name(encoder)
    family = ALIASES[encoder].family if encoder in ALIASES else "esm"  # the rest count as ESM-2
    layout = TokenLayout(sequences.kind, FAMILIES[family].vocabulary)
    limit = math.inf if layout.limit is None else layout.limit
    examples = {tuple(map(len, chains)): chains for chains in sequences.chains}
    number_of = Counter(tuple(map(len, chains)) for chains in sequences.chains)
    tokens = residues = long_chains = windows = 0
    for lengths, number in number_of.items():
        spans = layout.span_lengths(examples[lengths])
        tokens += number * sum(spans)
        residues += number * sum(lengths)
        long = sum(length > limit for length in lengths)
        if long:  # each of the other chains is one span
            long_chains += number * long
            windows += number * (len(spans) - (sum(map(bool, lengths)) - long))
    unique = len(sequences.chains)
    stored = None
    if has_speed(encoder):  # else its width may not be known
        stored = len(layout.poolings) * ALIASES[encoder].width * 2 + 22
    return {
        "encoder": encoder, "unique": unique, "tokens": tokens,
        "longest": max(map(sum, number_of)), "mean_length": residues / unique,
        "window": layout.limit, "long_chains": long_chains,
        "windows": windows, "bytes": None if stored is None else unique * stored,
    }  # fmt: skip


def _read_columns(
    table: SequenceTable, label: ReadLabel | None
) -> tuple[LabelledPairs | None, str, list[str]]:
    """Read the columns of labels, and those beside them, as `fit` would.

    Returns the pairs (None if there are no labels, or `fit` would refuse some), why it would refuse
    the table, and what is said of features, errors and weights.
    """
    pairs = None
    columns = columns_beside(table)
    in_table = [column for column in columns if not column.in_store]
    beside = list[str]()
    strict = table.refuses_bad_rows and bool(table.skipped.bad)
    try:
        with reporting(beside.append):
            pairs = label_pairs(table, beside=in_table, label=label)
            training_labels(pairs, np.arange(len(pairs)))
            pairs = with_feature_columns(pairs)
    except AbagError as error:
        # a table to predict has no labels, but columns beside labels are of a table to fit
        no_label = all(layout.is_absent for layout in table.labels) and not in_table
        if strict:
            refusal = table.skipped.refusal(table.source, kept=len(table.frame))
            raise (refusal if isinstance(error, MissingColumn) else error) from None
        return pairs, "" if no_label else str(error), []
    of_store = [column.name for column in columns if column.in_store]
    if of_store:
        beside.append(
            f"features {quote_names(of_store)}: likelihoods of a store that was begun with abag "
            "embed --loglik; not looked for here"
        )
    return pairs, "", beside


def _work(table: SequenceTable, pairs: int, options: PlanOptions) -> Workload:
    """Return what encoding a table, with each encoder of its views, and fitting it takes."""
    encoders = []
    tokens = []
    for kind in table.kinds:
        usual = options.antibody_encoder if kind == "antibody" else options.antigen_encoder
        views = options.named_views(kind)
        names = [usual] if views is None else [view["encoder"] or usual for view in views]
        for encoder in dict.fromkeys(names):  # each runs once, for all its poolings
            encoders.append(encoder)
            tokens.append(_plan_sequences(table.sequences[kind], encoder)["tokens"])
    return Workload(
        encoders=encoders,
        tokens=tokens,
        pairs=pairs,
        has_features=options.has_features,
        price_per_hour=options.price_per_hour,
    )


def describe_plan(found: Plan, *, verbose: bool = False) -> list[str]:
    """Describe a plan; with `verbose` also where each estimate comes from."""
    sequences = {"antibodies": found["antibodies"], "antigens": found["antigens"]}
    alone = not found["antigens"]["unique"]
    if alone:
        sequences.pop("antigens")
    lines = [f"{found['table']}: {found['read']}", found["columns"], *found["notes"]]
    if alone:
        lines.append(ALONE)
    lines += _sequence_table(sequences)
    for plural, kind in sequences.items():
        if kind["long_chains"]:
            chains = f"{counted(kind['long_chains'], 'chain')} of over {kind['window']:,} residues"
            lines.append(f"{plural}: {chains}, encoded in {kind['windows']:,} windows")
    if found["labels"] is not None:
        lines.append(_describe_labels(found["labels"]))
    lines += found["beside"]
    lines += [line for line in (found["sense"], found["head"]) if line]
    for line in found["problems"]:
        refused = line == found["refused"]
        lines.append(f"fit refuses this table: {line}" if refused else f"problem: {line}")
    return lines + _describe_machines(found["machines"], verbose=verbose)


def _describe_labels(labels: Mapping[str, Any]) -> str:
    show = Quantity(name=labels["quantity"], affinity="better" not in labels).show
    low, high = labels["range"]
    pairs = counted(labels["pairs"], "pair")
    replicates = counted(labels["duplicate_rows"], "replicate row")
    censored = counted(labels["censored"], "censored pair")
    if "classes" in labels:
        return f"{pairs} with {labels['quantity']}: {labels['classes']}; {replicates}"
    return (
        f"{pairs} with {labels['quantity']} {show(low)} to {show(high)}; {replicates}, {censored}"
    )


def _sequence_table(sequences: Mapping[str, dict[str, Any]]) -> list[str]:
    rows = [["", "unique", "mean length", "longest", "tokens", "encoder", "in the store"]]
    for plural, kind in sequences.items():
        size = "-" if kind["bytes"] is None else size_text(kind["bytes"])
        numbers = [f"{kind['mean_length']:.0f}", f"{kind['longest']:,}", f"{kind['tokens']:,}"]
        rows.append([plural, f"{kind['unique']:,}", *numbers, kind["encoder"], size])
    return align(rows, numbers=True)


def _describe_machines(machines: Mapping[str, dict[str, Any]], *, verbose: bool) -> list[str]:
    timed = {name: times for name, times in machines.items() if times["embed_s"] is not None}
    if not timed:
        return ["times: no speed known for these encoders; try abag embed --limit 1000"]
    every = [*timed.values()]
    columns = [
        ["machine", *timed],
        ["embed", *(duration_text(times["embed_s"]) for times in every)],
        ["fit", *(duration_text(times["fit_s"]) for times in every)],
        ["memory", *(f"{times['memory_gib']:.0f} GiB" for times in every)],
    ]
    shows_sessions = any(max(times["sessions"].values()) > 1 for times in every)
    if shows_sessions:
        columns.append(["sessions", *("/".join(map(str, x["sessions"].values())) for x in every)])
    if every[0]["price"] is not None:
        columns.append(["price", *(f"{times['price']:.2f}" for times in every)])
    measured = " and ".join(name for name, times in timed.items() if times["measured"])
    others = f"{measured} from measured tokens/s; others are estimates"
    notes = [others if measured else "all are estimates"]
    if shows_sessions:
        hours = " / ".join(f"{hours} h" for hours in SESSION_HOURS)
        notes.append(f"Colab sessions needed ({hours} each)")
    rows = [*map(list, zip(*columns, strict=True))]
    lines = [*align(rows, numbers=True), ON_THE_CPU, f"times: {'; '.join(notes)}"]
    if verbose:
        lines += [f"{name}: {times['basis']}" for name, times in timed.items()]
    return lines


SESSION_HOURS = (4, 12, 24)
_PACKED = {
    "igt5": 250e3, "igbert": 815e3, "antiberta2": 1468e3, "ablang2": 3737e3, "ankh-large": 233e3,
    "esm2-35m": 4266e3, "esm2-650m": 426e3, "esmc-300m": 715e3, "esmc-600m": 431e3,
    "amplify-350m": 664e3, "glm2-650m": 385e3,
}  # fmt: skip
"""Measured tokens/s (benchmarks/results/encoders_h200_2026-11-23.md)."""
_GROUPED = {True: ("igt5", 182e3), False: ("esm2-650m", 197e3)}
"""The same in fp16 without Triton, by whether attention has a bias."""
MEASURED_ON = ("H100", "H200")
PEAK_REACHED = 0.81
"""Share of the published peak that a matrix product reached on the H200."""
CORE_FLOPS = 50e9
"""Of fp32 products on one core of a server; a measured rate would change from call to call."""
FIT_S: Mapping[bool, tuple[tuple[int, float], ...]] = {
    False: (
        (100, 8.7), (1_160, 28.3), (2_000, 27.9), (4_900, 56.6), (11_000, 113.9), (20_000, 166.8),
    ),
    True: ((100, 8.7), (1_160, 28.3), (160_000, 56.7)),
}  # fmt: skip
"""Pairs, and measured seconds of a first fit: on 2 CPU cores and, the largest, on an H100, because
models of small tables are fitted on the CPU. See benchmarks/results/default_fit_h200-16core."""
WITH_FEATURES = 2.1
"""CPU time of a fit with three features over that of the same fit without: 1.7, 2.3 and 2.4, see
benchmarks/results/plan_features_2core_2026-11-28.md. The mean of the logarithms."""


def has_speed(encoder: str) -> bool:
    """Tell whether `tokens_per_second` knows the encoder: an alias with a number of weights."""
    return encoder in ALIASES and ALIASES[encoder].parameters > 0


def tokens_per_second(encoder: str, *, packed: bool) -> float:
    """Return the speed on one H200, packed, or in fp16 without Triton as on a GPU before Ampere.

    It is that of the measured encoder that is most alike, scaled by the number of weights.
    """
    alias = ALIASES[encoder]

    def smaller(measured: str) -> float:
        return ALIASES[measured].parameters / alias.parameters

    def distance(measured: str) -> tuple[bool, float]:
        return ALIASES[measured].family != alias.family, abs(math.log(smaller(measured)))

    if packed:
        like = min(_PACKED, key=distance)
        return _PACKED[like] * smaller(like)
    like, grouped = _GROUPED[FAMILIES[alias.family].biased_attention]
    return grouped * smaller(like)


class Gpu(NamedTuple):
    """Published peak of half-precision products; whether bfloat16 and packed attention work."""

    tflops: float
    packed: bool


GPUS: Mapping[str, Gpu] = {
    "T4": Gpu(65, False), "L4": Gpu(121, True), "V100": Gpu(125, False),
    "A100": Gpu(312, True), "H100": Gpu(989, True), "H200": Gpu(989, True),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a table takes to encode and to fit."""

    encoders: Sequence[str]
    """Those that run, antibodies' first."""
    tokens: Sequence[int]
    """Tokens that each of them encodes."""
    pairs: int
    has_features: bool
    price_per_hour: float | None

    @property
    def has_speeds(self) -> bool:
        """Whether the speed of each encoder is known."""
        return all(map(has_speed, self.encoders))

    @property
    def weights(self) -> list[float]:
        """Weights of each encoder in matrix products, per token."""
        return [ALIASES[name].parameters for name in self.encoders]

    def estimate(
        self, embed_s: float, memory_gib: float, basis: str, *, on_gpu: bool, measured: bool
    ) -> dict[str, Any]:
        """Return what a plan says of a machine, given the time that it encodes."""
        fit_s = fit_time(self.pairs, on_gpu=on_gpu, features=self.has_features)
        hours = (embed_s + fit_s) / 3600
        return {
            "embed_s": embed_s, "fit_s": fit_s, "memory_gib": memory_gib,
            "measured": measured, "basis": basis,
            "sessions": {f"{h} h": math.ceil(hours / h) for h in SESSION_HOURS},
            "price": self.price_per_hour and hours * self.price_per_hour,
        }  # fmt: skip


def _on_gpu(gpu: Gpu, work: Workload, *, measured: bool) -> dict[str, Any]:
    if not work.has_speeds:
        return {"embed_s": None, "measured": False}
    relative = gpu.tflops / GPUS["H200"].tflops
    embed_s = 0.0
    for tokens, encoder in zip(work.tokens, work.encoders, strict=True):
        embed_s += tokens / (tokens_per_second(encoder, packed=gpu.packed) * relative)
    # half-precision weights of the larger encoder, and activations of 16k tokens
    memory_gib = max(work.weights) * 2 / 2**30 + 6
    path = "" if gpu.packed else " in fp16 without Triton"
    basis = f"estimate: {relative:.0%} of the speed of an H200{path}"
    if not {*work.encoders} <= _PACKED.keys():
        measured = False
        basis = "estimate from the number of weights"
    elif measured:
        basis = "from measured tokens/s"
    return work.estimate(embed_s, memory_gib, basis, on_gpu=True, measured=measured)


def estimate_here(work: Workload) -> tuple[str, dict[str, Any]]:
    """Return a name for this machine, and what a plan says of it."""
    from abag.core.device import device_name, measure_matmul_flops, plan_device

    device = plan_device()
    on_gpu = device.device.type == "cuda"
    name = f"this machine ({device_name(device.device) if on_gpu else 'CPU'})"
    if not work.has_speeds:
        return name, {"embed_s": None, "measured": False}
    if on_gpu:
        tflops = measure_matmul_flops(device) / PEAK_REACHED / 1e12
        return name, _on_gpu(Gpu(tflops, device.precision == "bf16"), work, measured=False)
    products = sum(2 * weights * n for weights, n in zip(work.weights, work.tokens, strict=True))
    memory_gib = max(work.weights) * 4 / 2**30 + 2
    embed_s = products / (0.5 * CORE_FLOPS * count_cores())
    basis = "estimate from the number of cores"
    return name, work.estimate(embed_s, memory_gib, basis, on_gpu=False, measured=False)


def fit_time(pairs: int, *, on_gpu: bool, features: bool = False) -> float:
    """Estimate the wall time of a first fit with default options, in seconds.

    `features` says whether pairs have columns of numbers or categories beside their vectors.
    """
    sizes, seconds = np.array(FIT_S[on_gpu]).T
    beyond = max(1.0, pairs / sizes[-1])  # in proportion to the largest that was measured
    beyond *= WITH_FEATURES if features else 1.0
    return float(beyond * np.exp(np.interp(np.log(max(1, pairs)), np.log(sizes), np.log(seconds))))
