"""Print the size of abag in modules and lines, as Markdown: the product's by package, and the tests'.

    python benchmarks/mass.py [CHECKOUT]

The product is what is installed: Python files outside tests, benchmarks, docs and packaging. Only
files that git tracks count, so that the links of a strict editable install in build/ do not.
Code lines have neither only a comment nor only part of a docstring, and are not empty. Below the
table: modules of the product that hold more than a docstring; lines of the product with a comment,
other than marks for tools; how long the bodies of its functions are, docstrings left out; and the
words of the pages.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "embed", "head", "adapt")
OUTSIDE = ("tests", "benchmarks", "docs", "packaging", "notebooks", "data")


def sizes(paths: list[Path]) -> tuple[int, int, int]:
    """Return the number of files, of their lines and of their lines of code."""
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return len(texts), sum(text.count("\n") for text in texts), sum(map(code_lines, texts))


def code_lines(text: str) -> int:
    """Count the lines that hold code."""
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(x.strip()) and x.strip()[0] != "#" for i, x in lines if i not in documented)


def holds_code(text: str) -> bool:
    """Tell whether a module holds more than a docstring, unlike most files of packages."""
    return code_lines(text) > 0


def count_comments(text: str) -> int:
    """Count the comments that are for readers."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [comment.string for comment in tokens if comment.type == tokenize.COMMENT]
    return sum(not re.match(r"#\s*(noqa|fmt:|type:|mypy:|---)", comment) for comment in comments)


def body_lengths(text: str) -> list[int]:
    """Return the lines of the body of each function."""
    lengths = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lengths.append(body[-1].end_lineno - body[0].lineno + 1 if body else 0)
    return lengths


def python_files(root: Path) -> dict[Path, str]:
    """Return each tracked Python file of a checkout and its first folder."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True
    )
    names = [name for name in listed.stdout.splitlines() if (root / name).exists()]
    return {root / name: Path(name).parts[0] for name in names}


def count_reaches(tests: list[Path], inside: set[str]) -> tuple[int, int, int]:
    """Count how tests reach inside: modules of abag imported, files that import any, patches.

    `inside` are the names of all modules. Of ``from abag.core import files``, that of files counts.
    """
    modules = set()
    reaching = 0
    patches = 0
    for path in tests:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("abag."):
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= named & inside or {node.module}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                is_patch = isinstance(owner, ast.Name) and owner.id in ("monkeypatch", "patch")
                patches += is_patch and node.func.attr == "setattr"
        modules |= imported
        reaching += bool(imported)
    return len(modules), reaching, patches


def main() -> None:
    """Print the size of the project."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    files = python_files(root)
    product = [path for path, first in files.items() if first not in OUTSIDE]
    rows = {"product": product}
    rows["root (`cli.py`, `__init__.py`)"] = [path for path in product if path.parent == root]
    for name in PACKAGES:
        here = [path for path in product if files[path] == name]
        rows[f"`{name}`"] = here
        for folder in sorted({path.relative_to(root).parts[1] for path in here}):
            if not folder.endswith(".py"):
                rows[f"- `{name}/{folder}`"] = [
                    p for p in here if p.is_relative_to(root / name / folder)
                ]
    rows["tests"] = [path for path, first in files.items() if first == "tests"]
    rows["benchmarks"] = [path for path, first in files.items() if first == "benchmarks"]
    print("| | files | lines | code lines |\n|---|--:|--:|--:|")
    for name, paths in rows.items():
        print(f"| {name} | {' | '.join(f'{n:,}' for n in sizes(paths))} |")
    names = {".".join(("abag", *path.relative_to(root).with_suffix("").parts)) for path in product}
    modules, reaching, patches = count_reaches(rows["tests"], names)
    print(
        f"\nTests import {modules} modules below the root, in {reaching} files of theirs, and replace "
        f"{patches} attributes."
    )
    texts = [path.read_text(encoding="utf-8") for path in product]
    print(f"\n{sum(map(holds_code, texts))} modules of the product hold more than a docstring.")
    share = sum(map(count_comments, texts)) / sum(text.count("\n") for text in texts)
    lengths = []
    for text in texts:
        lengths += body_lengths(text)
    bodies = np.array(lengths)
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    print(
        f"\n{share:.1%} of the lines have a comment; {len(bodies):,} functions, whose bodies have a"
    )
    print(
        f"median of {np.median(bodies):.0f} lines, nine in ten under {np.quantile(bodies, 0.9):.0f};"
    )
    print(f"{words:,} words in README.md and docs")


if __name__ == "__main__":
    main()
