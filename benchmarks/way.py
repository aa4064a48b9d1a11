"""Print what commands run through, as Markdown: modules, functions, files opened, roles found.

    python benchmarks/way.py [--tiny] [--list]

Each command runs in a process of its own: ``embed``, ``fit --split random`` and ``predict`` of one
table, and ``fit`` of two. A module counts if a function of it ran; imports and class bodies do not,
nor do the comprehensions in them; processes that a command starts are not seen. Of a fit, the
parameter ``table`` is followed, too: through functions that are given it, or what a function that
was given it returned, or a field of that, two deep. In the order in which they first run, a step is
a change of module, and a return a step into a module that was seen before. Below the table: imports
of abag per module and the longest chain of imports, with those for types and without. ``--list``
names the modules in the order of their first call.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parent.parent
COMPOSITION = ["--antibody-encoder", "composition", "--antigen-encoder", "composition"]
FUNCTION = 0x1 | 0x2  # optimised, new locals: no module, no class body
COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}
FINDS_ROLES = "find_columns"
"""Name of the function that decides the roles of the columns of one table."""


class Way:
    """What ran while a command was watched."""

    def __init__(self, root: Path, tables: list[str]) -> None:
        self.root = str(root)
        self.tables = tables
        self.modules: dict[str, None] = {}
        self.functions: set[object] = set()
        self.calls: Counter[str] = Counter()
        self.edges: Counter[tuple[str, str]] = Counter()
        self.opened: Counter[str] = Counter()
        self._names: dict[str, str] = {}

    def name_of(self, path: str) -> str:
        """Return the path of a module inside abag; empty for others."""
        if path not in self._names:
            real = str(Path(path).resolve()) if path.endswith(".py") else ""
            inside = real.startswith(self.root) and "site-packages" not in real[len(self.root) :]
            self._names[path] = real[len(self.root) + 1 :] if inside else ""
        return self._names[path]

    def watch_call(self, frame, event, _argument) -> None:
        """Count a call; a profile function of `sys.setprofile`."""
        if event != "call" or frame.f_code.co_flags & FUNCTION != FUNCTION:
            return
        here = self.name_of(frame.f_code.co_filename)
        if not here:
            return
        within = frame
        while within is not None and within.f_code.co_name in COMPREHENSIONS:
            within = within.f_back
        if within is not frame and within.f_code.co_flags & FUNCTION != FUNCTION:
            return  # of a constant
        self.modules.setdefault(here)
        self.functions.add(frame.f_code)
        self.calls[frame.f_code.co_name] += 1
        caller = frame.f_back
        while caller is not None and not self.name_of(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_flags & FUNCTION == FUNCTION:
            there = self.name_of(caller.f_code.co_filename)
            if there != here:
                self.edges[there, here] += 1

    def watch_open(self, event: str, arguments) -> None:
        """Count an opened table; an audit hook."""
        if event == "open" and isinstance(arguments[0], str) and arguments[0] in self.tables:
            self.opened[arguments[0]] += 1

    def describe(self) -> dict[str, object]:
        """Return the counts."""
        return {
            "modules": len(self.modules),
            "functions": len(self.functions),
            "edges": len(self.edges),
            "crossings": sum(self.edges.values()),
            "two_way": sum(edge[::-1] in self.edges for edge in self.edges) // 2,
            "opened": sum(self.opened.values()),
            "roles": self.calls[FINDS_ROLES],
            "names": [*self.modules],
        }


class TableWay:
    """Which functions of abag are given the table of a fit, or what was made of it."""

    PLAIN = (str, bytes, int, float, type(None), type, np.generic)
    """What says nothing of where it comes from."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.made: dict[int, object] = {}
        self.modules: list[str] = []
        self.given: set[int] = set()
        self.functions: set[object] = set()

    def add(self, value: object, deep: int = 2) -> None:
        """Follow a value, and what it holds."""
        if isinstance(value, self.PLAIN) or callable(value) or id(value) in self.made:
            return
        self.made[id(value)] = value  # kept, so that nothing else gets its number
        held = []
        if dataclasses.is_dataclass(value):
            held = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        elif isinstance(value, tuple | list | dict) and len(value) < 50:
            held = [*(value.values() if isinstance(value, dict) else value)]
        for part in held if deep else []:
            self.add(part, deep - 1)

    def watch(self, frame, event, argument) -> None:
        """Follow a call or a return; a profile function of `sys.setprofile`."""
        code = frame.f_code
        here = self.way.name_of(code.co_filename)
        if not here or code.co_flags & FUNCTION != FUNCTION:
            return
        if event == "return" and id(frame) in self.given:
            self.given.discard(id(frame))
            self.add(argument)
        if event != "call" or code.co_name in COMPREHENSIONS:
            return
        number = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
        arguments = [frame.f_locals.get(name) for name in code.co_varnames[:number]]
        if not self.made and code.co_name == "fit" and here == "head/fit.py":
            self.made[id(arguments[0])] = arguments[0]
        is_given = any(self.holds(value) for value in arguments)
        if is_given:
            self.given.add(id(frame))
            if code not in self.functions:
                self.functions.add(code)
                self.modules.append(here)

    def holds(self, value: object) -> bool:
        """Tell whether a value is followed, or holds one that is."""
        is_list = isinstance(value, tuple | list) and len(value) < 50
        return id(value) in self.made or (is_list and any(id(x) in self.made for x in value))

    def describe(self) -> dict[str, object]:
        """Return the counts."""
        before = ["", *self.modules]
        steps = [x for x, last in zip(self.modules, before, strict=False) if x != last]
        modules = len(set(steps))
        self.made.clear()  # some of it ends threads, which it has to do before the process ends
        return {"table": f"{len(steps)} / {modules} / {len(steps) - modules}", "names": []}


def watch(command: list[str], *, table: bool = False) -> dict[str, object]:
    """Run one command of abag in this process and return what it, or its `table`, ran through."""
    import abag
    from abag.cli import main

    tables = [word for word in command if word.endswith(".csv")]
    way = Way(Path(abag.__file__).resolve().parent, tables)
    if not (Path(way.root) / "cli.py").samefile(ROOT / "cli.py"):
        way.root = str(ROOT.resolve())  # links of a strict editable install lead there
    sys.addaudithook(way.watch_open)
    followed = TableWay(way)
    profile = followed.watch if table else way.watch_call
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        main(command, standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return followed.describe() if table else way.describe()


def run_watched(command: list[str], folder: Path, how: str = "--watch") -> dict[str, object]:
    """Watch a command, or follow its table, in a process of its own."""
    done = subprocess.run(
        [sys.executable, Path(__file__).resolve(), how, *command],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def commands(folder: Path, *, tiny: bool) -> dict[str, list[str]]:
    """Write the tables, and return the commands by what they are called."""
    pairs = pd.read_csv(ROOT / "data" / "demo_pairs.csv")
    pairs = pairs.head(120) if tiny else pairs
    half = len(pairs) // 2
    pairs.to_csv(folder / "pairs.csv", index=False)
    pairs[:half].to_csv(folder / "first.csv", index=False)
    pairs[half:].to_csv(folder / "second.csv", index=False)
    store = ["--store", "store"]
    fit = ["--split", "random"]
    return {
        "embed": ["embed", "pairs.csv", *store, *COMPOSITION],
        "fit --split random": ["fit", "pairs.csv", *store, "--run", "run", *fit],
        "predict": ["predict", "pairs.csv", "--run", "run", "--out", "scored.csv"],
        "fit of two tables": ["fit", "first.csv", "second.csv", *store, "--run", "two", *fit],
    }


def imports_of_modules(*, types: bool = True) -> dict[str, set[str]]:
    """Return the modules of abag that each imports, perhaps those for types too; no `__init__`."""
    listed = subprocess.run(
        ["git", "ls-files", "core/*.py", "embed/*.py", "head/*.py", "adapt/*.py", "cli.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tracked = [ROOT / name for name in listed.stdout.splitlines() if "__init__" not in name]
    paths = [path for path in tracked if path.exists()]
    names = {f"abag.{'.'.join(p.relative_to(ROOT).with_suffix('').parts)}": p for p in paths}
    imports: dict[str, set[str]] = {}
    for module, path in names.items():
        imports[module] = set()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in [*tree.body]:
            if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                tree.body.remove(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & names.keys()
                imports[module] |= inner or {node.module} & names.keys()
    return imports


def longest_chain(imports: dict[str, set[str]]) -> int:
    """Return the number of modules on the longest way through the imports, which has no circle."""
    lengths: dict[str, int] = {}

    def length(module: str) -> int:
        if module not in lengths:
            lengths[module] = 1 + max(map(length, imports[module]), default=0)
        return lengths[module]

    return max(map(length, imports))


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] in (["--watch"], ["--follow"]):
        print(json.dumps(watch(sys.argv[2:], table=sys.argv[1] == "--follow")))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="120 pairs")
    parser.add_argument("--list", action="store_true", help="name the modules of each command")
    options = parser.parse_args()
    columns = ("modules", "functions", "edges", "crossings", "two_way", "opened", "roles")
    print(f"| command | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
    listed = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, command in commands(folder, tiny=options.tiny).items():
            found = run_watched(command, folder)
            counts = " | ".join(f"{found[column]:,}" for column in columns)
            print(f"| {name} | {counts} |", flush=True)
            listed.append((name, found["names"]))
        followed = [
            *commands(folder, tiny=options.tiny)["fit --split random"][:-4],
            "--run",
            "third",
        ]
        found = run_watched([*followed, "--split", "random"], folder, "--follow")
        print(f"\nsteps / modules / returns of the table of a fit: {found['table']}")
    imports = imports_of_modules()
    mean = sum(map(len, imports.values())) / len(imports)
    print(f"\n{len(imports)} modules; {mean:.1f} imports of abag per module;", end=" ")
    print(f"the longest chain of imports has {longest_chain(imports)} modules,", end=" ")
    print(f"{longest_chain(imports_of_modules(types=False))} without those for types")
    if options.list:
        for name, modules in listed:
            print(f"\n{name}: {' '.join(modules)}")


if __name__ == "__main__":
    main()
