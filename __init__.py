"""abag: encode each antibody and antigen once, train affinity heads in seconds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from abag.adapt.train import adapt_encoders as adapt_encoders
    from abag.embed.pipeline.run import embed_table as embed_table
    from abag.embed.store.store import open_store as open_store
    from abag.head.fit import fit as fit
    from abag.head.plan import plan as plan
    from abag.head.prediction.predict import PredictSummary
    from abag.head.prediction.predictor import Predictor
    from abag.head.runs.compare import runs as runs
    from abag.head.runs.evaluate import evaluate as evaluate
    from abag.head.search.sweep import sweep as sweep

__version__ = "0.1.0"
__all__ = [
    "AbagError",
    "__version__",
    "adapt_encoders",
    "embed_table",
    "evaluate",
    "fit",
    "load_predictor",
    "open_store",
    "plan",
    "predict",
    "runs",
    "sweep",
]

_HOMES = {
    "adapt_encoders": "abag.adapt.train",
    "embed_table": "abag.embed.pipeline.run",
    "open_store": "abag.embed.store.store",
    "evaluate": "abag.head.runs.evaluate",
    "fit": "abag.head.fit",
    "sweep": "abag.head.search.sweep",
    "plan": "abag.head.plan",
    "runs": "abag.head.runs.compare",
}


class AbagError(Exception):
    """Something a person can mend; its text says where, what, what was expected and what to do."""


def cache_dir() -> Path:
    """Folder for what can be made again: digests of weights, tiny checkpoints, clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "abag"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"abag-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def __getattr__(name: str) -> object:
    """Import the public functions on first use, so that ``import abag`` loads no torch."""
    if name not in _HOMES:
        msg = f"module 'abag' has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


# The verbs that need both rooms: what scores is in head, what encodes new sequences in embed.


def load_predictor(path: Path | str) -> Predictor:
    """Read a predictor, from a run's folder or from a bundle that somebody handed on.

    Its ``predict(heavy, light, antigen)`` scores pairs, and says when it encodes what is new.

    Raises
    ------
    AbagError
        If a file is missing, altered, cut or of another version.
    """
    from abag.embed.pipeline.same_encoders import embed_with_same_encoders
    from abag.head.prediction.bundle import load_predictor as load

    return load(path, embed=embed_with_same_encoders)


def predict(
    table: Path | str | pd.DataFrame,
    run: Path | str,
    out: Path | str,
    **options: Any,  # noqa: ANN401 - the fields of PredictOptions, then those of embed_table
) -> PredictSummary:
    """Score a table's pairs with a run's predictor, and write them beside their scores.

    See `abag.head.prediction.predict.predict`, which this calls with a way to encode what is new.
    """
    from abag.head.prediction.predict import predict as predict_table

    return predict_table(table, load_predictor(run), out, **options)
