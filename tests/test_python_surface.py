"""What Python users see: names, signatures, errors and how results are shown."""

import inspect
import json
import shlex
import subprocess
import sys

import pandas as pd
import pytest
from drawn import COMPOSITION
from heads import demo_table, schema

import abag
from abag import OptionError
from abag.core.messages import say
from abag.core.python_surface import SHOWN_LINES, Summary, in_python, names_keywords, shorten
from abag.embed.tables.columns import column_option


@pytest.mark.ci
def test_dir_and_help_show_every_public_name():
    code = "import abag, pydoc; print({*dir(abag)} - {*abag.__all__}); help(abag)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{'sklearn'}")  # a package of its own
    for name in abag.__all__:
        assert f" {name}" in done.stdout or name == "__version__"


WITHOUT_EXTRAS = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in EXTRAS else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
import abag

for name in abag.__all__:
    getattr(abag, name)
print(sorted(EXTRAS & {*sys.modules}))
"""


@pytest.mark.ci
def test_every_public_name_needs_no_package_of_an_extra():
    extras = {
        "ablang2", "anndata", "antiberty", "faesm", "flash_attn", "openpyxl", "optuna", "peft",
        "polars", "ray", "triton",
    }  # fmt: skip
    code = f"EXTRAS = {extras!r}\n{WITHOUT_EXTRAS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", abag._FUNCTIONS)
def test_a_public_function_has_no_open_keywords(name):
    parameters = inspect.signature(getattr(abag, name)).parameters.values()
    assert inspect.Parameter.VAR_KEYWORD not in {parameter.kind for parameter in parameters}


@pytest.mark.parametrize("function", ["predict", "scan", "fit"])
def test_a_missing_argument_is_one_of_the_public_function(function):
    with pytest.raises(TypeError, match=rf"^{function}\(\) missing "):
        getattr(abag, function)()


def test_the_signature_of_fit_has_every_option_with_its_default():
    parameters = inspect.signature(abag.fit).parameters
    for option in schema(abag.FitConfig):
        assert parameters[option.name].default == option.default
    shown = str(inspect.signature(abag.fit))
    assert "preset: Literal['small', 'medium', 'seed'] = 'small'" in shown
    assert "widths: tuple[int, ...] | None = None" in shown


def test_an_empty_path_is_refused():
    with pytest.raises(OptionError, match=r"^store: is empty; expected a path"):
        abag.fit("pairs.csv", "", "run")
    with pytest.raises(OptionError, match=r"^store: is empty; expected a path"):
        abag.open_store("")


@pytest.mark.parametrize(("function", "keyword", "words"), [
    ("fit", "learning_rate", "fit: unknown option 'learning_rate'. Did you mean 'lr'"),
    ("fit", "epoch", "Did you mean 'epochs'"),
    ("sweep", "dropout", "dropout: is chosen by sweep itself, among networks"),
    ("predict", "kind", "predict: unknown option 'kind'. "),
    ("predict", "zzz", "The options are antibody_encoder, antibody_region, antigen"),
])  # fmt: skip
def test_an_unknown_keyword_is_refused_with_what_was_meant(function, keyword, words):
    with pytest.raises(OptionError) as caught:
        getattr(abag, function)("table", "a", "b", **{keyword: 1})
    assert words in str(caught.value)


KEYWORDS = {option.flag: option for option in schema(abag.FitConfig)} | {"--run": "run"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--lr: 20 is out of range", "lr: 20 is out of range"),
        ("Give --batch-size 12.", "Give batch_size=12."),
        ("Give --column pkd=NAME.", 'Give columns={"pkd": "NAME"}.'),
        ("Or skip it with --bad-rows skip.", 'Or skip it with bad_rows="skip".'),
        ("use --column 'pkd=Kd (M)'.", 'use columns={"pkd": "Kd (M)"}.'),
        (
            "Name it with --column heavy=NAME, --column light=NAME or --column antibody=NAME.",
            'Name it with columns={"heavy": "NAME"}, columns={"light": "NAME"} or '
            'columns={"antibody": "NAME"}.',
        ),
        ("choose one with --sheet 'Fig. 1' or", 'choose one with sheet="Fig. 1" or'),
        ("use --sequences 'a b.fa' --parent NAME", 'use sequences=["a b.fa"] parent=NAME'),
        ("or give --sequences FILE", "or give sequences=[FILE]"),
        ("Give --run DIR.", "Give run=DIR."),
        ("use another --run folder", "use another run folder"),
        ("It is empty. Run abag embed T --limit 3.", "It is empty. Run abag embed T --limit 3."),
        ("Give --lr 2, or run abag embed T --lr 2.", "Give lr=2, or run abag embed T --lr 2."),
        ("--kills: not ours", "--kills: not ours"),
    ],
)  # fmt: skip
def test_flags_in_messages_become_keywords_except_in_commands(text, expected):
    assert in_python(text, KEYWORDS) == expected


@pytest.mark.parametrize(
    "name",
    [
        "Tm",
        "t1/2",
        "KD..nM.",
        "%bound",
        "hum,nM",
        "Exp. KD; nM",
        'the "KD"',
        "KD' (nM)",
        "5'. 3'",
        "μ",
    ],
)
def test_an_option_for_a_column_is_one_word_of_a_shell_and_one_keyword(name):
    option = column_option("label", name)
    assert shlex.split(option) == ["--column", f"label={name}"]
    keyword = json.dumps({"label": name}, ensure_ascii=False)
    said = in_python(f"use {option} --label value. Rename it.", KEYWORDS)
    assert said == f'use columns={keyword} label="value". Rename it.'


def test_an_error_carries_the_options_that_it_names_as_they_are_spelled():
    error = OptionError("--best and --above: cannot be combined. Remove --above.")
    assert error.options == ("--best", "--above")
    with pytest.raises(OptionError) as caught:
        abag.fit("pairs.csv", "store", "run", batch_size=12, lr=20)
    assert caught.value.options == ("lr",)


def test_an_error_of_a_public_function_names_its_keywords(tmp_path):
    with pytest.raises(OptionError, match=r"^lr: 20 is out of range; expected more than 0"):
        abag.fit("pairs.csv", "store", "run", lr=20)
    with pytest.raises(
        OptionError, match=r'^columns=\{"antibody": "NAME"\} and a heavy or light column'
    ):
        abag.plan(tmp_path, columns={"antibody": "a", "heavy": "h"})


def test_results_are_shown_in_a_few_lines(tmp_path):
    table = demo_table().head(60)
    summary = abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    lines = repr(summary).splitlines()
    assert lines[0].startswith("antibodies: ")
    assert lines[-1] == "keys: antibodies, antigens, rows, skipped_rows"
    assert "<pre>antibodies: " in summary._repr_html_()
    store = repr(abag.open_store(tmp_path / "store"))
    assert store.startswith(f"Store {tmp_path / 'store'}\nantibody: composition (")
    assert len(store.splitlines()) == 3
    planned = abag.plan(table, **COMPOSITION)
    assert len(repr(planned).splitlines()) == SHOWN_LINES
    assert "pairs with pKd" in str(planned), "print() shows all of it"
    assert "more lines" not in str(planned)


def test_a_plan_in_python_names_keywords_where_a_fit_would_be_refused():
    table = demo_table().head(60).rename(columns={"pKd": "Tm"}).assign(expression=1.0)
    table["expression"] = table["Tm"] * 2
    shown = str(abag.plan(table, **COMPOSITION))
    assert 'use columns={"label": "Tm"}' in shown
    assert "--column" not in shown


def test_what_is_shown_has_few_lines_of_limited_width_and_is_escaped():
    assert shorten(list("abcdef")) == "a\nb\nc\nd\n... 2 more lines"
    assert shorten(list("abcde")) == "a\nb\nc\nd\ne"
    assert shorten(list("abcde"), "z") == "a\nb\nc\n... 2 more lines\nz"
    assert all(len(line) <= 160 for line in shorten(["x" * 500]).splitlines())
    shown = Summary({"a": 1}, lambda _: "<script>")
    assert shown == {"a": 1}
    assert shown._repr_html_() == "<pre>&lt;script&gt;\nkeys: a</pre>"


@pytest.mark.ci
def test_messages_of_a_public_function_name_its_keywords(tmp_path, capsys):
    table = demo_table().head(60)
    table = pd.concat([table, table.head(8).assign(pKd=lambda f: f["pKd"] + 3)])
    abag.embed_table(table, tmp_path / "store", **COMPOSITION)
    options = {"split": "random", "epochs": 1, "widths": (4,), "report": False}
    summary = abag.fit(table, tmp_path / "store", tmp_path / "run", **options)
    said = []
    abag.fit(table, tmp_path / "store", tmp_path / "again", say=said.append, **options)
    for text in (capsys.readouterr().err, "\n".join(said)):
        assert "more than 1 pKd apart. See replicates." in text
        assert "--" not in text
    assert any("See --replicates." in text for text in summary["warnings"])  # as in summary.json
    assert "--" not in repr(abag.plan(table, **COMPOSITION))


def test_errors_and_messages_of_a_method_name_its_keywords(said):
    @names_keywords
    def predict(*, store=None):
        say("See --store.")
        msg = f"--store: {store} is not given. Give --store DIR or --limit 3."
        raise abag.AbagError(msg)

    with pytest.raises(abag.AbagError) as caught:
        predict()
    assert said == ["See store."]
    assert str(caught.value) == "store: None is not given. Give store=DIR or --limit 3."
    assert inspect.signature(abag.Predictor.predict).parameters["store"].default is None
