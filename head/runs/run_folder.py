"""The folder of a run: what it is trained on, how it is split, and what it has measured."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import pandas as pd

from abag.core.errors import AbagError, DamagedFile, RunError
from abag.core.files import (
    check_same,
    is_begun,
    read_json,
    replacing,
    sweep_partials,
    why_unreadable,
    write_json,
    write_text,
)
from abag.core.messages import align, counted, first_line, say
from abag.core.options import schema, why_mistyped
from abag.embed.tables.chains import KINDS, Kind
from abag.embed.tables.table import Table
from abag.head.evaluation.metrics import Scores
from abag.head.evaluation.scores import RegimeScore, TestedPairs
from abag.head.evaluation.verdicts import StrongSummary, describe_regimes, describe_strong
from abag.head.labels.column import RunLayout
from abag.head.labels.headers import PKD, Quantity
from abag.head.labels.labelled_pairs import LabelledPairs
from abag.head.labels.options import Label, LabelOptions
from abag.head.models.config import MAY_CHANGE, FitConfig
from abag.head.predictor.folder import refuse_of_another_run
from abag.head.regimes.splits import KEYS, Split, split_frame
from abag.head.runs.rounds import describe_batches, describe_promises, round_cells

RUN_FORMAT = "abag-run 6"
_UNREADABLE = (
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
)
"""What content of the wrong kind raises where it is read."""


def read_config(run: Path) -> dict[str, Any]:
    """Read config.json of a run, or raise `DamagedFile` or `OSError`."""
    path = run / "config.json"
    config = read_json(path)
    if (run_format := config.get("format")) != RUN_FORMAT:
        msg = (
            f"{path}: format {run_format!r} is not supported; this abag reads {RUN_FORMAT!r}. Fit "
            "again into another folder, or use the version of abag that wrote it."
        )
        raise DamagedFile(msg)
    try:
        for option in schema(FitConfig):
            option.parse(config[option.name])
        layout_of(config)
    except KeyError as error:
        reason = f"{error.args[0]} is missing"
    except (AbagError, TypeError, ValueError) as error:
        reason = f"holds what no fit writes ({first_line(error).rstrip('.')})"
    else:
        return config
    msg = f"{path}: {reason}. Copy the whole run folder again."
    raise DamagedFile(msg)


def layout_of(config: Mapping[str, Any]) -> RunLayout:
    """Return what the columns of a run's table are, from its config.json."""
    return RunLayout.of_json(config["layout"])


def described(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json as it is shown and compared: with the label's meaning."""
    label = config["layout"]["label"]
    values = {name: value for name, value in config.items() if name != "layout"}
    values |= {f"label_{name}": label[name] for name in ("column", "unit", "why")}
    return values | {"quantity": label["quantity"]}


def labels_as_in_the_run(
    config: Mapping[str, Any],
    table: Table,
    *,
    label: Label | None,
    molar_mass: str | None,
    affinity_type: str | None = None,
) -> LabelOptions:
    """Return the label options of a run for another table, but not its unit and what is in it.

    What is given wins. Without a column of affinity types, that of the run does not apply.
    """
    settings = {field.name: config[field.name] for field in fields(LabelOptions)}
    settings |= {
        "label": label,
        "better": None,
        "unit": None,
        "no_binding": None,
        "no_binding_empty": False,
        "molar_mass": molar_mass or config["molar_mass"],
    }
    options = LabelOptions(**settings)
    if affinity_type is not None:
        return replace(options, affinity_type=affinity_type)
    if options.affinity_type is None or table.has("affinity_type"):
        return options
    say(f"{table.source}: no column affinity_type; all rows are used as {options.affinity_type!r}")
    return replace(options, affinity_type=None)


def training_logs(run: Path) -> list[Path]:
    """Return the logs of the trainings of an unfinished run's folds."""
    folder = run / "checkpoints"
    return [*folder.glob("log.jsonl"), *sorted(folder.glob("stack-*/log.jsonl"))]


def join_logs(run: Path) -> None:
    """Write the logs of the trainings of all folds to one file."""
    logs = training_logs(run)
    if logs:  # a head in closed form has none
        text = "".join(log.read_text(encoding="utf-8") for log in logs)
        write_text(run / "metrics.jsonl", text)


def finished_summary(run: Path, record: Mapping[str, Any]) -> RunSummary | None:
    """Return the summary of a finished run, or None if there is something left to train.

    A folder of another run than that of `record`, the config.json of this command, is refused.
    """
    if not is_begun(run, "config.json", "run", "--run"):
        return None
    before = read_config(run)
    check_same(run, described(before), described(record), MAY_CHANGE, "--run")
    epochs = before["epochs"]
    if record["epochs"] < epochs:
        msg = (
            f"{run}: was started with epochs = {epochs}, and now has {record['epochs']}; "
            "expected as many or more. Give "
            f"--epochs {epochs}, or use another --run folder."
        )
        raise RunError(msg)
    if not (run / "summary.json").exists() or epochs != record["epochs"]:
        return None
    refuse_of_another_run(run)
    return read_summary(run)


def refuse_other_splits(run: Path, pairs: LabelledPairs, splits: Sequence[Split]) -> None:
    """Refuse to go on with a run that was started with other splits: its test pairs would leak."""
    path = run / "splits.parquet"
    if not path.exists():
        return
    content = path.read_bytes()  # what a disk refuses is no damage
    try:
        is_same = pd.read_parquet(BytesIO(content)).equals(split_frame(pairs, splits))
    except (ValueError, LookupError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        msg = f"{path}: damaged ({reason}). Restore it, or use another --run folder."
        raise DamagedFile(msg) from error
    if not is_same:
        msg = (
            f"{path}: differs from the split that the options give now; expected the same split. "
            "Undo what changed, such as a split file, or use another --run folder."
        )
        raise RunError(msg)


def start_run(
    run: Path, record: Mapping[str, Any], pairs: LabelledPairs, splits: Sequence[Split]
) -> None:
    """Write the configuration and the splits; the run is unfinished from here on."""
    refuse_other_splits(run, pairs, splits)
    sweep_partials(run)
    (run / "summary.json").unlink(missing_ok=True)  # it says that a run is finished
    # both are followed: the absolute path, and this one if run and store have moved together
    from_run = os.path.relpath(Path(record["store"]).resolve(), run.resolve())
    content = {**record, "format": RUN_FORMAT, "store_from_run": from_run}
    write_json(run / "config.json", content, sort_keys=True)  # first: it marks the folder as a run
    with replacing(run / "splits.parquet") as partial:
        split_frame(pairs, splits).to_parquet(partial, index=False)


# ---- a finished run ------------------------------------------------------------------------------


class NoFinishedRun(RunError):
    """A folder does not contain a finished run, or it is damaged."""


class RegimeSummary(RegimeScore):
    """What is known of a measured regime."""

    folds: int
    weights: Mapping[str, float]
    """Weight of each part of the prediction, with sum 1."""
    spread: float
    noise: float
    split: dict[str, Any]
    """Rows per part, clusters and leaks of the folds."""
    metrics: dict[str, Scores]
    """Scores on the test pairs, averaged over folds: of the ``head`` and of the baselines. Those
    of strong binders have their threshold in the name, ``recall_at_9`` and the like; a
    ``--select`` with another threshold adds its own. The average precision is that of all folds
    together, see `level_folds`."""


class UnmeasuredRegime(TypedDict):
    """A regime that a table does not allow to measure."""

    regime: str
    words: str
    why: str


class DataSummary(TypedDict):
    """What a run was trained on."""

    source: str
    """Name of the table."""
    pairs: int
    antibodies: int
    antigens: int
    quantity: str
    """Of the labels with its unit, such as pKd, pIC50 or Tm (°C)."""
    better: NotRequired[str]
    """Which values are better, ``higher`` or ``lower``, of another quantity than an affinity."""
    classes: NotRequired[list[str]]
    """Names of the classes that labels are, the lowest first."""


class RunSummary(TypedDict):
    """Content of summary.json: what ``fit`` and ``evaluate`` return."""

    run: str
    regimes: list[RegimeSummary]
    """Those that were measured: the table that everybody should see."""
    not_measured: list[UnmeasuredRegime]
    """The other regimes."""
    warnings: list[str]
    steps: int
    epochs: int
    """Of the networks that were fitted to all pairs; 0 without any, as where none has weight."""
    seconds: float
    resumed_from_step: int | None
    used: dict[str, Any]
    """Settings that the run chose itself; several values if folds differ."""
    data: DataSummary
    noise: float | None
    counts: Mapping[str, int]
    strong: StrongSummary
    """How well strong binders are found; strong is 9.0, or the threshold of ``--select``. Other
    quantities than affinities have no threshold unless one is given: then no ``regimes``."""
    predictor_digest: NotRequired[str]
    """Digest of the run's predictor; another one in its folder is refused."""
    rounds: NotRequired[list[dict[str, Any]]]
    """With ``--add``, each ``round`` of the campaign: its ``source``, new ``pairs``, their ``best``
    label, how many are ``better`` than all before, ``best_so_far``, the ``expected_best`` that
    `rank` promised, and the ``errors`` of the predictions that came back with the results:
    ``pairs``, ``rmse``, ``bias`` and ``sigma``, and any ``missed_bounds``."""
    learning_curve: NotRequired[list[dict[str, Any]]]
    """With ``--learning-curve``: ``share`` of the training groups, mean number of
    ``training_pairs`` and ``score`` of the first regime. The last point is the run itself."""
    table: NotRequired[dict[str, Any]]
    """What ``evaluate`` adds for another table: ``regimes`` and ``metrics`` (scores), ``pairs``,
    how many are ``in_training`` and ``far``, ``bias`` (predicted minus measured, in pKd, by labels
    and bounds) with its 95 % ``bias_interval`` over groups, ``rmse_without_bias`` of labels, and
    these as a ``sentence``."""
    predictions: NotRequired[dict[str, Any]]
    """What it adds for a file of predictions: ``regimes`` (scores) and ``verdicts``."""
    strong_at: NotRequired[StrongSummary]
    """The same for ``evaluate --strong``; of the table, if one is given."""


def kinds_of(summary: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the kinds of sequences that a run has, of which its summary counts the antigens."""
    return KINDS if summary["data"]["antigens"] else KINDS[:1]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The contents of a finished run's folder."""

    run: Path
    config: Mapping[str, Any]
    summary: RunSummary
    frame: pd.DataFrame
    """Rows of ``pairs.parquet``, (P,); ``antibody`` and ``antigen`` are numbers by keys."""
    tested: pd.DataFrame
    """Rows of ``predictions.parquet``: the test pairs of each fold of each regime."""

    @property
    def quantity(self) -> Quantity:
        """What the labels are; as text, its name and unit."""
        return self.layout.label.quantity

    @property
    def layout(self) -> RunLayout:
        """What the columns of its table are."""
        return layout_of(self.config)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of sequences that the run has."""
        return kinds_of(self.summary)

    @property
    def trained(self) -> pd.DataFrame:
        """Rows of `frame` that the run was trained on: all that are not unused."""
        return self.frame[~self.frame["unused"]] if "unused" in self.frame else self.frame

    def regimes(self) -> Iterator[tuple[Mapping[str, Any], pd.DataFrame, TestedPairs]]:
        """Yield the summary of each regime, and its test rows in two forms."""
        weighted = "weight" in self.frame
        for regime in self.summary["regimes"]:
            rows = self.tested[self.tested["regime"] == regime["regime"]]
            pair = rows["pair"].to_numpy(np.int64)
            group = rows["group"].to_numpy(np.int64)
            second_group = rows["second_group"].to_numpy(np.int64)
            tested = TestedPairs(
                rows=pair,
                pkd=rows["pkd"].to_numpy(np.float64),
                fold=rows["fold"].to_numpy(np.int64),
                antibody=self.frame["antibody"].to_numpy(np.int64)[pair],
                antigen=self.frame["antigen"].to_numpy(np.int64)[pair],
                groups=[group] if np.array_equal(group, second_group) else [group, second_group],
                weight=self.frame["weight"].to_numpy(np.float64)[pair] if weighted else None,
                censored=rows["censored"].to_numpy(np.int8),
                kinds=self.kinds,
            )
            yield regime, rows, tested


def read_summary(run: Path) -> RunSummary:
    """Read summary.json of a run, which may have moved, or raise `DamagedFile` or `OSError`."""
    path = run / "summary.json"
    summary = {**read_json(path), "run": str(run)}
    reason = why_mistyped(summary, RunSummary)
    if not reason:
        rounds = summary.get("rounds", ())
        try:
            describe_regimes(summary["regimes"])
            round_cells(rounds, PKD)
            describe_batches(rounds, PKD)
        except (LookupError, TypeError, ValueError) as error:
            reason = f"its scores or rounds are damaged ({first_line(error)})"
    if reason:
        msg = f"{path}: {reason}. Copy the whole run folder again."
        raise DamagedFile(msg)
    return cast("RunSummary", summary)


def read_run(run: Path) -> SavedRun:
    """Read the folder of a finished run, or raise `NoFinishedRun`."""
    with naming_damage(run):
        refuse_of_another_run(run)
        return read_tables(run, read_config(run), read_summary(run))


def read_tables(run: Path, config: Mapping[str, Any], summary: RunSummary) -> SavedRun:
    """Read the tables of a run, whose summary may not be written yet."""
    quantity = layout_of(config).label.quantity
    frame = quantity.inward(pd.read_parquet(run / "pairs.parquet"), "pkd")
    tested = quantity.inward(pd.read_parquet(run / "predictions.parquet"), "pkd", "pkd_predicted")
    labels = [*KEYS, "pkd", "censored"]
    # files of two runs may have been copied into one folder
    same = frame[labels].iloc[tested["pair"]].reset_index(drop=True)
    if not same.equals(tested[labels]):
        msg = f"{run}: predictions.parquet and pairs.parquet belong to different runs"
        raise ValueError(msg)
    for kind in ("antibody", "antigen"):
        frame[kind] = pd.factorize(frame[f"{kind}_key"], sort=True)[0]
    return SavedRun(run, config, summary, frame, tested)


@contextmanager
def naming_damage(run: Path) -> Iterator[None]:
    """Raise `NoFinishedRun`, in one line, for what missing and damaged files of a run raise."""
    try:
        yield
    except DamagedFile as error:
        raise NoFinishedRun(str(error)) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = (
            f"{run}: not a finished run ({why_unreadable(run, error)}). Check the path, or run "
            "abag fit on it until it ends."
        )
        raise NoFinishedRun(msg) from error
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of its content
            where = run if error.filename is None else os.fsdecode(error.filename)
            msg = (
                f"{where}: cannot be read ({error.strerror or first_line(error)}); expected a file "
                "of a run that this user may read. Change its permissions, or try again."
            )
            raise NoFinishedRun(msg) from error
        reason = why_unreadable(run, error).rstrip(".")
        msg = f"{run}: a file of the run is damaged ({reason}). Copy the whole run folder again."
        raise NoFinishedRun(msg) from error


# ---- its scores as text --------------------------------------------------------------------------


def describe_scores(summary: Mapping[str, Any]) -> str:
    """Lay out the scores in a summary of `fit` or `evaluate`: of what was given first."""
    lines = _describe_given(summary, _describe_regimes)
    if lines:
        lines += ["", f"{summary['run']}, cross-validated:"]
    return "\n".join([*lines, *_describe_regimes(summary["regimes"], summary)])


def _describe_given(
    summary: Mapping[str, Any],
    lay_out: Callable[[Sequence[Mapping[str, Any]], Mapping[str, Any]], list[str]],
) -> list[str]:
    """Lay out the scores of another table or of predictions, and how strong binders are found."""
    lines = list[str]()
    if "table" in summary:
        of_table = summary["table"]
        far = f", {of_table['far']:,} outside training data" if of_table["far"] else ""
        lines.append(f"{of_table['source']}: {counted(of_table['pairs'], 'pair')}{far}")
        lines += lay_out(of_table["regimes"], summary)
        lines += filter(None, [of_table["sentence"]])
    if "predictions" in summary:
        of_predictions = summary["predictions"]
        lines.append(f"{of_predictions['source']}:")
        lines += [*lay_out(of_predictions["regimes"], summary), *of_predictions["verdicts"]]
    if "strong_at" in summary:
        quantity = recorded_quantity(summary["data"])
        lines += ["", *describe_strong(summary["strong_at"], quantity)]
    return lines


def recorded_quantity(data: Mapping[str, Any]) -> Quantity:
    """Return what a run predicts, from the data of its summary, with its unit in the name."""
    return Quantity(
        name=data.get("quantity", "pKd"),
        better=data.get("better", "higher"),
        affinity="better" not in data,
        classes=tuple(data.get("classes", ())),
    )


def describe_fit(summary: Mapping[str, Any], *, verbose: bool = False) -> str:
    """Describe a finished fit: the table that everybody should see, and what it means.

    Without `verbose` the table has the scores that decide, and says how to see all.
    """
    lines = _describe_data(summary)
    lines += _describe_regimes(summary["regimes"], summary, deciding=not verbose)
    lines += _describe_promises(summary)
    lines += [f"{regime['words']}: {regime['why']}" for regime in summary["not_measured"]]
    run = Path(summary["run"])
    places = {"report": run / "report.html", "predictor": run / "predictor"}
    lines += [f"{name:10} {path}" for name, path in places.items() if path.exists()]
    if summary["regimes"] and not verbose:
        lines.append(f"{'scores':10} abag evaluate --run {shlex.quote(summary['run'])}")
    return "\n".join(lines)


def describe_briefly(summary: Mapping[str, Any]) -> list[str]:
    """Describe a finished fit for a notebook: verdicts, problems, then the table."""
    lines = _describe_data(summary)
    lines += [regime["sentence"] for regime in summary["regimes"]]
    lines += _describe_promises(summary)
    lines += summary["warnings"]
    lines += align(_lay_out(summary["regimes"], summary, deciding=True))
    return lines


def _describe_promises(summary: Mapping[str, Any]) -> list[str]:
    quantity = recorded_quantity(summary["data"])
    return describe_promises(summary["regimes"], summary.get("rounds", ()), quantity)


def describe_evaluation(summary: Mapping[str, Any]) -> list[str]:
    """Describe an evaluation for a notebook: the scores of what was given come first."""
    lines = _describe_given(summary, _scores_first)
    of_run = describe_briefly(summary)
    if lines:
        run, _, data = of_run[0].rpartition(": ")
        of_run[0] = f"{run}, cross-validated: {data}"
    return [*lines, *of_run]


def _scores_first(regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[str]:
    if not regimes:
        return ["too few pairs of any kind to score"]
    table = align(_lay_out(regimes, summary, deciding=True))
    return [*table, *(regime["sentence"] for regime in regimes)]


def _describe_data(summary: Mapping[str, Any]) -> list[str]:
    data = summary["data"]
    antigens = f" and {counted(data['antigens'], 'antigen')}" if data["antigens"] else " alone"
    return [
        f"{summary['run']}: {counted(data['pairs'], 'pair')} of "
        f"{counted(data['antibodies'], 'antibody')}{antigens}"
    ]


def _lay_out(
    regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, deciding: bool
) -> list[list[str]]:
    quantity = recorded_quantity(summary["data"])
    return describe_regimes(regimes, quantity, kinds_of(summary), deciding=deciding)


def _describe_regimes(
    regimes: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, deciding: bool = False
) -> list[str]:
    """Lay out scores, a column per regime, of which two fit into 80 columns; then the verdicts."""
    if not regimes:
        return ["too few pairs of any kind to score"]
    names, *lines_of_scores = zip(*_lay_out(regimes, summary, deciding=deciding), strict=True)
    above = []
    below = []
    for words in names:  # such as "known antibodies, new antigens"
        first, comma, second = words.partition(", ")
        above.append(first + comma.strip())
        below.append(second)
    table = [above, below] if any(below) else [above]
    lines = align([*table, *map(list, lines_of_scores)])
    return [*lines, *(regime["sentence"] for regime in regimes)]
