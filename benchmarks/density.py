"""Print how dense and how well documented Python packages are, as Markdown: abag beside others.

    python benchmarks/density.py [--root CHECKOUT] [NAME=FOLDER ...]

Without arguments, the product of this checkout. A folder is an unpacked package without its tests.
Per 1,000 lines of code: assignments of several unlike values in one statement (not swaps, not the
results of a call), comprehensions, comprehensions in or with several loops, and ``fmt: skip``. Then
expressions per simple statement, the share of bindings that have a name which does not say what
they hold, and the share of public functions, methods and classes with a docstring.
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from mass import OUTSIDE, ROOT, code_lines, python_files

VAGUE = frozenset(("one", "found", "own", "known", "each"))
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SIMPLE = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Expr,
    ast.Return,
    ast.Raise,
    ast.Assert,
    ast.Delete,
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(slots=True)
class Counts:
    """Sums over the files of a package."""

    code_lines: int = 0
    tuple_assignments: int = 0
    comprehensions: int = 0
    nested: int = 0
    skips: int = 0
    """Marks that keep a statement from being formatted."""
    statements: int = 0
    expressions: int = 0
    """Expressions inside simple statements."""
    bindings: int = 0
    vague: int = 0
    public: int = 0
    documented: int = 0

    def __add__(self, other: Counts) -> Counts:
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        return Counts(**sums)


def is_tuple_assignment(node: ast.AST) -> bool:
    """Tell whether a statement assigns several unlike values; a swap does not."""
    if not isinstance(node, ast.Assign):
        return False
    target = node.targets[-1]
    if not isinstance(target, ast.Tuple | ast.List):
        return False
    if not isinstance(node.value, ast.Tuple | ast.List):
        return False
    names = sorted(map(ast.unparse, target.elts))
    values = sorted(map(ast.unparse, node.value.elts))
    return names != values


def is_nested(comprehension: ast.expr) -> bool:
    """Tell whether a comprehension has several loops, or another one inside."""
    if len(comprehension.generators) > 1:
        return True
    inside = (node for node in ast.walk(comprehension) if node is not comprehension)
    return any(isinstance(node, COMPREHENSIONS) for node in inside)


def count(text: str) -> Counts:
    """Count what one file has."""
    tree = ast.parse(text)
    counts = Counts(code_lines=code_lines(text), skips=text.count("fmt: skip"))
    for node in ast.walk(tree):
        counts.tuple_assignments += is_tuple_assignment(node)
        if isinstance(node, COMPREHENSIONS):
            counts.comprehensions += 1
            counts.nested += is_nested(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts.bindings += 1
            counts.vague += node.id in VAGUE
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, SIMPLE) and not is_docstring:
            counts.statements += 1
            counts.expressions += sum(isinstance(part, ast.expr) for part in ast.walk(node))
    for node in public_definitions(tree):
        counts.public += 1
        counts.documented += ast.get_docstring(node) is not None
    return counts


def public_definitions(parent: ast.AST) -> list[ast.AST]:
    """List the functions and classes of a module whose names have no underscore, and methods."""
    definitions = []
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
            definitions.append(node)
            if isinstance(node, ast.ClassDef):
                definitions += public_definitions(node)
    return definitions


def row(name: str, paths: list[Path]) -> str:
    """Return the line of a package in the table."""
    total = Counts()
    for path in paths:
        try:
            total += count(path.read_text(encoding="utf-8"))
        except SyntaxError as error:  # a template, or of another Python
            print(f"{path}: {error}", file=sys.stderr)
    per_thousand = 1000 / max(1, total.code_lines)
    cells = [
        f"{total.code_lines:,}",
        f"{total.tuple_assignments * per_thousand:.1f}",
        f"{total.comprehensions * per_thousand:.1f} / {total.nested * per_thousand:.1f}",
        f"{total.skips * per_thousand:.1f}",
        f"{total.expressions / max(1, total.statements):.1f}",
        f"{total.vague / max(1, total.bindings):.1%}",
        f"{total.documented / max(1, total.public):.0%}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print a line per package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout of abag")
    parser.add_argument("others", nargs="*", metavar="NAME=FOLDER")
    given = parser.parse_args()
    print(
        "| | lines of code | tuple assignments | comprehensions / nested | `fmt: skip` | "
        "expressions per statement | vague names | public with docstring |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    files = python_files(given.root)
    print(row("abag", [path for path, first in files.items() if first not in OUTSIDE]))
    print(row("abag, tests", [path for path, first in files.items() if first == "tests"]))
    for argument in given.others:
        name, _, folder = argument.partition("=")
        paths = sorted(Path(folder).rglob("*.py"))
        print(row(name, [path for path in paths if not {"tests", "test"} & set(path.parts)]))


if __name__ == "__main__":
    main()
