"""Print how modules of packages import each other, as Markdown: to compare abag with others.

    python benchmarks/imports.py FOLDER...

Each folder is that of a package and has its name, such as ``site-packages/botorch`` or a checkout
called ``abag``. Imports are counted by module, those for types and those inside of functions too, however many names they
import; tests are left out. An import of a name from a package counts as one of its ``__init__``,
which is not counted as a module itself. Of modules in circles, the chain follows each once, from the
first by name.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

LEFT_OUT = {"tests", "test", "test_helpers", "benchmarks", "docs", "build", "packaging"}
"""Folders without modules of the product."""


def modules_of(folder: Path, package: str) -> dict[str, Path]:
    """Return the modules of a package, and its packages, by name."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").parts
        if any(part in LEFT_OUT or part.startswith(".") for part in inner):
            continue
        parts = (package, *inner)
        modules[".".join(parts[:-1] if inner[-1] == "__init__" else parts)] = path
    return modules


def imports_of(module: str, modules: dict[str, Path]) -> set[str]:
    """Return which of the modules one of them imports."""
    path = modules[module]
    parts = module.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    imports = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names} & modules.keys()
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            inner = {f"{source}.{alias.name}" for alias in node.names} & modules.keys()
            imports |= inner or {source} & modules.keys()
    return imports - {module}


def longest_chain(imports: dict[str, set[str]]) -> int:
    """Return the modules on the longest way through the imports."""
    lengths: dict[str, int] = {}
    above = set[str]()

    def length(module: str) -> int:
        if module in above:
            return 0
        if module not in lengths:
            above.add(module)
            lengths[module] = 1 + max(map(length, sorted(imports[module])), default=0)
            above.remove(module)
        return lengths[module]

    return max(map(length, imports))


def main() -> None:
    """Print the table."""
    sys.setrecursionlimit(10_000)
    print("| package | modules | lines | imports per module | per 1,000 lines | longest chain |")
    print("|---|--:|--:|--:|--:|--:|")
    for folder in map(Path, sys.argv[1:]):
        package = folder.resolve().name
        modules = modules_of(folder, package)
        imports = {module: imports_of(module, modules) for module in modules}
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules.values())
        count = sum(path.name != "__init__.py" for path in modules.values())
        edges = sum(
            len(imports[module]) for module, path in modules.items() if path.name != "__init__.py"
        )
        print(
            f"| {package} | {count} | {lines:,} | {edges / count:.1f} | {1000 * edges / lines:.1f} "
            f"| {longest_chain(imports)} |"
        )


if __name__ == "__main__":
    main()
