"""``scan``: score the mutants of antibodies, or of antigens, against their parents.

Mutants are scored in batches, as `abag.predict` would; those with several mutations follow once the
single ones are scored. A mutant and its parent are predicted by the same models, whose errors they
largely share, so the sigma of a difference is not that of two predictions. It is the standard
deviation of the difference (over trees, the joint posterior of a Gaussian process, or else the
members of an ensemble) times ``spread`` (`models.ridge`) where that makes it larger: errors of
single predictions that do not follow their deviation do not say that differences are right. What
the parts of a stack differ in is added. The residual noise is left out: what of it a mutant shares
with its parent is not known. A single network or a ridge has no such deviation.
The page of a scan shows the first parents, as many as fit, each a map of residues by positions, and
a table of the best mutants. P pairs of an antibody and an antigen in a batch: its parents, then its
mutants.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypeAlias, TypedDict

import numpy as np
import pandas as pd

from abag.core.arrays import Floats, hex_keys
from abag.core.errors import OptionError
from abag.core.files import replacing
from abag.core.messages import counted, reporting, say
from abag.embed.store.store import open_store
from abag.embed.tables.layout import NOTHING, with_habits
from abag.embed.tables.pairs import Sequences
from abag.embed.tables.table import writing_table
from abag.head.design.sites import (
    Mutant,
    Parent,
    Site,
    drawn_of,
    name_mutant,
    pairs_of,
    read_parents,
    single_mutants,
)
from abag.head.labels.headers import INSIDE, PKD, Quantity
from abag.head.models.pair_vectors import Index, given_features
from abag.head.predictor.explain import explain_residues, residue_parts
from abag.head.predictor.options import ScanOptions
from abag.head.predictor.predictor import Scorer
from abag.head.predictor.scoring import (
    PredictionsByRegime,
    as_in_the_run,
    check_table_out,
    loaded,
    rounded,
    row_bar,
    say_random_weights,
)
from abag.head.runs.report import render_page
from abag.head.runs.run_folder import naming_damage

if TYPE_CHECKING:
    from abag.embed.tables.chains import Chains
    from abag.embed.tables.layout import LayoutRecord
    from abag.head.predictor.predictor import Predictor, ScoredPairs


BATCH = 16_384
"""Mutants whose vectors are in memory at a time: 70 MB at IgT5's width."""

OF_SITES = ("chain", "position", "region", "wild_type")
"""Columns with a value of each site of a mutant."""
DESCRIBED = ("parent", "mutation", *OF_SITES, "mutant", "heavy", "light", "antigen")

MutantOfParent: TypeAlias = tuple[int, Mutant]
"""Index of a parent, and what is changed."""


class ScoredMutants(NamedTuple):
    """Scores of mutants and of their parents."""

    frame: pd.DataFrame
    """A row per mutant: what it is, its sequences and its scores."""
    parents: pd.DataFrame
    """The columns of `Predictor.score`, ``pkd_measured`` and ``pkd_compared`` of each parent: what
    is predicted for it as if it were as new as its mutants, the median over these."""


def score_mutants(
    predictor: Predictor,
    store: Path,
    parents: Sequence[Parent],
    mutants: Sequence[MutantOfParent],
    measured: pd.Series,
    embed_options: Mapping[str, Any],
) -> ScoredMutants:
    """Encode what the store lacks, and score mutants; `measured` is of `read_measured`."""
    pairs = [(parent.antibody, parent.antigen) for parent in parents]
    pairs += [parents[number].mutant(changes) for number, changes in mutants]
    antibodies, antigens = zip(*pairs, strict=True)
    sides = [Sequences.of("antibody", antibodies), Sequences.of("antigen", antigens)]
    predictor.encode(store, *sides, **embed_options)
    scorer = Scorer(predictor, open_store(store), *sides)
    first = len(parents)
    pkd_measured = np.full(len(pairs), np.nan)
    if len(measured):
        keys = []
        for sequences in sides:
            unique = np.array(hex_keys(sequences.keys), object)
            keys.append(unique[sequences.of_row])
        pkd_measured = measured.reindex(pd.MultiIndex.from_arrays(keys)).to_numpy(np.float64)
    of_parents = [sequences.of_row[:first] for sequences in sides]
    parent_scores = scorer.score(*of_parents).scores
    frames = []
    with row_bar("scoring", len(mutants)) as shown:
        for at in range(0, len(mutants), BATCH):
            batch = mutants[at : at + BATCH]
            # the parents of the batch are scored with it: differences need their vectors
            numbers, parent = np.unique([number for number, _ in batch], return_inverse=True)
            rows = np.concatenate([numbers, np.arange(len(batch)) + first + at])
            scored = scorer.score(*(sequences.of_row[rows] for sequences in sides))
            of_pair = np.concatenate([np.arange(len(numbers)), parent])
            _add_differences(predictor, scored, of_pair)
            _add_likelihoods(predictor, scored, of_pair)
            frames.append(scored.scores[len(numbers) :])
            shown.update(len(batch))
    frame = pd.concat(frames, ignore_index=True)
    if len(measured):
        frame.insert(0, "pkd_measured", pkd_measured[first:])
    described = _describe(parents, mutants, pairs[first:])
    frame = pd.concat([described, frame], axis=1)
    of_mutant = [number for number, _ in mutants]
    compared = (frame["pkd_predicted"] - frame["difference"]).groupby(of_mutant).median()
    parent_frame = parent_scores.assign(
        pkd_measured=pkd_measured[:first], pkd_compared=compared.reindex(range(first)).to_numpy()
    )
    return ScoredMutants(frame, parent_frame)


def _describe(
    parents: Sequence[Parent],
    mutants: Sequence[MutantOfParent],
    pairs: Sequence[tuple[Chains, Chains]],
) -> pd.DataFrame:
    """Say of each mutant what it is; what it has of each site is joined by ``+``."""
    described: dict[str, list[str]] = {name: [] for name in DESCRIBED}
    for (number, changes), (antibody, antigen) in zip(mutants, pairs, strict=True):
        sites = [site for site, _ in changes]
        described["parent"].append(parents[number].name)
        described["mutation"].append(name_mutant(changes))
        for name in OF_SITES:
            described[name].append("+".join(getattr(site, name) for site in sites))
        described["mutant"].append("+".join(residue for _, residue in changes))
        described["heavy"].append(antibody[0])
        described["light"].append(antibody[1])
        described["antigen"].append("|".join(antigen))
    return pd.DataFrame(described)


def _add_differences(predictor: Predictor, scored: ScoredPairs, parent: Index) -> None:
    """Add the difference of each pair from its parent, (P,), and its sigma if there is one.

    The parent of a pair is predicted as if it were of the regime of the pair. One that was measured
    is predicted with the weights of known pairs, which follow its label; those of new variants
    shrink predictions toward the mean. The difference of the two would be a matter of the regimes,
    whatever is mutated.
    """
    scores, regimes, vectors, parts = scored
    at = list(scores).index("regime")
    of_parents = {name: predicted[parent] for name, predicted in parts.items()}
    pkd = scores["pkd_predicted"].to_numpy()
    scores.insert(at, "difference", pkd - predictor.mix(of_parents, regimes))
    mixtures = predictor.mixtures(regimes)
    varying = predictor.varying(mixture for mixture, _ in mixtures)
    if not varying or predictor.quantity.classes:
        return
    variances = predictor.parts.difference_variance(vectors, parent, varying)
    differences = {name: predicted - of_parents[name] for name, predicted in parts.items()}
    sigma = np.zeros(len(scores))
    for mixture, rows in mixtures:
        square = max(mixture.spread, 1.0) ** 2 * mixture.variance(variances, len(scores))
        # trees may give a mutant the value of its parent where other parts do not
        sigma[rows] = np.sqrt(square + mixture.variance_between(differences))[rows]
    scores.insert(at + 1, "difference_sigma", sigma)


def _add_likelihoods(predictor: Predictor, scored: ScoredPairs, parent: Index) -> None:
    """Add how far each likelihood that the run reads from the store is from that of the parent."""
    if predictor.features is None:
        return
    numbers_PF = given_features(scored.vectors).numbers_RF
    for column, values_P in zip(predictor.features.numbers, numbers_PF.T, strict=True):
        if column.head:  # a likelihood, not a column of the table
            scored.scores[f"{column.name}_difference"] = values_P - values_P[parent]


BEST = 5
"""Mutants in the summary."""
MOST_FAR = 0.5
"""Share of far rows above which a scan warns."""


class ScanSummary(TypedDict):
    """Result of `scan`: the keys of ``abag scan --json``."""

    out: str
    heat_map: str
    parents: int
    skipped_parents: int
    """Parents without a residue to mutate."""
    sites: int
    """Residues that were mutated, over all parents."""
    rows: int
    double_mutants: int
    """All of the best single mutants."""
    drawn_mutants: int
    """Rows with three mutations or more."""
    regimes: dict[str, int]
    """Rows by what is new about them."""
    verdicts: dict[str, str]
    can_rank: bool
    """False if all mutants have the same prediction."""
    same_prediction: dict[str, int]
    """Rows of the regimes in which all mutants have the same prediction."""
    improved: int
    """Rows whose predicted difference exceeds its sigma, or 0 if the predictor has none."""
    measured: int
    """Rows that are measured pairs of the run."""
    median_sigma: float | None
    """Of the differences; None if the predictor has none."""
    far_rows: int
    far_parents: int
    best: list[dict[str, Any]]
    """Of those that improve: ``parent``, ``mutation``, ``pkd_predicted``, ``difference``,
    ``difference_sigma`` and ``pkd_measured``; ``predicted`` and ``measured`` of another quantity
    than an affinity."""
    parent_pkd: float | None
    """Prediction for the parent; None if there are several."""
    parent_compared: float | None
    """Prediction that its mutants are compared with: as if it were as new as they are."""
    parent_measured: float | None
    """Measured pKd of the parent, if the run has measured it; None if there are several."""
    seconds: float
    quantity: NotRequired[dict[str, Any]]
    """What is predicted, if it is no affinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredScan:
    """Hold the scores of all mutants, and what follows from them."""

    quantity: Quantity
    parents: Sequence[Parent]
    singles: pd.DataFrame
    """Rows of the single mutants, parent by parent."""
    scores: ScoredMutants
    """Of the single mutants, then of the double mutants, then of those with more mutations."""
    double_mutants: int
    drawn_mutants: int
    by_regime: PredictionsByRegime
    verdicts: dict[str, str]
    """What the run has shown for the regimes that occur."""
    improved: int
    best: pd.DataFrame
    """The best of those that improve, at most `BEST_ON_PAGE`."""


def describe_scan(found: ScanSummary) -> str:
    """Describe a scan in at most twelve lines."""
    quantity = Quantity.of_json(found["quantity"]) if "quantity" in found else PKD
    show = quantity.show
    double = found["double_mutants"]
    drawn = found["drawn_mutants"]
    singles = counted(found["rows"] - double - drawn, "single mutant")
    parents = counted(found["parents"], "parent")
    if found["parent_pkd"] is not None:
        parents += f", predicted {quantity} {show(found['parent_pkd'])}"
        parents += describe_compared(found["parent_pkd"], found["parent_compared"], quantity)
    if found["parent_measured"] is not None:
        parents += f", measured {show(found['parent_measured'])}"
    doubles = f", {counted(double, 'double mutant')}" if double else ""
    if drawn:
        doubles += f", {drawn:,} drawn with more mutations"
    sigma = found["median_sigma"]
    than = "by any difference, whose sigma is not known"
    if sigma is not None:
        than = f"by more than sigma (median {show(sigma)} {quantity})"
    lower = "" if quantity.sign > 0 else "; lower is better"
    several = found["parents"] > 1
    mutants = counted(found["rows"], "mutant")
    lines = [
        f"{parents}; {singles} of {counted(found['sites'], 'residue')}{doubles}",
        f"predicted to improve {than}{lower}: {found['improved']:,} of {mutants}",
    ]
    heading = "best"
    for mutant in found["best"]:
        lines.append(f"{heading:9} {_describe_best(mutant, quantity, several=several)}")
        heading = ""
    if found["best"]:
        lines.append("The largest of many predicted improvements are usually too large.")
    lines.append(describe_far(found))
    if found["out"]:
        lines += [f"table     {found['out']}", f"heat map  {found['heat_map']}"]
    return "\n".join(lines)


def describe_compared(predicted: float, compared: float | None, quantity: Quantity) -> str:
    """Say what is predicted for a parent as if it were as new as its mutants, if that differs."""
    if compared is None or quantity.show(compared) == quantity.show(predicted):
        return ""
    shown = quantity.show(compared)
    return f" ({shown} if it were as new as its mutants, which are compared with that)"


def describe_far(found: ScanSummary) -> str:
    """Say how many mutants are outside the training data, and what that means if most are."""
    text = f"outside the training data: {found['far_rows']:,} of {counted(found['rows'], 'mutant')}"
    if found["parents"] == found["far_parents"]:
        text += ", and so is the parent" if found["parents"] == 1 else ", and so are all parents"
    most = found["far_rows"] > MOST_FAR * found["rows"]
    return f"{text}: their order may mean nothing" if most else text


def _describe_best(mutant: Mapping[str, Any], quantity: Quantity, *, several: bool) -> str:
    sigma = mutant["difference_sigma"]
    measured = mutant[quantity.column("pkd_measured")]
    show = quantity.show
    difference = mutant["difference"]
    spread = "" if sigma is None else f" ± {show(sigma)}"
    sign = "+" if difference > 0 else "-"
    predicted = f"{quantity} {show(mutant[quantity.predicted])}"
    text = f"{mutant['mutation']}  {sign}{show(abs(difference))}{spread}  {predicted}"
    if measured is not None:
        text += f" (measured {show(measured)})"
    return f"{text}  {mutant['parent']}" if several else text


def scan(
    run: Path | str | Predictor,
    out: Path | str | None = None,
    *,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of ScanOptions
) -> ScanSummary | pd.DataFrame:
    """Score all mutants of some residues of one or more antibodies, and draw a heat map.

    Parameters
    ----------
    run : path or Predictor
        As for `abag.load_predictor`, or what it returned.
    out : path, optional
        Table to write; the heat map gets the same name with the suffix ``.html``.
    progress
        As for `abag.predict`.
    **options
        Fields of `ScanOptions`.

    Returns
    -------
    ScanSummary or DataFrame
        Without ``out``, a row per mutant, as a table of the kind that ``parents`` is; no heat map
        is drawn then, and what a summary has is said.

    Raises
    ------
    AbagError
        If anything is refused; nothing is encoded or written then.
    """
    chosen = ScanOptions.from_keywords(options, "scan")
    predictor = loaded(run)
    encoding = chosen.encoding(progress)
    start_s = time.monotonic()
    out = None if out is None else Path(out)
    with reporting(bars=progress):
        page = None
        if out is not None:
            page = out.with_name(f"{Path(out.name.removesuffix('.gz')).stem}.html")
            read = (chosen.parents, *chosen.sequences)
            check_table_out(out, page, sources=read, force=chosen.force)
        # scans of pIC50 say pKd, as their columns do
        quantity = PKD if predictor.quantity.affinity else predictor.quantity
        chosen = as_in_the_run(chosen, predictor)
        advice = "Write the mutants into a table with these columns, and use abag predict."
        predictor.refuse_without_features("scan", advice)
        store = predictor.resolve_store(chosen.store)
        chosen = _with_reading(chosen, predictor.layout)
        refuse_without_antigen(chosen)
        remembered = predictor.layout if chosen.parents is not None else NOTHING
        parents, skipped = read_parents(chosen, remembered)
        say_random_weights(predictor)
        scored = _score_all(predictor, store, parents, chosen, quantity, encoding)
        equal = scored.by_regime.describe("mutant")
        for text in equal:
            say(text)
        summary = _summarize(scored, skipped, out, page, start_s)
        table = quantity.outward(scored.scores.frame)
        if "antigen" not in predictor.kinds:
            table = table.drop(columns="antigen")
        if out is None or page is None:
            for line in describe_scan(summary).splitlines():
                say(line)
            return table
        ends = np.cumsum([parent.count_mutants(chosen.residues) for parent in parents])
        drawn = parents[: max(1, int(np.searchsorted(ends, MAX_CELLS, side="right")))]
        contributions = _contributions(predictor, store, drawn)
        heat_map = draw_heat_map(
            scored,
            drawn,
            chosen.residues,
            contributions,
            predictor,
            [*scored.verdicts.values(), *equal, describe_far(summary)],
        )
        # both are written before either gets its name, so that a full disk leaves neither
        with replacing(page) as partial, writing_table(out) as write:
            write(rounded(table, out, table.columns, predictor.digits))
            partial.write_text(heat_map, "utf-8")
    return summary


def _score_all(
    predictor: Predictor,
    store: Path,
    parents: Sequence[Parent],
    options: ScanOptions,
    quantity: Quantity,
    encoding: Mapping[str, Any],
) -> _ScoredScan:
    """Score the single mutants, then mutants that combine the best of these."""
    measured = read_measured(predictor.pairs, quantity)
    singles: list[MutantOfParent] = []
    for number, parent in enumerate(parents):
        singles += [(number, changes) for changes in single_mutants(parent, options.residues)]
    single_scores = score_mutants(predictor, store, parents, singles, measured, encoding)
    scores = single_scores
    gain = quantity.sign * single_scores.frame["difference"]
    doubles = list[MutantOfParent]()
    for number, top in _best_singles(singles, gain.to_numpy(), options.pairs_of or 0).items():
        doubles += [(number, pair) for pair in pairs_of(top)]
    most = options.pairs_of or BEST_COMBINED
    drawn = _drawn(_best_singles(singles, gain.to_numpy(), most, MOST_PER_SITE), options)
    if doubles or drawn:
        multiple = score_mutants(predictor, store, parents, doubles + drawn, measured, encoding)
        frame = pd.concat([single_scores.frame, multiple.frame], ignore_index=True)
        scores = single_scores._replace(frame=frame)
    by_regime = PredictionsByRegime(quantity, predictor.kinds)
    by_regime.add(scores.frame)
    sigma = scores.frame.get("difference_sigma")
    gain = quantity.sign * scores.frame["difference"]
    improves = gain > (0.0 if sigma is None else sigma)
    return _ScoredScan(
        quantity=quantity,
        parents=parents,
        singles=single_scores.frame,
        scores=scores,
        double_mutants=len(doubles),
        drawn_mutants=len(drawn),
        by_regime=by_regime,
        verdicts=predictor.say_verdicts(by_regime.rows, "mutant"),
        improved=int(improves.sum()),
        best=scores.frame.loc[gain[improves].nlargest(BEST_ON_PAGE).index],
    )


def _summarize(
    scored: _ScoredScan, skipped: int, out: Path | None, page: Path | None, start_s: float
) -> ScanSummary:
    quantity = scored.quantity
    parents = scored.parents
    frame = scored.scores.frame
    parent_scores = scored.scores.parents
    sigma = frame.get("difference_sigma")
    measured = frame["pkd_measured"].notna().sum() if "pkd_measured" in frame else 0
    only = parent_scores.iloc[0] if len(parents) == 1 else None
    summary: ScanSummary = {
        "out": "" if out is None else str(out),
        "heat_map": "" if page is None else str(page),
        "parents": len(parents),
        "skipped_parents": skipped,
        "sites": sum(len(parent.sites) for parent in parents),
        "rows": len(frame),
        "double_mutants": scored.double_mutants,
        "drawn_mutants": scored.drawn_mutants,
        "regimes": scored.by_regime.rows,
        "verdicts": scored.verdicts,
        "can_rank": scored.by_regime.can_rank,
        "same_prediction": scored.by_regime.same,
        "improved": scored.improved,
        "measured": int(measured),
        "median_sigma": None if sigma is None else float(sigma.median()),
        "far_rows": int(frame["far"].sum()),
        "far_parents": int(parent_scores["far"].sum()),
        "best": _describe_rows(scored.best.head(BEST), quantity),
        "parent_pkd": None if only is None else float(only["pkd_predicted"]),
        "parent_compared": None if only is None else float(only["pkd_compared"]),
        "parent_measured": None if only is None else _or_none(only["pkd_measured"]),
        "seconds": round(time.monotonic() - start_s, 3),
    }
    if not quantity.affinity:
        summary["quantity"] = quantity.to_json()
    return summary


def _contributions(
    predictor: Predictor, store: Path, parents: Sequence[Parent]
) -> list[list[float]]:
    """Compute what residues of the parents that are drawn contribute, site by site.

    Empty if no part of the predictor compares residues.
    """
    if not residue_parts(predictor.parts.models):
        return []
    sides = [
        Sequences.of("antibody", [parent.antibody for parent in parents]),
        Sequences.of("antigen", [parent.antigen for parent in parents]),
    ]
    scorer = Scorer(predictor, open_store(store), *sides)
    explained = explain_residues(predictor, scorer, [sequences.of_row for sequences in sides])
    contributions = []
    for parent, of_residue in zip(parents, explained, strict=True):
        places = [site.place for site in parent.sites]
        contributions.append([of_residue.get(place, np.nan) for place in places])
    return contributions


def refuse_without_antigen(options: ScanOptions) -> None:
    """Refuse a parent without its antigen, and positions of an antigen where there is none."""
    if options.parents is None and options.antigen is None and not options.no_antigen:
        msg = "--antigen: not given; expected the antigen of the parent. Give --antigen SEQ."
        raise OptionError(msg)
    if options.no_antigen and "antigen" in options.scanned_chains:
        msg = (
            "--region and --positions: the run is of antibodies alone; expected residues of an "
            "antibody, such as cdr or H105-H117. Correct them."
        )
        raise OptionError(msg)


def _with_reading(options: ScanOptions, reading: LayoutRecord) -> ScanOptions:
    """Complete the options by what the run remembers; a table of parents is yet to be read."""
    options = with_habits(options, reading)
    if options.parents is not None or options.antigen is not None or not reading.antigen:
        return options
    say("the antigen of the run is taken")
    return replace(options, antigen=reading.antigen)


def read_measured(path: Path | None, quantity: Quantity = PKD) -> pd.Series:
    """Return the exact labels of the pairs of a run by their keys, if they are known."""
    if path is None:
        return pd.Series(dtype=float)
    with naming_damage(path.parent):
        names = ["antibody_key", "antigen_key", quantity.column("pkd"), "censored"]
        pairs = quantity.inward(pd.read_parquet(path, columns=names), "pkd")
        exact = pairs[pairs["censored"] == 0].astype({"pkd": float})
        return exact.groupby(["antibody_key", "antigen_key"])["pkd"].mean()


BEST_COMBINED = 20
"""Best single mutants of a parent from which mutants with several mutations are drawn."""
MOST_PER_SITE = 3
"""Of these at one site: all may be of one, whose mutants cannot be combined."""
DRAWN = 200
SEED = 0
"""Of the draws."""


def _best_singles(
    singles: Sequence[MutantOfParent], gain: Floats, most: int, per_site: int | None = None
) -> dict[int, list[Mutant]]:
    """Return the best single mutants of each parent, by its number.

    At most `per_site` are of one site.
    """
    best: dict[int, list[Mutant]] = {}
    at_site = Counter[tuple[int, Site]]()
    for row in np.argsort(-gain, kind="stable").tolist():
        number, changes = singles[row]
        site = (number, changes[0][0])
        top = best.setdefault(number, [])
        if len(top) < most and (per_site is None or at_site[site] < per_site):
            top.append(changes)
            at_site[site] += 1
    return dict(sorted(best.items()))


def _drawn(best: Mapping[int, Sequence[Mutant]], options: ScanOptions) -> list[MutantOfParent]:
    """Draw mutants with the numbers of mutations that are asked for; say where there are few."""
    wanted = options.drawn or DRAWN
    rng = np.random.default_rng(SEED)
    drawn = list[MutantOfParent]()
    for mutations in options.mutations or ():
        few = 0
        for number, top in best.items():
            mutants = drawn_of(top, mutations, wanted, rng)
            few += len(mutants) < wanted
            drawn += [(number, mutant) for mutant in mutants]
        if few:
            say(
                f"{mutations} mutations: {counted(few, 'parent')} with fewer than {wanted:,} "
                f"combinations of the best single mutants, of which all are scored"
            )
    return drawn


def _or_none(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def _describe_rows(best: pd.DataFrame, quantity: Quantity) -> list[dict[str, Any]]:
    described = []
    for row in best.to_dict("records"):
        mutant = {}
        for name in ("parent", "mutation", "pkd_predicted", "difference"):
            mutant[quantity.column(name)] = row[name]
        for name in ("difference_sigma", "pkd_measured"):
            mutant[quantity.column(name)] = _or_none(row.get(name))
        described.append(mutant)
    return described


# ---- the page ----------------------------------------------------------------------------------


MAX_CELLS = 60_000
"""Single mutants on the page: 1 MB."""
BEST_COLUMNS = {
    "parent": "parent",
    "mutation": "mutation",
    "region": "region",
    "difference": "difference ({})",
    "difference_sigma": "its sigma",
    "pkd_predicted": "predicted {}",
    "pkd_measured": "measured {}",
    "regime": "regime",
    "far": "outside training data",
}
"""Columns of the table of the best mutants, and their headings, with the quantity."""
BEST_ON_PAGE = 50
"""Mutants in that table."""


def draw_heat_map(
    scored: _ScoredScan,
    parents: Sequence[Parent],
    residues: str,
    contributions: Sequence[Sequence[float]],
    predictor: Predictor,
    verdicts: Sequence[str],
) -> str:
    """Draw the page of the single mutants of the first `parents`, and of the best of all.

    `contributions` are those of the residues of these parents, site by site, NaN where they are not
    known; empty if the predictor has no parts that are explained.
    """
    quantity = scored.quantity
    digits = max(3, predictor.digits - 1)
    shown = []
    start = 0
    for number, parent in enumerate(parents):
        cells = scored.singles[start : start + parent.count_mutants(residues)]
        start += len(cells)
        described = _of_parent(parent, scored.scores.parents.iloc[number], cells, quantity, digits)
        if contributions and not np.isnan(contributions[number]).all():
            of_sites = np.round(contributions[number], digits)
            described["contribution"] = [None if np.isnan(x) else x for x in of_sites.tolist()]
        shown.append(described)
    is_far = scored.singles["far"].head(start)
    content: dict[str, Any] = {"residues": residues, "parents": shown}
    if not quantity.affinity:
        content["quantity"] = str(quantity)
        content["sign"] = quantity.sign
        content["digits"] = digits
        content["columns"] = {name: quantity.column(name) for name in INSIDE}
    content["mostFar"] = bool(2 * is_far.sum() > len(is_far))
    only = len(shown) == 1
    names = [predictor.spec(kind).name for kind in predictor.kinds]
    return render_page(
        "scan.html.j2",
        content,
        ("page.js", "scan.js"),
        title=f"Scan of {parents[0].name}" if only else "Scan",
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        source=f"{'encoders' if len(names) > 1 else 'encoder'} {' and '.join(names)}",
        parent=_in_words(shown[0], quantity) if only else "",
        quantity=quantity,
        verdicts=verdicts,
        names=[parent.name for parent in parents],
        left_out=len(scored.parents) - len(parents),
        has_sigma="difference_sigma" in scored.singles,
        has_contributions=any("contribution" in parent for parent in shown),
        best=_table_of_best(scored.best, quantity, with_parent=not only),
    )


def _table_of_best(best: pd.DataFrame, quantity: Quantity, *, with_parent: bool) -> dict[str, Any]:
    """Return the headings and the rows of the best mutants, without columns that say nothing."""
    unused = set() if with_parent else {"parent"}
    if "pkd_measured" in best and best["pkd_measured"].isna().all():
        unused.add("pkd_measured")
    columns = [name for name in BEST_COLUMNS if name in best and name not in unused]
    rows = []
    for row in best[columns].itertuples(index=False):
        rows.append([_plain(cell) for cell in row])
    return {"head": [BEST_COLUMNS[name].format(quantity) for name in columns], "rows": rows}


def _of_parent(
    parent: Parent, scores: pd.Series, cells: pd.DataFrame, quantity: Quantity, digits: int
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "name": parent.name,
        # as in the table: with 3 digits 4.4752 would be 4.475, and shown as 4.47
        "pkd": round(scores["pkd_predicted"], digits + 1),
        "sites": [[s.chain, s.prefix, s.position, s.region, s.wild_type] for s in parent.sites],
        "predicted": cells["pkd_predicted"].round(digits + 1).tolist(),
        "difference": cells["difference"].round(digits).tolist(),
        "far": "".join(np.where(cells["far"], "1", "0")),
    }
    if "difference_sigma" in cells:
        summary["sigma"] = cells["difference_sigma"].round(digits).tolist()
    text = describe_compared(scores["pkd_predicted"], scores["pkd_compared"], quantity)
    if text:
        summary["compared"] = text
    if not np.isnan(scores["pkd_measured"]):
        summary["measuredPkd"] = round(scores["pkd_measured"], digits)
    if "pkd_measured" in cells:
        measured = cells["pkd_measured"].reset_index(drop=True).dropna()
        summary["measured"] = {str(at): round(value, digits) for at, value in measured.items()}
    return summary


def _in_words(parent: dict[str, Any], quantity: Quantity) -> str:
    text = (
        f"Parent: predicted {quantity} {quantity.show(parent['pkd'])}{parent.get('compared', '')}"
    )
    if "measuredPkd" in parent:
        text += f", measured {quantity.show(parent['measuredPkd'])}"
    return f"{text}."


def _plain(value: object) -> object:
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    return value
