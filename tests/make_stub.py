"""Write ``__init__.pyi``: the public functions with every option, for type checkers and editors.

python tests/make_stub.py > types.pyi && mv types.pyi __init__.pyi
"""

import inspect

import abag
from abag.core.python_surface import PublicFunction
from abag.head.estimators.scikit import PairEstimator

HEADER = '''\
"""Types of the public names; written by tests/make_stub.py from the declared options."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:  # type checkers resolve import cycles by leaving such imports to the end
{imports}

__version__: str
_FUNCTIONS: dict[str, tuple[str, ...]]
_MEANWHILE: str
__all__ = [
{names}
]

'''


def stub():
    imports = [
        f"    from abag.{module} import {name} as {name}" for name, module in abag._OTHERS.items()
    ]
    imports += [f"    from {module} import {name}" for name, module in TYPES.items()]
    imports += ["    import abag.sklearn"]
    names = "\n".join(f'    "{name}",' for name in abag.__all__)
    text = HEADER.format(imports="\n".join(sorted(imports)), names=names)
    of_dataset = PublicFunction("dataset", *abag._FUNCTIONS["dataset"]).signature()
    of_estimator = inspect.signature(PairEstimator)
    text += keywords("_DatasetKeywords", of_dataset, ())
    text += keywords("_EstimatorKeywords", of_estimator, ("columns", "encode", "verbose"))
    return text + "".join(map(function, abag._FUNCTIONS))


TYPES = {
    "AdaptSummary": "abag.adapt.train", "EmbedSummary": "abag.embed.embed",
    "ExportSummary": "abag.embed.export", "ResidueSummary": "abag.embed.residues",
    "ResidueVectors": "abag.embed.residues", "AnyTable": "abag.core.frames",
    "AnyTables": "abag.core.frames",
    "Plan": "abag.head.plan", "PredictSummary": "abag.head.predictor.scoring",
    "RankSummary": "abag.head.design.rank", "RunSummary": "abag.head.runs.run_folder",
    "RunsSummary": "abag.head.runs.compare", "ReportSummary": "abag.head.runs.report",
    "ScanSummary": "abag.head.design.scan", "ShareSummary": "abag.head.share",
    "SweepSummary": "abag.head.sweep",
}  # fmt: skip


def keywords(name, signature, named):
    """Return the types of the keywords of a method, without those that it names itself."""
    lines = [f"class {name}(TypedDict, total=False):"]
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in named:
            lines.append(f"    {parameter.name}: {parameter.annotation}")
    return "\n".join([*lines, "\n"])


def function(name):
    signature = PublicFunction(name, *abag._FUNCTIONS[name]).signature()
    lines = [f"def {name}("]
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
            keyword_only = True
        if parameter.default is parameter.empty:
            default = ""
        elif isinstance(parameter.default, str | int | float | None):
            default = f" = {parameter.default!r}"
        else:
            default = " = ..."
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    return "\n".join([*lines, f") -> {signature.return_annotation}: ..."]) + "\n"


if __name__ == "__main__":
    print(stub(), end="")
