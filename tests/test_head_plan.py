"""The plan counts what the reader and the labels hold, and scales times from one measured GPU."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from drawn import draw_chain, draw_chains
from heads import MODELS, read_labels

from abag import plan
from abag.embed.encoders.families import FAMILIES
from abag.embed.encoders.packing import TokenLayout
from abag.embed.encoders.registry import ALIASES, EncoderNotFound
from abag.head.labels import labelled_pairs
from abag.head.labels.values import read_affinities
from abag.head.plan import FIT_S, GPUS, WITH_FEATURES, describe_plan, fit_time


def table(rows=60, antigen_length=200, **columns):
    rng = np.random.default_rng(0)
    heavies = draw_chains(rng, rows, 120)
    antigen = draw_chain(rng, antigen_length)
    frame = pd.DataFrame({"heavy": heavies, "antigen": antigen, "pkd": rng.normal(8, 1, rows)})
    return frame.assign(**columns)


@pytest.mark.parametrize("name", ["igt5", "esm2-650m", "antiberty", "composition"])
@pytest.mark.parametrize("length", [60, 509, 510, 511, 1022, 1023, 2500])
def test_tokens_and_windows_are_those_that_encoding_will_make(name, length):
    frame = table(antigen_length=length)
    antigens = plan(frame, antigen_encoder=name)["antigens"]
    spans = TokenLayout("antigen", FAMILIES[ALIASES[name].family].vocabulary).span_lengths(
        (frame["antigen"][0],)
    )
    assert antigens["tokens"] == sum(spans)
    assert antigens["windows"] == (len(spans) if len(spans) > 1 else 0)


@pytest.mark.parametrize("name", ["igt5", "esm2-650m", "antiberty", "composition"])
@pytest.mark.parametrize("light", ["", "D" * 107])
@pytest.mark.parametrize("length", [120, 600, 1100])
def test_tokens_of_antibodies_are_those_that_encoding_will_make(name, light, length):
    frame = pd.DataFrame({"heavy": ["E" * length], "light": [light], "antigen": ["MKT"]})
    antibodies = plan(frame, antibody_encoder=name)["antibodies"]
    spans = TokenLayout("antibody", FAMILIES[ALIASES[name].family].vocabulary).span_lengths(
        ("E" * length, light)
    )
    assert antibodies["tokens"] == sum(spans)
    window = antibodies["window"]
    assert antibodies["long_chains"] == (window is not None and length > window)


def test_tokens_of_sequences_of_the_same_lengths_are_counted_once(monkeypatch):
    counted = []
    span_lengths = TokenLayout.span_lengths
    monkeypatch.setattr(
        TokenLayout, "span_lengths", lambda *given: counted.append(1) or span_lengths(*given)
    )
    antibodies = plan(table(60))["antibodies"]
    assert (antibodies["unique"], antibodies["mean_length"]) == (60, 120.0)
    assert len(counted) <= 4  # of antibodies and antigens, in the table and in the times


def test_a_longer_table_takes_longer_and_a_faster_gpu_less():
    short = plan(table(20), all_gpus=True)
    long = plan(table(200), all_gpus=True)
    for name in GPUS:
        assert short["machines"][name]["embed_s"] < long["machines"][name]["embed_s"]
    times = [long["machines"][name]["embed_s"] for name in ("T4", "V100", "L4", "A100", "H200")]
    assert times == sorted(times, reverse=True)


def test_only_measured_times_are_not_marked_as_estimates():
    lines = describe_plan(plan(table()), verbose=True)
    assert "times: H100 from measured tokens/s; others are estimates" in lines
    assert any("estimate" in line and line.startswith("this machine") for line in lines)
    assert "fit: clusters and kernels use the CPU, networks a GPU if there is one" in lines
    other = describe_plan(plan(table(), antibody_encoder="antiberty"))
    assert other[-1] == "times: all are estimates"


def test_a_gpu_without_bf16_is_estimated_from_its_own_path():
    lines = describe_plan(plan(table(), all_gpus=True), verbose=True)
    assert "T4: estimate: 7% of the speed of an H200 in fp16 without Triton" in lines
    assert "L4: estimate: 12% of the speed of an H200" in lines
    assert "H200: from measured tokens/s" in lines
    other = describe_plan(plan(table(), antigen_encoder="esm2-8m"), verbose=True)
    assert sum("estimate from the number of weights" in line for line in other) == 2


def test_two_gpus_and_this_machine_are_shown_and_the_same_twice():
    first = plan(table())
    second = plan(table())
    assert [name.partition(" (")[0] for name in first["machines"]] == ["T4", "H100", "this machine"]
    assert first["machines"] == second["machines"]
    assert {*plan(table(), all_gpus=True)["machines"]} >= {*GPUS}


def test_a_price_is_hours_times_the_rate_and_sessions_are_whole():
    machine = plan(table(), price_per_hour=3.0)["machines"]["T4"]
    hours = (machine["embed_s"] + machine["fit_s"]) / 3600
    assert machine["price"] == pytest.approx(3.0 * hours)
    assert machine["sessions"] == {"4 h": 1, "12 h": 1, "24 h": 1}


def test_an_encoder_of_unknown_speed_gets_no_invented_time():
    planned = plan(table(), antigen_encoder="composition")
    assert planned["machines"]["T4"]["embed_s"] is None
    assert any("no speed known" in line for line in describe_plan(planned))


@pytest.mark.parametrize("named", [
    {"antibody_encoder": "igt55"}, {"antibody_vectors": ("mean", "igt55:mean")},
])  # fmt: skip
def test_an_encoder_that_cannot_exist_is_refused_as_embed_does(named, tmp_path):
    with pytest.raises(EncoderNotFound, match=r"encoder 'igt55': .*did you mean igt5"):
        plan(table(), **named)
    (tmp_path / "mine").mkdir()
    for possible in (str(tmp_path / "mine"), "owner/model", "igt5@main"):
        assert plan(table(), antibody_encoder=possible)["antibodies"]["encoder"] == possible


def test_duplicates_conflicts_and_censored_rows_are_counted():
    frame = table(40).assign(censored="")
    again = frame.iloc[:6].assign(pkd=lambda f: f["pkd"] + [0, 0, 0, 3, 3, 0])
    frame.loc[10:14, "censored"] = ">"
    labels = plan(pd.concat([frame, again]))["labels"]
    assert labels["duplicate_rows"] == 6
    assert labels["conflicting_pairs"] == 2
    assert labels["censored"] == 5
    assert labels["pairs"] == 40


def test_a_table_of_few_pairs_is_said_to_be_one_that_a_fit_may_refuse():
    assert any("Only 19 pairs: abag fit may" in line for line in plan(table(19))["problems"])
    assert not any("abag fit may" in line for line in plan(table(20))["problems"])


def test_pairs_are_counted_as_fit_counts_them():
    frame = table(40).assign(censored="")
    bounds = frame.iloc[:8].assign(censored=[">", "<", ">", "<"] * 2)  # of pairs with exact labels
    frame = pd.concat([frame, frame.iloc[10:13], bounds, bounds.iloc[:3]])
    pairs = read_labels(frame)
    labels = plan(frame)["labels"]
    assert labels["pairs"] == len(pairs) == 48
    assert labels["duplicate_rows"] == pairs.counts["replicate_rows"] == 6
    assert labels["censored"] == pairs.counts["censored_pairs"] == 8


@pytest.mark.parametrize(("value", "top", "says"), [
    (6.0, 10, "20 of 60 exact labels equal 6.00 pKd, a floor: .*see --floor"),
    (7.0, 10, "21 of 60 exact labels equal 7.00 pKd, neither the lowest nor the highest"),
    (10.0, 9, "20 of 60 exact labels equal 10.00 pKd, a ceiling: .* in a column censored"),
    (13.0, 20, "labels are outside the usual range of pKd"),
])  # fmt: skip
def test_implausible_labels_are_listed_as_problems(value, top, says):
    pkd = np.r_[np.full(20, value), np.linspace(6.1, top, 40)]
    assert any(re.search(says, line) for line in plan(table().assign(pkd=pkd))["problems"])


def test_a_repeated_label_is_shown_with_its_unit_and_as_it_is_written():
    kd = [*["999999"] * 20, *np.geomspace(1, 900, 40).astype(str)]
    frame = table().drop(columns="pkd").assign(**{"KD (nM)": kd})
    said = "20 of 60 exact labels equal 3.00 pKd (999999 in column 'KD (nM)'), a floor"
    assert any(said in line for line in plan(frame)["problems"])
    frame = table().drop(columns="pkd").assign(MFI=[*[999_999] * 20, *np.linspace(1e5, 9e5, 40)])
    assert any("labels equal 999,999 MFI, a ceil" in line for line in plan(frame)["problems"])
    equal = plan(frame.assign(MFI=999_999.0), label="value", better="higher")
    assert "all 60 training labels are 999,999 MFI" in equal["refused"]


@pytest.mark.parametrize(("far", "n", "says"), [
    (27.0, 2, "The highest label, 27 Tm, that of 2 of 60, is far from all others, 8 to 14,"),
    (-10.0, 1, "The lowest label, -10 Tm, that of 1 of 60, is far from all others, 8 to 14,"),
    (25.0, 2, None),
])  # fmt: skip
def test_a_label_that_is_far_from_all_others_is_listed_as_a_problem(far, n, says):
    tm = np.r_[np.linspace(8, 14, 60 - n), np.full(n, far)]
    problems = plan(table().drop(columns="pkd").assign(Tm=tm))["problems"]
    said = [line for line in problems if "is far from" in line]
    assert [line[: len(says or "")] for line in said] == [says][: says is not None]


LOGARITHMS = "Logarithms are usually learned better: --scale log."


@pytest.mark.parametrize("low", [None, 0.0, -1.0, -999.0])
def test_logarithms_are_proposed_also_if_a_few_labels_have_none(low):
    values = np.geomspace(1, 1e6, 60)
    if low is not None:
        values[:3] = low
    problems = plan(table().drop(columns="pkd").assign(MFI=values), scale="linear")["problems"]
    (line,) = [line for line in problems if LOGARITHMS in line]
    assert line.startswith("The largest label, 1,000,000 MFI, is ")
    assert ("3 labels of 0 or less have none" in line) == (low is not None)


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy"])
def test_logarithms_are_not_proposed_for_differences(draw):
    values = getattr(np.random.default_rng(0), draw)(60)
    problems = plan(table().drop(columns="pkd").assign(ddG=values))["problems"]
    assert not any(LOGARITHMS in line for line in problems)


def test_assays_that_disagree_on_an_antigen_are_listed_as_a_problem():
    frame = table().assign(assay=["spr", "display"] * 30)
    frame["pkd"] += np.tile([0.0, 3.0], 30)
    planned = plan(frame)
    assert planned["labels"]["disputed_antigens"] == 1
    assert any("do not mix these assays" in line for line in planned["problems"])


def test_parts_of_the_default_head_that_a_large_table_leaves_out_are_named(monkeypatch):
    assert plan(table())["head"] == ""
    assert (MODELS["gp"].most_pairs, MODELS["kernel"].most_pairs) == (5_000, 12_000)
    monkeypatch.setitem(MODELS, "gp", replace(MODELS["gp"], most_pairs=59))
    (line,) = [line for line in describe_plan(plan(table())) if "left out" in line]
    assert line == "gp left out: it handles at most 59 pairs"
    monkeypatch.setitem(MODELS, "kernel", replace(MODELS["kernel"], most_pairs=50))
    assert "kernel left out: it handles at most 50" in plan(table())["head"]


def test_the_text_of_a_plan_fits_into_twenty_lines_of_80_columns():
    planned = plan(table(antigen_length=2500), price_per_hour=2.5)
    for name, machine in planned["machines"].items():
        machine["embed_s"] = 36e4
        machine["sessions"] = {"4 h": 25, "12 h": 9, "24 h": 5}
        machine["fit_s"] = 36e5
        if not name.startswith("this"):
            assert machine["price"] > 0
    lines = describe_plan(planned)
    assert len(lines) <= 20
    tables = [line for line in lines if "  " in line.strip()]
    assert max(map(len, tables)) <= 80
    assert any("8 GiB    25/9/5" in line for line in tables)
    assert lines[-1].endswith("Colab sessions needed (4 h / 12 h / 24 h each)")


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_time_of_a_fit_is_measured_or_between_measured_ones(on_gpu):
    sizes, seconds = zip(*FIT_S[on_gpu], strict=True)
    assert [fit_time(n, on_gpu=on_gpu) for n in sizes] == pytest.approx(list(seconds))
    assert fit_time(1, on_gpu=on_gpu) == pytest.approx(seconds[0])
    between = fit_time((sizes[0] + sizes[1]) // 2, on_gpu=on_gpu)
    assert min(seconds[:2]) < between < max(seconds[:2])
    assert fit_time(3 * sizes[-1], on_gpu=on_gpu) == pytest.approx(3 * seconds[-1])


# ---- columns beside labels -----------------------------------------------------------------------


def with_columns():
    """Return a table with columns of features, a laboratory, errors and weights."""
    rng = np.random.default_rng(1)
    ddg = rng.normal(size=60)
    ddg[3] = np.nan
    return table(lab=["a", "b", "c"] * 20, ddg=ddg, sd=0.1, w=rng.uniform(0.5, 2, 60))


def test_features_and_errors_of_a_table_are_described(capsys):
    planned = plan(with_columns(), features=("ddg",), categories=("lab",), error="sd")
    errors, features, missing = planned["beside"]
    assert errors.endswith("errors 'sd': standard deviations of the labels, median 0.10 pKd")
    assert features.endswith(
        "features 'ddg'; category 'lab' with 3 values: 5 columns beside the vectors"
    )
    assert "1 of 'ddg'" in missing
    assert "feature 'ddg', category 'lab', error 'sd'; not used: 'w'" in planned["columns"]
    assert {*planned["beside"]} <= {*describe_plan(planned)}
    assert "beside the vectors" not in capsys.readouterr().err
    assert plan(with_columns())["beside"] == []


def test_the_weights_of_a_table_are_described():
    frame = with_columns()
    ratio = frame["w"] / frame["w"].median()
    (line,) = plan(frame, weight="w")["beside"]
    assert f"weights 'w': {ratio.min():.3g} to {ratio.max():.3g} times their median" in line


def test_likelihoods_are_said_to_be_those_of_a_store():
    (line,) = plan(with_columns(), features=("antibody_loglik",))["beside"]
    assert "'antibody_loglik': likelihoods of a store" in line
    beside = plan(with_columns().assign(loglik=range(60)), features=("loglik",))["beside"]
    assert not any("store" in line for line in beside)


def test_pairs_of_several_categories_are_counted_as_fit_counts_them():
    frame = pd.concat([with_columns(), with_columns().head(5).assign(lab="d")])
    assert plan(frame)["labels"]["pairs"] == 60
    assert plan(frame, categories=("lab",))["labels"]["pairs"] == 65


def test_columns_of_a_table_without_labels_are_refused():
    planned = plan(
        with_columns().drop(columns="pkd")[["heavy", "antigen", "lab"]], categories=("lab",)
    )
    assert "no column" in planned["refused"]


@pytest.mark.parametrize(("columns", "options", "refused"), [
    ({"same": 1.0}, {"features": ("same",)}, "the feature 'same' is 1 in every labelled row"),
    ({"pkd": 8.5}, {}, "all 60 training labels are 8.50 pKd"),
])  # fmt: skip
def test_labels_are_read_once_and_described_if_fit_refuses_the_table(
    monkeypatch, columns, options, refused
):
    read = []

    def counted(*given):
        read.append(given)
        return read_affinities(*given)

    monkeypatch.setattr(labelled_pairs, "read_affinities", counted)
    described = plan(with_columns().assign(**columns), **options)
    assert refused in described["refused"]
    assert described["labels"]["pairs"] == 60
    assert described["sense"]
    assert len(read) == 1


def test_features_take_a_fit_longer():
    frame = with_columns()
    bare = plan(frame)
    beside = plan(frame, features=("ddg",))
    for name, machine in bare["machines"].items():
        expected = WITH_FEATURES * machine["fit_s"]
        assert beside["machines"][name]["fit_s"] == pytest.approx(expected)
    assert plan(frame, error="sd")["machines"] == bare["machines"]
