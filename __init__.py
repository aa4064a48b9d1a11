"""abag: encode each antibody and antigen once, train affinity heads in seconds.

`embed_table` encodes the unique sequences of a table into a store; `open_store` reads it, and
`export_vectors` writes its vectors to a file. `fit` trains a head on the stored vectors, `evaluate`
scores it, `predict` and `load_predictor` use it, `scan` predicts mutants, and `rank` chooses what
to measure next. `plan` estimates costs, `runs` compares runs, `report` writes the report of a run
again, `sweep` searches hyperparameters and `adapt_encoders` trains adapters of the encoders. These
names are imported on first use, so that ``import abag`` does not import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from abag.adapt.train import adapt_encoders as adapt_encoders
    from abag.embed.embed import embed_table as embed_table
    from abag.embed.sequences.chains import Kind
    from abag.embed.store.encoder_folder import EncoderFolder
    from abag.embed.store.export import export_vectors as export_vectors
    from abag.embed.store.store import open_store as open_store
    from abag.head.design.options import RankOptions as RankOptions
    from abag.head.design.rank import rank as rank
    from abag.head.design.scan import ScanSummary
    from abag.head.estimators.dataset import dataset as dataset
    from abag.head.fit import fit as fit
    from abag.head.plan import plan as plan
    from abag.head.prediction.options import PredictOptions as PredictOptions
    from abag.head.prediction.predict import PredictSummary
    from abag.head.prediction.predict import predict as predict
    from abag.head.prediction.predictor import Predictor as Predictor
    from abag.head.runs.compare import runs as runs
    from abag.head.runs.evaluate import evaluate as evaluate
    from abag.head.runs.rendering import report as report
    from abag.head.search.sweep import sweep as sweep
    from abag.head.sharing.share import share as share

__version__ = "0.1.0"
# where the checkout keeps the package that is installed as abag.sklearn
__path__.append(str(Path(__file__).parent / "head" / "estimators" / "public"))
__all__ = [
    "AbagError",
    "AdaptConfig",
    "DatasetOptions",
    "EmbedOptions",
    "EvaluateOptions",
    "ExportOptions",
    "FitConfig",
    "PairDataset",
    "PlanOptions",
    "PredictOptions",
    "Predictor",
    "RankOptions",
    "ScanOptions",
    "ShareOptions",
    "Store",
    "SweepOptions",
    "__version__",
    "adapt_encoders",
    "dataset",
    "embed_table",
    "evaluate",
    "export_vectors",
    "fit",
    "load_predictor",
    "open_store",
    "plan",
    "predict",
    "rank",
    "report",
    "runs",
    "scan",
    "share",
    "sweep",
]

_FIT, _EMBED = "abag.head.models.config:FitConfig", "abag.embed.options:EmbedOptions"
_SCORES = "abag.head.report.report:describe_briefly"
_FUNCTIONS = {
    "adapt_encoders": {
        "place": "abag.adapt.train:adapt_encoders",
        "classes": ["abag.adapt.config:AdaptConfig"],
        "shown_by": "abag.adapt.folder:describe_adapter",
    },
    "dataset": {
        "place": "abag.head.estimators.dataset:dataset",
        "classes": ["abag.head.estimators.dataset:DatasetOptions"],
    },
    "embed_table": {
        "place": "abag.embed.embed:embed_table",
        "classes": [_EMBED],
        "shown_by": "abag.embed.embed:describe_embedding",
    },
    "export_vectors": {
        "place": "abag.embed.store.export:export_vectors",
        "classes": ["abag.embed.store.options:ExportOptions"],
        "shown_by": "abag.embed.store.export:describe_export",
    },
    "evaluate": {
        "place": "abag.head.runs.evaluate:evaluate",
        "classes": ["abag.head.runs.options:EvaluateOptions"],
        "shown_by": _SCORES,
    },
    "fit": {"place": "abag.head.fit:fit", "classes": [_FIT], "shown_by": _SCORES},
    "plan": {
        "place": "abag.head.plan:plan",
        "classes": ["abag.head.runs.options:PlanOptions"],
        "shown_by": "abag.head.plan:describe_plan",
    },
    "predict": {
        "place": "abag:_predict",
        "classes": ["abag.head.prediction.options:PredictOptions", _EMBED],
        "shown_by": "abag.head.prediction.predict:describe_prediction",
        "without": "abag.head.prediction.options:SET_BY_RUN",
    },
    "rank": {
        "place": "abag.head.design.rank:rank",
        "classes": ["abag.head.design.options:RankOptions"],
        "shown_by": "abag.head.design.rank:describe_rank",
    },
    "report": {
        "place": "abag.head.runs.rendering:report",
        "shown_by": "abag.head.runs.rendering:describe_report",
        "page": "report",
    },
    "share": {
        "place": "abag.head.sharing.share:share",
        "classes": ["abag.head.sharing.options:ShareOptions"],
        "shown_by": "abag.head.sharing.share:describe_share",
    },
    "runs": {
        "place": "abag.head.runs.compare:runs",
        "shown_by": "abag.head.runs.compare:describe_runs",
    },
    "scan": {
        "place": "abag:_scan",
        "classes": ["abag.head.design.options:ScanOptions", _EMBED],
        "shown_by": "abag.head.design.scan:describe_scan",
        "without": "abag.head.prediction.options:SET_BY_RUN",
    },
    "sweep": {
        "place": "abag.head.search.sweep:sweep",
        "classes": ["abag.head.search.options:SweepOptions", _FIT],
        "shown_by": "abag.head.search.study:describe_trials",
        "without": "abag.head.search.options:CHOSEN_BY_SWEEP",
    },
}
"""Fields of `abag.core.python_surface.PublicFunction` by name."""
_OTHERS = {
    "AdaptConfig": "abag.adapt.config",
    "DatasetOptions": "abag.head.estimators.dataset",
    "EmbedOptions": "abag.embed.options",
    "EvaluateOptions": "abag.head.runs.options",
    "ExportOptions": "abag.embed.store.options",
    "FitConfig": "abag.head.models.config",
    "PairDataset": "abag.head.estimators.dataset",
    "PlanOptions": "abag.head.runs.options",
    "PredictOptions": "abag.head.prediction.options",
    "Predictor": "abag.head.prediction.predictor",
    "RankOptions": "abag.head.design.options",
    "ScanOptions": "abag.head.design.options",
    "ShareOptions": "abag.head.sharing.options",
    "Store": "abag.embed.store.store",
    "SweepOptions": "abag.head.search.options",
    "cache_dir": "abag.core.cache",
    "open_store": "abag.embed.store.store",
}


class AbagError(Exception):
    """Base of all errors that the user can fix.

    The message says where the problem is, what is wrong, what was expected and what to do.
    """


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    from importlib import import_module
    from pkgutil import resolve_name

    if name == "sklearn":
        return import_module("abag.sklearn")
    if name in _FUNCTIONS:
        from abag.core.python_surface import PublicFunction

        found: object = PublicFunction(**_FUNCTIONS[name]).load(name)
    elif name in _OTHERS:
        found = resolve_name(f"{_OTHERS[name]}:{name}")
    else:
        msg = f"module 'abag' has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, those included that are not imported yet."""
    return sorted({*globals(), *__all__})


# These need both stages: head predicts, and embed encodes new sequences.


def encode_like_store(
    store: Path, table: pd.DataFrame, folders: Mapping[Kind, EncoderFolder]
) -> None:
    """Encode what a store lacks of a table, with the encoders of folders in it.

    Parameters
    ----------
    store : path
    table : DataFrame
        Columns ``heavy``, ``light``, ``antigen``.
    folders : mapping
        Folders of the store, by kind.

    Raises
    ------
    AbagError
        If an encoder is not found, or is another one by now.
    """
    from abag.embed.embed import embed_like_folders

    embed_like_folders(table, store, folders)


def load_predictor(path: Path | str) -> Predictor:
    """Load the predictor of a run.

    Parameters
    ----------
    path : path
        Folder of a run, a copy of its folder ``predictor``, or the address of a shared one:
        ``hf://user/name``, optionally with ``@`` and a branch, tag or commit.

    Returns
    -------
    Predictor
        Its ``predict(heavy, light, antigen)`` scores pairs, and encodes sequences that are not in
        the store.

    Raises
    ------
    AbagError
        If a file is missing, damaged or of another version, or the hub cannot be reached.
    """
    from abag.embed.embed import embed_with_same_encoders
    from abag.head.prediction.bundle import load_predictor as load
    from abag.head.sharing.fetch import predictor_folder

    return load(predictor_folder(path), embed=embed_with_same_encoders)


def _predict(
    table: Path | str | pd.DataFrame,
    run: Path | str,
    out: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of PredictOptions, then those of embed_table
) -> PredictSummary:
    """Predict the affinity of the pairs of a table, and write the table with the predictions.

    Parameters
    ----------
    table : path or DataFrame
        Pairs; sequences without a stored vector are encoded.
    run : path
        As for `load_predictor`.
    out : path
        Table to write.
    say : callable, optional
        Receives each message; by default they go to stderr.
    progress : bool
        Whether to draw progress bars on stderr.
    **options
        See `abag.head.prediction.predict.predict`; others are those of `embed_table`.

    Raises
    ------
    AbagError
        If the table, an option or the predictor is invalid, or a file cannot be written.
    """
    from abag.head.prediction.predict import predict as predict_table

    return predict_table(table, load_predictor(run), out, say=say, progress=progress, **options)


def _scan(
    run: Path | str,
    out: Path | str,
    *,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
    **options: Any,  # noqa: ANN401 - the fields of ScanOptions, then those of embed_table
) -> ScanSummary:
    """Predict the mutants of one or more antibodies or antigens, and draw a heat map.

    Parameters
    ----------
    run : path
        Folder of a run, or a copy of its folder ``predictor``.
    out : path
        Table to write; the heat map gets the same name with the suffix ``.html``.
    say, progress
        As for `predict`.
    **options
        See `abag.head.design.scan.scan`; others are those of `embed_table`.

    Raises
    ------
    AbagError
        If a parent, an option or the predictor is invalid, or a file cannot be written.
    """
    from abag.head.design.scan import scan as scan_mutants

    return scan_mutants(load_predictor(run), out, say=say, progress=progress, **options)
