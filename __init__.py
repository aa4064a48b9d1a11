"""abag: encode each antibody and antigen once, train affinity heads in seconds.

`embed_table` encodes the unique sequences of a table into a store; `open_store` reads it, and
`export_vectors` writes its vectors to a file; `residues` and `export_residues` give one vector per
residue. `fit` trains a head on the stored vectors, `evaluate`
scores it, `predict` and `load_predictor` use it, `scan` predicts mutants, and `rank` chooses what
to measure next. `plan` estimates costs, `runs` compares runs, `report` writes the report of a run
again, `sweep` searches hyperparameters and `adapt_encoders` trains adapters of the encoders. These
names are imported on first use: ``import abag`` imports no torch. Types: ``__init__.pyi``.
"""

from __future__ import annotations

from pathlib import Path as _Path

from abag.core import errors as _errors

__version__ = "1.0.0"
# where the checkout keeps the package that is installed as abag.sklearn
if "__path__" in globals():  # not where pytest reads a checkout in a folder of another name
    __path__.append(str(_Path(__file__).parent / "head" / "estimators" / "public"))

_FIT = "head.models.config:FitConfig"
_SCORES = "head.runs.run_folder:describe_briefly"
_FUNCTIONS = {
    "adapt_encoders": ("adapt.train", "describe_adapter", "adapt.config:AdaptConfig"),
    "dataset": ("head.estimators.dataset", "", "head.estimators.dataset:DatasetOptions"),
    "embed_table": ("embed.embed", "describe_embedding", "embed.options:EmbedOptions"),
    "evaluate": (
        "head.runs.evaluate",
        "head.runs.run_folder:describe_evaluation",
        "head.predictor.options:EvaluateOptions",
    ),
    "export_vectors": ("embed.export", "describe_export", "embed.options:ExportOptions"),
    "export_residues": (
        "embed.residues",
        "describe_residues",
        "core.options:EncoderOptions",
        "embed.options:ResidueFileOptions",
    ),
    "fit": ("head.fit", _SCORES, _FIT),
    "plan": ("head.plan", "describe_plan", "head.predictor.options:PlanOptions"),
    "predict": (
        "head.predictor.scoring",
        "describe_prediction",
        "head.predictor.options:PredictOptions",
    ),
    "rank": ("head.design.rank", "describe_rank", "head.predictor.options:RankOptions"),
    "report": ("head.runs.report", "describe_report"),
    "residues": (
        "embed.residues",
        "",
        "core.options:EncoderOptions",
        "embed.options:ResidueOptions",
    ),
    "runs": ("head.runs.compare", "describe_runs"),
    "scan": ("head.design.scan", "describe_scan", "head.predictor.options:ScanOptions"),
    "share": ("head.share", "describe_share", "head.predictor.options:ShareOptions"),
    "sweep": (
        "head.sweep",
        "describe_trials",
        "head.predictor.options:SweepOptions",
        _FIT,
    ),
}
"""By public function: its module, the function that describes its result, its option classes."""


_MEANWHILE = "head.prepare:preparing"
"""What prepares stage two on idle cores while a GPU encodes; stage one does not know it."""


def _option_classes() -> dict[str, str]:
    """Return the module of each option class, by its name."""
    modules: dict[str, str] = {}
    for _, _, *places in _FUNCTIONS.values():
        for place in places:
            module, name = place.split(":")
            modules[name] = module
    return modules


_OTHERS = {
    "PairDataset": "head.estimators.dataset",
    "Predictor": "head.predictor.predictor",
    "Store": "head.estimators.python_store",
    "load_predictor": "head.predictor.scoring",
    "open_store": "head.estimators.python_store",
    **_option_classes(),
}
"""Modules of the other public names."""
_OTHERS |= {name: "core.errors" for name, kind in vars(_errors).items() if isinstance(kind, type)}
__all__ = sorted(["__version__", *_FUNCTIONS, *_OTHERS])


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    from importlib import import_module
    from pkgutil import resolve_name

    if name == "sklearn":
        return import_module("abag.sklearn")
    if name in _FUNCTIONS:
        from abag.core.python_surface import PublicFunction

        value: object = PublicFunction(name, *_FUNCTIONS[name]).load()
    elif name in _OTHERS:
        value = resolve_name(f"abag.{_OTHERS[name]}:{name}")
    else:
        msg = f"module 'abag' has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, also those that are not imported yet."""
    return [*__all__, "sklearn"]
