"""What a fit leaves in the folder of its run: tables, summary, report and model card.

Report and card are rendered from the files in the folder, as `abag report` does it again.

The report is one page; its tables are HTML and its charts, curves and bars of every row and points
of a sample, are drawn by a script. A page loads nothing. Names in its data come from tables that
others may have written: HTML is escaped, and the page lets a browser run its own script only. The
card is not dated: the same run gives the same card.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError, select_autoescape
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from scipy.special import ndtri

from abag import __version__
from abag.core.arrays import Floats, Ints, distinct, label_weights
from abag.core.cores import limit_blas
from abag.core.files import refuse_read_only, replacing, write_json, write_text
from abag.core.messages import printable
from abag.core.options import schema
from abag.embed.encoders.registry import ALIASES
from abag.embed.tables.chains import KINDS
from abag.embed.tables.table import read_names
from abag.head.evaluation.metrics import (
    METRICS,
    MIN_ROWS_PER_ANTIGEN,
    RanksByGroup,
    average_folds,
    calibration_slope,
    find_metric,
    metric_heading,
    rows_to_score,
    score_folds,
    strong_threshold,
)
from abag.head.evaluation.verdicts import (
    columns,
    describe_regimes,
    page_of,
    score_strong,
    warnings,
    weights_in,
)
from abag.head.labels.headers import DIGITS, PROBABILITY, Quantity
from abag.head.models.config import FitConfig
from abag.head.models.registry import MODELS, NETWORK
from abag.head.predictor.folder import ADAPTER_FILES, PREDICTOR, contents_of
from abag.head.predictor.predictor import RECORD, WEIGHTS
from abag.head.regimes.splits import (
    KEYS,
    TEST,
    TRAIN,
    Split,
    effective_number,
    pair_keys,
    total_leaks,
)
from abag.head.runs.rounds import (
    COLUMN_NAMES,
    MEASURED,
    NAMES,
    describe_history,
    measured_rows,
    round_cells,
)
from abag.head.runs.run_folder import (
    described,
    kinds_of,
    layout_of,
    naming_damage,
    read_config,
    read_run,
    read_tables,
)

if TYPE_CHECKING:
    from abag.head.evaluation.metrics import Scores
    from abag.head.evaluation.scores import RegimeScore
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.predictor.parts import Parts, Predictions
    from abag.head.predictor.weigh import WeighedRegime
    from abag.head.runs.run_folder import (
        DataSummary,
        RegimeSummary,
        RunSummary,
        SavedRun,
        UnmeasuredRegime,
    )
    from abag.head.training.inputs import SplitInputs

Series: TypeAlias = dict[str, Any]
MAX_POINTS = 4000
"""Test rows drawn, over all folds."""
MAX_ANTIGENS = 20
LONGEST = 40
"""Characters of a name that are shown."""
CHART_DIGITS = 3
"""After the point, of pKd in charts."""
CURVE_POINTS = 150
"""Points per curve of the training loss, each the mean of as many steps."""
COVERAGE = np.linspace(0.02, 0.98, 49)
"""Nominal coverages of prediction intervals."""
LARGEST_ERRORS = 20
"""Test pairs in the table of the largest errors."""
RESIDUES = "residues.parquet"
"""What residues contribute on average, in a run whose predictor has a part that compares these."""
MOST_PLACES = 20
"""Positions of residues that are drawn."""
IN_CONFIG_ONLY = ("format", "store_from_run")
"""Keys of config.json that the report does not show."""
LICENCES = {name: alias.licence for name, alias in ALIASES.items()}
"""Licences of the encoders that abag knows by name."""


def render_page(
    template: str, data: Mapping[str, object], scripts: Sequence[str], **values: object
) -> str:
    """Render a page of ``templates``; values are escaped, and `data` is JSON for its scripts."""
    script = "\n".join(map(_read, scripts))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return render_template(
        template,
        version=__version__,
        style=Markup(_read("report.css")),
        # htmlsafe: no name can end the script
        data=htmlsafe_json_dumps(_shown(data), allow_nan=False, separators=(",", ":")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",  # the only script that the page's policy allows
        **values,
    )


def render_template(name: str, **values: object) -> str:
    """Render a file of ``templates``; values are escaped in HTML."""
    return _environment().get_template(name).render(**values)


@cache  # compiling a template takes longer than rendering it
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("abag.head.runs", "templates"),
        # the card is Markdown, which the filters `plain` and `code` escape
        autoescape=select_autoescape(["html.j2"], default=False),
        undefined=StrictUndefined,  # an error instead of an empty cell
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": _format_cell,
        "label": lambda name: str(name).replace("_", " "),
        "plain": plain_markdown,
        "code": _code_span,
    }
    return environment


def _read(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _shown(value: Any) -> Any:  # noqa: ANN401
    """Write control and bidirectional characters of names as codes, also inside of lists."""
    if isinstance(value, Mapping):
        return {_shown(name): _shown(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(entry) for entry in value]
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    # pages separate words by no-break spaces
    return "\N{NO-BREAK SPACE}".join(map(printable, value.split("\N{NO-BREAK SPACE}")))


def plain_markdown(text: object) -> str:
    """Escape what Markdown reads as HTML, emphasis, code or a link: names are not ours."""
    line = " ".join(printable(str(text)).split())
    return re.sub(r"[\\`*<&|]|(?<=\])\(", r"\\\g<0>", line)


def _code_span(text: object) -> str:
    """Write text as code in Markdown, between more backticks than it has in a row."""
    shown = printable(str(text)).replace("\n", " ")
    runs = re.findall("`+", shown)
    fence = "`" * (len(max(runs, default="")) + 1)
    return f"{fence} {shown} {fence}" if runs else f"{fence}{shown}{fence}"


def _format_cell(value: object) -> object:
    if value is None:
        return "–"
    if isinstance(value, str):  # an interval stays on one line
        return re.sub(r"\[(\S+), (\S+)\]", "[\\1,\N{NO-BREAK SPACE}\\2]", value)
    return f"{value:.3f}" if isinstance(value, float) else value


def short_name(text: str) -> str:
    """Cut a long name."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def name_antigens(frame: pd.DataFrame) -> pd.Series:
    """Name the antigen of each pair of a run; variants with one name have it in common."""
    keys = "antigen " + frame["antigen_key"].str[:6]
    if "antigen_name" not in frame:
        return keys
    names = frame["antigen_name"].map(short_name)
    return names.where(names != "", keys)


def chart_data(saved: SavedRun) -> dict[str, Any]:
    """Return what the page draws: curves of each regime, and sampled rows that refer to pairs."""
    log = saved.run / "metrics.jsonl"
    texts = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    lines = [json.loads(text) for text in texts]
    baselines = pd.read_parquet(saved.run / "baselines.parquet")  # in the order of the predictions
    ridge = baselines.get("ridge", pd.Series(np.nan, baselines.index))
    tested = saved.tested.assign(ridge=ridge)
    # sort=False: in the order of the summary
    tests = [rows for _, rows in tested.groupby("regime", sort=False)]
    rng = np.random.default_rng(0)  # the same run gives the same page
    drawn = []
    for rows in tests:
        sample = rng.permutation(len(rows))[: MAX_POINTS // len(tests)]
        drawn.append(rows.iloc[sample])
    pairs = np.unique(pd.concat(drawn)["pair"])
    names = name_antigens(saved.frame)
    if "antigen" not in saved.kinds:
        names[:] = "exact"  # beside censored ones in the legend
    digits = chart_digits(saved)
    points = []
    for rows in drawn:
        of_regime = {
            "pair": np.searchsorted(pairs, rows["pair"]).tolist(),
            "predicted": _numbers(rows["pkd_predicted"], digits),
            "sigma": _numbers(rows["sigma"], digits),
        }
        points.append(of_regime)
    views = []
    for rows, regime in zip(tests, saved.summary["regimes"], strict=True):
        views.append(_view(rows, names.to_numpy(str), lines, regime["weights"], saved))
    data: dict[str, Any] = {
        "pairs": _describe_pairs(saved.frame.iloc[pairs], names.iloc[pairs], digits),
        "tests": points,
        "views": views,
    }
    if digits != CHART_DIGITS:
        data["digits"] = digits
    data["learningCurve"] = _learning_curve(saved.summary.get("learning_curve", ()))
    data["quantity"] = str(saved.quantity)
    if rounds := saved.summary.get("rounds"):
        data["campaign"] = _campaign(saved, rounds, digits)
    if (residues := read_residues(saved.run)) is not None:
        data["residues"] = _residues(residues, digits)
        is_latent = bool(saved.quantity.classes)
        data["residues"]["to"] = "latent value (probit)" if is_latent else str(saved.quantity)
    return data


def _campaign(saved: SavedRun, rounds: Sequence[Mapping[str, Any]], digits: int) -> Series:
    """Return the labels of each round, side by side, the best so far, and what was expected."""
    exact = saved.frame[saved.frame["censored"] == 0]
    exact = exact.iloc[:: max(1, -(-len(exact) // MAX_POINTS))]
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, len(exact))
    return {
        "round": _numbers(exact["round"] + spread),
        "measured": _numbers(exact["pkd"], digits),
        "best": _numbers([entry["best_so_far"] for entry in rounds], digits),
        "expected": _numbers([entry["expected_best"] for entry in rounds], digits),
    }


def read_residues(run: Path) -> pd.DataFrame | None:
    """Read what residues contribute; None if no part of the run compares residues."""
    path = run / RESIDUES
    return pd.read_parquet(path) if path.exists() else None


def _residues(residues: pd.DataFrame, digits: int) -> dict[str, Any]:
    """Return the letters of the positions by which predictions of training pairs differ most."""
    place = residues["chain"] + " " + residues["position"]
    pairs = residues["pairs"]
    weighed = pairs * residues["contribution"]
    total = pairs.groupby(place).sum()
    mean = weighed.groupby(place).sum() / total
    variance = (weighed * residues["contribution"]).groupby(place).sum() / total - mean**2
    largest = variance.nlargest(MOST_PLACES)
    row = place.map({name: number for number, name in enumerate(largest.index)})
    drawn = residues[row.notna()]
    return {
        "places": largest.index.tolist(),
        "row": row.dropna().astype(int).tolist(),
        "letter": drawn["residue"].tolist(),
        "pairs": drawn["pairs"].tolist(),
        "x": _numbers(drawn["contribution"], digits),
    }


def _words_of_residues(saved: SavedRun) -> str:
    """Say in which regime residues contribute what is drawn, and what share of it is known."""
    residues = read_residues(saved.run)
    if residues is None:
        return ""
    name, share = residues[["regime", "share"]].iloc[0]
    words = [regime["words"] for regime in saved.summary["regimes"] if regime["regime"] == name]
    return f"{', '.join(words)}, by the parts with {share:.0%} of the weight"


def _learning_curve(curve: Sequence[Mapping[str, Any]]) -> list[list[float | None]]:
    """Return training pairs, Spearman correlation and RMSE of each point."""
    points = []
    for point in curve:
        score = point["score"]
        spearman = None if score["spearman"] is None else score["spearman"]["value"]
        points.append([point["training_pairs"], spearman, score["rmse"]])
    return points


def chart_digits(saved: SavedRun) -> int:
    """Return the digits after the point of labels in charts."""
    exact = saved.frame.loc[saved.frame["censored"] == 0, "pkd"]
    return max(0, saved.quantity.digits(float(exact.std())) + CHART_DIGITS - DIGITS)


def _describe_pairs(frame: pd.DataFrame, antigens: pd.Series, digits: int) -> dict[str, Any]:
    index, names = pd.factorize(antigens)
    return {
        "row": frame["row"].astype(int).tolist(),
        "id": [*map(short_name, frame["id"])] if "id" in frame else None,
        "antibody": [*map(short_name, frame["antibody_name"])]
        if "antibody_name" in frame
        else None,
        "antigen": index.tolist(),
        "antigens": names.tolist(),
        "pkd": _numbers(frame["pkd"], digits),
        "bound": frame["censored"].tolist(),
    }


def _view(
    rows: pd.DataFrame,
    names: np.ndarray,
    log: Sequence[Series],
    weights: Container[str],
    saved: SavedRun,
) -> Series:
    exact = rows[rows["censored"] == 0]
    antigen_rows = exact if "antigen" in saved.kinds else exact[:0]
    digits = chart_digits(saved)
    measured = exact["pkd"].to_numpy(np.float64)
    predicted = exact["pkd_predicted"].to_numpy(np.float64)
    sigma = exact["sigma"].to_numpy(np.float64)
    weight = weights_in(exact)
    error = predicted - measured
    has_sigma = len(exact) > 0 and not saved.quantity.classes
    has_bins = len(exact) > 1
    return {
        "calibration": _calibration(measured, predicted, weight, digits) if has_bins else None,
        "coverage": _coverage(error, sigma, weight) if has_sigma else None,
        "deciles": _deciles(error, sigma, weight, digits) if has_sigma else None,
        "antigens": _antigens(antigen_rows, names[antigen_rows["pair"]]),
        "training": _training(log, set(rows["fold"].tolist())),
        "networkIsUsed": NETWORK in weights,
    }


def _calibration(measured: Floats, predicted: Floats, weight: Floats, digits: int) -> Series:
    order = np.argsort(predicted, kind="stable")
    bins = np.array_split(order, min(10, max(2, len(measured) // 10)))
    mean_measured = _means(measured, bins, weight)
    away = measured.copy()
    for rows, mean in zip(bins, mean_measured, strict=True):
        away[rows] -= mean
    effective = [effective_number(weight[rows]) for rows in bins]
    return {
        "x": _numbers(_means(predicted, bins, weight), digits),
        "y": _numbers(mean_measured, digits),
        "error": _numbers(np.sqrt(_means(away**2, bins, weight) / effective), digits),
        "slope": calibration_slope(measured, predicted, weight),
    }


def _means(values: Floats, bins: Sequence[Ints], weight: Floats) -> Floats:
    """Return the mean of the rows of each bin."""
    return np.array([np.average(values[rows], weights=weight[rows]) for rows in bins])


def _coverage(error: Floats, sigma: Floats, weight: Floats) -> Series:
    distance = np.abs(error) / np.maximum(sigma, 1e-12)
    half_width = ndtri((1 + COVERAGE) / 2)  # in sigmas
    inside = [np.average(distance <= half, weights=weight) for half in half_width]
    return {"x": _numbers(COVERAGE), "y": _numbers(inside)}


def _deciles(error: Floats, sigma: Floats, weight: Floats, digits: int) -> Series:
    bins = np.array_split(np.argsort(sigma, kind="stable"), min(10, len(np.unique(sigma))))
    rmse = np.sqrt(_means(error**2, bins, weight))
    return {"x": _numbers(_means(sigma, bins, weight), digits), "y": _numbers(rmse, digits)}


def _antigens(exact: pd.DataFrame, names: np.ndarray) -> Series:
    """Rank within each antigen and fold; average over the folds, the largest antigens first."""
    fold = exact["fold"].to_numpy(np.int64)
    name = pd.factorize(names, sort=True)[0]
    group: Ints = fold * (name.max(initial=0) + 1) + name
    _, first, count = np.unique(group, return_index=True, return_counts=True)
    antigens = pd.DataFrame({"name": names[first], "rows": count})
    measured = RanksByGroup(exact["pkd"].to_numpy(np.float64), group)
    for column, predicted in (("head", "pkd_predicted"), ("ridge", "ridge")):
        antigens[column] = measured.spearman(exact[predicted].to_numpy(np.float64))
    means = antigens[antigens["head"].notna()].groupby("name").mean().reset_index()
    means = means.sort_values(["rows", "name"], ascending=[False, True]).head(MAX_ANTIGENS)
    return {
        "names": means["name"].tolist(),
        "rows": means["rows"].round().astype(int).tolist(),
        "head": _numbers(means["head"]),
        "ridge": _numbers(means["ridge"]),
    }


def _training(log: Sequence[Series], folds: set[int]) -> Series | None:
    lines = [line for line in log if line.get("fold", 0) in folds]
    if not lines:
        return None
    frame = pd.DataFrame(lines, columns=["step", "loss"])
    frame["fold"] = [line.get("fold", 0) for line in lines]  # one fold is not numbered
    last = int(frame["step"].max())
    bins = min(CURVE_POINTS, last)
    frame["bin"] = (frame["step"] - 1) * bins // last
    loss = frame.groupby(["bin", "fold"])["loss"].mean()
    scored = []
    for line in lines:
        if "validation" in line:
            scored.append({**line["validation"], "epoch": line["epoch"]})
    scores = pd.DataFrame(scored)
    by_epoch = scores.groupby("epoch")
    return {
        "folds": int(frame["fold"].nunique()),
        "step": frame.groupby("bin")["step"].max().tolist(),
        "loss": _over_folds(loss.groupby("bin"), 4),
        "epoch": sorted(scores["epoch"].unique().tolist()),
        "spearman": _over_folds(by_epoch["spearman"]),
        "rmse": _over_folds(by_epoch["rmse"]),
    }


def _over_folds(values: Any, digits: int = 3) -> Series:  # noqa: ANN401 - pandas' own
    statistics = {"low": values.min(), "median": values.median(), "high": values.max()}
    return {
        name: _numbers(statistic.astype(float), digits) for name, statistic in statistics.items()
    }


def _numbers(values: Any, digits: int = 3) -> list[float | None]:  # noqa: ANN401 - array-like
    """Round numbers; JSON has no NaN, and the page leaves out what is null."""
    array: Floats = np.asarray(values, np.float64)
    return [round(x, digits) if np.isfinite(x) else None for x in array.tolist()]


class ReportSummary(TypedDict):
    """What `report` returns, and ``abag report --json`` prints."""

    run: str
    report: str
    model_card: str | None


def report(run: Path | str) -> ReportSummary:
    """Write the report and the model card of a finished run again; nothing else is changed.

    Use it after an update of abag, or for a run that was fitted with ``report=False``.

    Parameters
    ----------
    run : path
        Folder of a finished run.

    Returns
    -------
    ReportSummary
        Paths of the pages.

    Raises
    ------
    NoFinishedRun
        If the run is unfinished or damaged.
    """
    folder = Path(run)
    with naming_damage(folder):
        saved = read_run(folder)
        refuse_read_only(folder, folder / PREDICTOR)
        try:
            write_report(saved)
            card = write_card(folder, saved.config, saved.summary)
        except UndefinedError as error:  # a value that a page shows is missing
            raise ValueError(str(error)) from error
    return {"run": str(run), "report": str(folder / "report.html"), "model_card": card}


def describe_report(summary: ReportSummary) -> str:
    """Name the files that were written, one per line."""
    lines = [f"{'report':10} {summary['report']}"]
    if summary["model_card"] is not None:
        lines.append(f"{'model card':10} {summary['model_card']}")
    return "\n".join(lines)


def write_report(saved: SavedRun) -> None:
    """Write ``report.html``."""
    summary = saved.summary
    quantity = saved.quantity
    regimes = summary["regimes"]
    charts = chart_data(saved)
    shown = sum(len(chart["pair"]) for chart in charts["tests"])
    tested = len(saved.tested)
    sampled = f"Points are a sample of {shown:,} of {tested:,} test rows." if shown < tested else ""
    page = render_page(
        "report.html.j2",
        charts,
        ("page.js", "report.js"),
        title=saved.run.resolve().name,
        quantity=quantity,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        source=summary["data"]["source"],
        digest=saved.config["pairs_digest"],
        regimes=[regime["words"] for regime in regimes],
        kinds=saved.kinds,
        head=["", *columns(quantity, saved.kinds)],
        rows=describe_regimes(regimes, quantity, saved.kinds)[1:],
        verdicts=[regime["sentence"] for regime in regimes],
        not_measured=[f"{regime['words']}: {regime['why']}" for regime in summary["not_measured"]],
        warnings=summary["warnings"],
        scores=[_score_table(regime, saved) for regime in regimes],
        sampled=sampled,
        residues=_words_of_residues(saved),
        least_rows=MIN_ROWS_PER_ANTIGEN,
        most_antigens=MAX_ANTIGENS,
        worst=_largest_errors(saved),
        strong=page_of(summary["strong"], quantity),
        rounds=round_cells(summary.get("rounds", ()), quantity),
        round_columns=COLUMN_NAMES,
        settings=_settings(saved),
    )
    write_text(saved.run / "report.html", page)


def write_card(run: Path, config: Mapping[str, Any], summary: RunSummary) -> str | None:
    """Write the model card of a run's predictor, and return its path; None without predictor."""
    path = run / "predictor/README.md"
    if not path.parent.is_dir():
        return None
    label = layout_of(config).label
    quantity = label.quantity
    head, *rows = describe_regimes(summary["regimes"], quantity, kinds_of(summary))
    adapters = [name for name in ADAPTER_FILES if (path.parent / name).exists()]
    with (path.parent / WEIGHTS).open("rb") as weights:
        record = (path.parent / RECORD).read_bytes()
        files = contents_of(record, weights, [*adapters, path.name])
    card = render_template(
        "model_card.md.j2",
        source=summary["data"]["source"],
        config=config,
        label=label,
        summary=summary,
        head=head,
        rows=rows,
        licences=LICENCES,
        quantity=quantity,
        noise=None if summary["noise"] is None else quantity.show(summary["noise"]),
        files=files,
    )
    write_text(path, card)
    return str(path)


def _settings(saved: SavedRun) -> list[tuple[str, str, str]]:
    data = saved.summary["data"]
    used = saved.summary["used"]
    counts = {
        "pairs": data["pairs"],
        "unique antibodies": data["antibodies"],
        "unique antigens": data["antigens"],
        "censored pairs": int((saved.frame["censored"] != 0).sum()),
    }
    field_names = [field.name for field in schema(FitConfig)]
    config = described(saved.config)
    others = sorted(config.keys() - {*field_names, *IN_CONFIG_ONLY})
    values = {name: config[name] for name in [*field_names, *others]} | counts
    settings = []
    for name, value in values.items():
        chosen = str(used[name]) if used.get(name, value) != value else ""
        settings.append((name.replace("_", " "), str(value), chosen))
    return settings


def _largest_errors(saved: SavedRun) -> dict[str, Any]:
    exact = saved.tested[saved.tested["censored"] == 0]
    mean = exact.groupby("pair")[["pkd", "pkd_predicted", "sigma"]].mean()
    error = mean["pkd_predicted"] - mean["pkd"]
    worst = error.abs().sort_values(ascending=False, kind="stable").index[:LARGEST_ERRORS]
    rows = saved.frame.iloc[worst]
    quantity = saved.quantity
    cells = {"row": rows["row"].tolist()}
    for role in ("id", "antibody_name"):
        if role in rows:
            cells[role.replace("_name", "")] = [*map(short_name, rows[role])]
    if "antigen" in saved.kinds:
        cells["antigen"] = name_antigens(rows).tolist()
    cells |= {
        f"measured ({quantity})": mean["pkd"][worst].tolist(),
        f"predicted ({quantity})": mean["pkd_predicted"][worst].tolist(),
        "predicted − measured": error[worst].tolist(),
        f"sigma ({quantity})": mean["sigma"][worst].tolist(),
    }
    if quantity.is_binary:
        del cells[f"sigma ({quantity})"]
    if not quantity.affinity:  # of any scale
        for name in list(cells)[-3 if quantity.is_binary else -4 :]:
            cells[name] = [quantity.show(value, 3) for value in cells[name]]
    return {"head": [*cells], "rows": [*zip(*cells.values(), strict=True)]}


def _score_table(regime: RegimeSummary, saved: SavedRun) -> dict[str, Any]:
    quantity = saved.quantity
    split = regime["split"]
    names = [name for name, metric in METRICS.items() if metric.in_tables]
    absent = set[str]()
    if "antigen" not in saved.kinds:  # pairs are antibodies
        names.remove("spearman_within_antigen")
        absent = {"antigen", "pair"}
    rows = []
    for model, scores in regime["metrics"].items():
        cells = [_score_cell(name, scores.get(name), quantity) for name in names]
        rows.append([model.replace("_", " "), *cells])
    leaks = []
    for kind, leaks_of_kind in split["leaks_of_all_folds"].items():
        if kind not in absent:
            leaks += [(kind, identity, count) for identity, count in leaks_of_kind.items()]
    clusters = []
    for kind, sizes in split["clusters"].items():
        if kind not in absent:
            for identity, size in sizes.items():
                largest = f"{size['largest_share']:.0%}"
                clusters.append((kind, identity, size["clusters"], largest))
    return {
        "words": regime["words"],
        "head": ["", *(_heading(name, quantity) for name in names)],
        "rows": rows,
        "weights": [(n, f"{w:.2f}", MODELS[n].help) for n, w in regime["weights"].items()],
        "folds": regime["folds"],
        "parts": [*split["rows"].items()],
        "leaks": leaks,
        "clusters": clusters,
    }


def _score_cell(metric: str, value: float | None, quantity: Quantity) -> float | str | None:
    """Return a score; one in the unit of another quantity than an affinity as text."""
    if value is None or quantity.affinity or not METRICS[metric].unit:
        return value
    return quantity.show(value, 3)


def _heading(metric: str, quantity: Quantity) -> dict[str, str]:
    """Return the heading of a column of scores; an arrow marks what is better if it is lower."""
    label = metric_heading(metric, quantity)
    if METRICS[metric].lower_is_better:
        label += "\N{NO-BREAK SPACE}↓"
    return {"label": label, "meaning": METRICS[metric].meaning}


# ---- what a fit leaves in its folder -------------------------------------------------------------


def write_results(
    run: Path,
    inputs: SplitInputs,
    weighed: Sequence[WeighedRegime],
    parts: Parts,
    curve: Sequence[dict[str, Any]],
    *,
    predictor_digest: str,
    report: bool,
    residues: pd.DataFrame | None,
) -> RunSummary:
    """Write predictions, report, card and summary; the summary marks the run as finished."""
    config = read_config(run)
    pairs = inputs.pairs
    tested = _prediction_frame(pairs, weighed)
    baseline_frames = []
    for regime in weighed:
        for fold, split in zip(regime.folds, regime.measured.splits, strict=True):
            rows = split.rows(TEST)
            of_tested = {name: predicted_P[rows] for name, predicted_P in fold.predicted.items()}
            baseline_frames.append(pd.DataFrame(of_tested))
    baseline_frame = pd.concat(baseline_frames, ignore_index=True)
    tables = {
        "predictions.parquet": tested,
        "baselines.parquet": pd.concat([tested[[*KEYS, "fold"]], baseline_frame], axis=1),
        "pairs.parquet": _pair_frame(pairs, inputs.trained),
        MEASURED: measured_rows(pairs),
    }
    if residues is not None:
        tables[RESIDUES] = residues
    for name, frame in tables.items():
        with replacing(run / name) as partial:
            pairs.quantity.outward(frame).to_parquet(partial, index=False)
    threshold = strong_threshold(config["select"], pairs.quantity)
    if pairs.quantity.classes:  # pairs of the highest class are found by its probability
        threshold = len(pairs.quantity.classes) - 1.5
    # products of some thousand numbers: to wake threads for them takes longer
    with limit_blas(1):
        summary = _summarise(run, inputs, weighed, parts, threshold)
    if threshold is not None:
        summary["strong"] = score_strong(
            tested, summary["regimes"], threshold, quantity=pairs.quantity
        )
    if curve:
        first = weighed[0]
        last = curve_point(first.measured.splits, first.score, 1.0)
        summary["learning_curve"] = [*curve, last]
    summary["predictor_digest"] = predictor_digest
    if inputs.history is not None:
        summary["rounds"] = describe_history(pairs, inputs.history)
    if report:
        write_report(read_tables(run, config, summary))
    write_card(run, config, summary)
    write_json(run / "summary.json", summary)  # last: the run is finished
    return summary


def _pair_frame(pairs: LabelledPairs, trained: Ints) -> pd.DataFrame:
    """Return what ``pairs.parquet`` has of each pair: keys, label, clusters, names and round.

    ``unused`` follows if the run was not `trained`, (T,), on all of them.
    """
    frame = pair_keys(pairs).assign(pkd=pairs.pkd, censored=pairs.censored)
    for kind in KINDS:
        cluster_of_pair = getattr(pairs, f"{kind}_cluster")
        if cluster_of_pair is not None:
            frame[f"{kind}_cluster"] = cluster_of_pair
    frame = frame.assign(**_names(pairs))
    if pairs.share is not None:
        frame["weight"] = label_weights(pairs.share)
    if pairs.round_of_row is not None:  # in which each pair was measured first
        frame["round"] = pairs.round_of_row[pairs.row]
    if len(trained) < len(pairs):
        frame["unused"] = ~np.isin(np.arange(len(pairs)), trained)
    return frame


def _names(pairs: LabelledPairs) -> dict[str, Any]:
    table = pairs.table
    columns: dict[str, Any] = {"row": table.row_numbers[pairs.row]}
    for role in NAMES:
        if role in table.columns:
            texts = read_names(table.frame[table.columns[role]].iloc[pairs.row])
            columns[role] = [*map(printable, texts)]
    return columns


def _prediction_frame(pairs: LabelledPairs, weighed: Sequence[WeighedRegime]) -> pd.DataFrame:
    keys = pair_keys(pairs).assign(**_names(pairs))
    weight = None if pairs.share is None else label_weights(pairs.share)
    frames = []
    for regime in weighed:
        rows = regime.tested.rows
        measured = regime.measured
        fold_numbers = np.array([split.fold for split in measured.splits])
        frame = keys.iloc[rows].assign(
            regime=measured.regime.name,
            fold=fold_numbers[regime.tested.fold],
            pair=rows,
            group=measured.groups[0][rows],
            second_group=measured.groups[-1][rows],
            pkd=pairs.pkd[rows],
            censored=pairs.censored[rows],
            pkd_predicted=regime.predicted,
            sigma=regime.sigma,
        )
        if regime.top is not None and not pairs.quantity.is_binary:
            frame = frame.assign(**{PROBABILITY: regime.top})
        frames.append(frame if weight is None else frame.assign(weight=weight[rows]))
    return pd.concat(frames, ignore_index=True)


def _summarise(
    run: Path,
    inputs: SplitInputs,
    weighed: Sequence[WeighedRegime],
    parts: Parts,
    threshold: float | None,
) -> RunSummary:
    pairs = inputs.pairs
    fitted = chain.from_iterable(regime.folds for regime in weighed)
    distinct_folds = {id(fold): fold for fold in fitted}  # regimes share folds
    fits: list[Predictions | Parts] = [*distinct_folds.values(), parts]
    trained = [fold.trained for fold in fits if fold.trained is not None]
    resumed = [heads.resumed_from_step for heads in trained if heads.resumed_from_step is not None]
    final_heads = parts.trained
    not_measured: list[UnmeasuredRegime] = []
    for measured in inputs.regimes:
        if not measured.splits:
            name = measured.regime.name
            words = measured.regime.words
            not_measured.append({"regime": name, "words": words, "why": measured.why_not})
    return {
        "run": str(run),
        "regimes": [_summarise_regime(pairs, regime, threshold) for regime in weighed],
        "not_measured": not_measured,
        "warnings": warnings(pairs, inputs.regimes),
        "steps": sum(heads.steps for heads in trained),
        "epochs": 0 if final_heads is None else final_heads.epochs,
        "seconds": sum(fold.seconds for fold in fits),
        "resumed_from_step": max(resumed, default=None),
        "used": _settings_used([heads.used for heads in trained]),
        "data": _describe_source(pairs),
        "noise": pairs.noise,
        "counts": pairs.counts,
        "strong": {"threshold": threshold, "regimes": []},  # scored by the caller
    }


def _describe_source(pairs: LabelledPairs) -> DataSummary:
    data: DataSummary = {
        "source": pairs.table.source,
        "pairs": len(pairs),
        "antibodies": len(distinct(pairs.antibody)),
        "antigens": len(distinct(pairs.antigen)) if "antigen" in pairs.kinds else 0,
        "quantity": str(pairs.quantity),
    }
    if not pairs.quantity.affinity:
        data["better"] = pairs.quantity.better
    if pairs.quantity.classes:
        data["classes"] = [*pairs.quantity.classes]
    return data


def _summarise_regime(
    pairs: LabelledPairs,
    weighed: WeighedRegime,
    strong_pkd: float | None,
) -> RegimeSummary:
    splits = weighed.measured.splits
    scores_of_folds: dict[str, list[Scores]] = {}
    predicted_of_folds: dict[str, list[Floats]] = {}
    rows_of_folds = []
    for number, (split, fold) in enumerate(zip(splits, weighed.folds, strict=True)):
        rows = split.rows(TEST)
        to_score = rows_to_score(pairs, rows)
        rows_of_folds.append(to_score)
        tested = {"head": weighed.predicted[weighed.tested.fold == number]}
        tested |= {name: predicted_P[rows] for name, predicted_P in fold.predicted.items()}
        for name, predicted_R in tested.items():
            scores_of_fold = to_score.score(predicted_R, strong_pkd)
            scores_of_folds.setdefault(name, []).append(scores_of_fold)
            predicted_of_folds.setdefault(name, []).append(predicted_R)
    scores: dict[str, Scores] = {}
    for name, of_folds in scores_of_folds.items():
        if len(of_folds) < len(splits):  # a baseline that some folds lack
            continue
        scores[name] = {**average_folds(of_folds)}
        for key in scores[name]:
            if key in ("n", "n_censored"):
                scores[name][key] = sum(int(of_fold[key] or 0) for of_fold in of_folds)
            elif strong_pkd is not None and find_metric(key).of_levelled_folds:
                scores[name][key] = score_folds(rows_of_folds, predicted_of_folds[name], key)
    return {
        **weighed.score,
        "folds": len(splits),
        "weights": weighed.mixture.weights,
        "spread": weighed.mixture.spread,
        "noise": weighed.mixture.noise,
        "split": splits[0].description | {"leaks_of_all_folds": total_leaks(splits)},
        "metrics": scores,
    }


def curve_point(splits: Sequence[Split], score: RegimeScore, share: float) -> dict[str, Any]:
    """Return the scores of heads that were fitted to a share of the groups."""
    training_pairs = [len(split.rows(TRAIN)) for split in splits]
    mean = round(float(np.mean(training_pairs)))
    return {"share": share, "training_pairs": mean, "score": score}


def _settings_used(folds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the settings that the folds used; where these differ, their values in one text."""
    used = {}
    for name in folds[0] if folds else ():
        values = list(dict.fromkeys(fold[name] for fold in folds))
        used[name] = values[0] if len(values) == 1 else ", ".join(map(str, values))
    return used
