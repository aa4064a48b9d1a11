"""Options: declared once, and the same on the command line, in Python and on disk."""

import ast
import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
import pytest
from click.testing import CliRunner

import abag
from abag import (
    AdaptConfig,
    EmbedOptions,
    EncoderOptions,
    FitConfig,
    OptionError,
    PredictOptions,
    RankOptions,
    SweepOptions,
)
from abag.cli import main
from abag.core.command_line import OptionsCommand
from abag.core.options import Options, option, schema
from abag.head.regimes.folds import SPLIT_METHODS
from abag.head.sweep import BATCH_PARAMETERS, RANGES, SHAPES

sys.path.insert(0, str(Path(__file__).parent))
from heads import SPLIT_VALUES
from invoke import commands
from make_stub import stub

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, kw_only=True)
class Small(Options):
    size: int = option(3, low=1, high=9, metavar="N", may_change=True, help="Size of it.")
    share: float | None = option(None, above=0, help="Share of it.", default_text="all")
    widths: tuple[int, ...] | None = option(None, low=1, help="Widths of it.")
    kind: Literal["round", "flat"] = option("round", help="Kind of it.")
    name: str = option("a", choices=lambda: ["a", "b"], help="Name of it.")
    fast: bool = option(False, help="Do it fast.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 10}, "--size: 10 is out of range; expected 1 to 9."),
        ({"size": "3"}, "--size: '3' is not valid; expected a whole number, 1 to 9."),
        ({"size": None}, "--size: None is not valid; expected a whole number, 1 to 9."),
        ({"share": 0}, "--share: 0 is out of range; expected more than 0."),
        ({"share": float("nan")}, "--share: nan is not valid; expected a finite number, "
                                  "more than 0."),
        ({"share": float("inf")}, "--share: inf is not valid; expected a finite number, "
                                  "more than 0."),
        ({"widths": (4, 0)}, "--widths: (4, 0) is out of range; expected one or more numbers, "
                             "each at least 1."),
        ({"kind": "square"}, "--kind: 'square' is unknown; expected one of round, flat."),
        ({"name": "c"}, "--name: 'c' is unknown; expected one of a, b."),
        ({"colour": 1}, "paint: unknown option 'colour'. The options are fast, kind, name, "
                        "share, size, widths."),
        ({"sizes": 1}, "paint: unknown option 'sizes'. Did you mean 'size'?"),
    ],
)  # fmt: skip
def test_an_invalid_option_is_named_with_its_value_and_what_was_expected(options, message):
    with pytest.raises(OptionError) as caught:
        Small.from_keywords(options, "paint")
    assert str(caught.value) == message


@pytest.mark.parametrize(("options", "message"), [
    ({"split": 5}, "--split: 5 is not valid; expected a string."),
    ({"deterministic": "no"}, "--deterministic: 'no' is not valid; expected True or"),
    ({"learning_curve": [True]}, "--learning-curve: [True] is not valid; expected True or F"),
    ({"epochs": 1.5}, "--epochs: 1.5 is not valid; expected a whole number, at least 1."),
    ({"seed": True}, "--seed: True is not valid; expected a whole number, at least 0."),
    ({"lr": "fast"}, "--lr: 'fast' is not valid; expected a finite number, more than 0, at most"),
    ({"widths": 64}, "--widths: 64 is not valid; expected a list of whole numbers, at least"),
    ({"widths": (64, 1.5)}, "--widths: (64, 1.5) is not valid; expected a list of whole"),
    ({"columns": None}, "--column: None is not valid; expected a mapping of names."),
    ({"columns": {"heavy": 1}}, "--column: {'heavy': 1} is not valid; expected a mapping"),
    ({"devices": "two"}, "--devices: 'two' is not valid; expected a whole number or 'all'."),
    ({"antigen_adapter": 3}, "--antigen-adapter: 3 is not valid; expected a path or a string."),
    ({"layers": "24"}, "--layers: '24' is not valid; expected a list of whole numbers."),
    ({"targets": "q"}, "--targets: 'q' is not valid; expected a list of names."),
])  # fmt: skip
def test_values_of_the_wrong_type_are_refused_in_python(options, message):
    cls = next(c for c in (FitConfig, EmbedOptions, AdaptConfig) if {*options} <= known_to(c))
    with pytest.raises(OptionError, match=re.escape(message)):
        cls(**options, **({"split_from": "run"} if cls is AdaptConfig else {}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_a_threshold_that_is_not_finite_is_refused(value):
    for cls, name in ((PredictOptions, "strong"), (RankOptions, "best"), (FitConfig, "no_binding")):
        with pytest.raises(OptionError, match="is not valid; expected a finite number"):
            cls(**{name: value})


def known_to(cls):
    return {setting.name for setting in schema(cls)}


def test_numbers_of_numpy_and_lists_are_taken_as_pythons_own():
    config = FitConfig(
        seed=np.int64(3), lr=np.float32(0.5), deterministic=np.True_, widths=[np.int32(64), 32]
    )
    assert config == FitConfig(seed=3, lr=0.5, deterministic=True, widths=(64, 32))
    assert json.loads(json.dumps(config.to_json()))["seed"] == 3
    assert FitConfig(widths=np.array([64, 32])).widths == (64, 32)


def test_json_changeable_fields_and_other_keywords_come_from_the_declarations():
    assert Small(widths=(2, 1)).to_json()["widths"] == [2, 1]
    assert Small.changeable() == {"size"}
    assert Small.take({"size": 4, "colour": 1}) == (Small(size=4), {"colour": 1})


def paint(*arguments):
    received = []
    command = OptionsCommand(
        "paint", callback=lambda **options: received.append(options), classes=["test_options:Small"]
    )
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    return result, received[0] if received else None


def test_an_empty_list_on_the_command_line_is_a_list_as_in_python():
    _, options = paint("--widths", "")
    assert options == {"widths": ()}


def test_the_command_line_passes_only_the_options_that_were_given():
    _, options = paint()
    assert options == {}
    _, options = paint("--size", 4, "--widths", "8, 4", "--fast", "--kind", "flat")
    assert options == {"size": 4, "widths": (8, 4), "fast": True, "kind": "flat"}


def test_the_stub_of_the_package_is_what_the_declared_options_give():
    command = "python tests/make_stub.py > types.pyi && mv types.pyi __init__.pyi"
    assert (ROOT / "__init__.pyi").read_text(encoding="utf-8") == stub(), f"run {command}"


def test_a_sweep_leaves_out_what_it_searches():
    chosen = {name for shape in SHAPES.values() for name in shape}
    assert {*RANGES, *BATCH_PARAMETERS, *chosen} - {"shape"} <= SweepOptions.leaves_out
    assert {setting.name for setting in schema(FitConfig)} >= SweepOptions.leaves_out


def test_the_help_of_split_names_every_method():
    (split,) = (setting for setting in schema(FitConfig) if setting.name == "split")
    assert set(SPLIT_METHODS) <= set(re.findall(r"\w+", split.declaration["help"]))
    assert set(SPLIT_VALUES) == {"auto", *SPLIT_METHODS}


def test_the_encoders_of_embed_table_are_those_of_the_schema():
    parameters = inspect.signature(abag.embed_table).parameters
    for setting in schema(EncoderOptions):
        assert parameters[setting.name].default == setting.default


OTHER_TOOLS = set(
    # abag itself, and pip
    "--help --version --extra-index-url --force-reinstall --index-url --no-deps "
    # torchrun and Slurm
    "--cpus-per-task --gpus-per-task --kill-on-bad-exit --max-restarts --no-python --nodes "
    "--nproc-per-node --ntasks-per-node --rdzv-endpoint --requeue --signal --time "
    # hf download
    "--revision "
    # tests/crash/kills.py, tests/many.py and the old notebooks
    "--flaky --jobs --kills --resume --steps --writers "
    # Docker and Apptainer
    "--build-arg --nv".split()
)


def all_flags():
    for _, command in commands():
        for parameter in command.get_params(click.Context(command, **main.context_settings)):
            yield from parameter.opts + parameter.secondary_opts


def texts_of_the_package():
    for package in ("core", "embed", "head", "adapt"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield path, node.value


def pages():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if path.name != "decisions.md":
            for line in path.read_text(encoding="utf-8").splitlines():
                yield path, line


@pytest.mark.ci
def test_every_flag_that_a_message_or_a_page_names_exists():
    known_flags = {*all_flags(), *OTHER_TOOLS}
    unknown = []
    for path, text in [*texts_of_the_package(), *pages()]:
        if re.search(r"torchrun|(bench|test)_\w+\.py", text):
            continue
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", text):
            if flag not in known_flags:
                unknown.append((str(path.relative_to(ROOT)), flag, text.strip()[:80]))
    assert unknown == []


def test_import_help_and_version_load_none_of_the_slow_packages():
    names = [" ".join(path) for path, _ in commands()]
    code = (
        "import sys, abag\nfrom click.testing import CliRunner\nfrom abag.cli import main\n"
        f"for command in ['', *{names}]:\n"
        "    assert CliRunner().invoke(main, [*command.split(), '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(main, ['--version']).output.startswith('abag ')\n"
        "print({'torch', 'pandas', 'transformers', 'scipy', 'tqdm'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.strip() == "set()"


def test_the_options_that_may_change_on_resuming_are_these():
    # how the same pairs are written down: the digest of the pairs tells other ones
    same_pairs = {"first_residue", "matrix", "numbering", "parent", "sequences", "sheet"}
    assert FitConfig.changeable() == {
        "add",
        "compile",
        "deterministic",
        "device",
        "epochs",
        "save_every",
        "skipped",
        *same_pairs,
    }
    assert AdaptConfig.changeable() == {"device", "save_every", "split_from", *same_pairs}
