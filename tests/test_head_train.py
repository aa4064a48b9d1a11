import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import fields
from types import SimpleNamespace

import drawn
import numpy as np
import pandas as pd
import pytest
import torch
from chunks import (
    keep_tables_on_host,
    set_sizes,
    train_without_bootstrap,
)
from drawn import fill_store, lines_of, planted_table, write_split
from faults import (
    at_loss,
    before_lock,
    fill_disk_for_tensors,
    left_by_the_dead,
    locked,
    stop_after,
)
from heads import used_options
from hypothesis import given
from hypothesis import strategies as st
from marks import in_ci
from trastuzumab import HEAVY, LIGHT

import abag
from abag import (
    DamagedFile,
    DeviceError,
    FitConfig,
    LabelError,
    MissingVectors,
    OptionError,
    OutputError,
    RunError,
    TrainingError,
)
from abag.head import fit as fit_of_runs
from abag.head.regimes.splits import TEST, learned_rows
from abag.head.training.stack import cosine_rates, make_epoch_batches

QUICK = drawn.QUICK | {"split": "column=part", "head": "mlp", "widths": (16, 8), "epochs": 3}


@pytest.fixture
def case(tmp_path):
    frame = planted_table()
    return SimpleNamespace(frame=frame, store=fill_store(tmp_path / "store", frame), at=tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A table with its finished run, and the summary."""
    at = tmp_path_factory.mktemp("trained")
    frame = planted_table()
    case = SimpleNamespace(frame=frame, store=fill_store(at / "store", frame), at=at)
    case.summary, _ = quick_fit(case)
    return case


@pytest.fixture
def finished(trained, tmp_path):
    """Return a copy of the finished run and its store."""
    shutil.copytree(trained.at, tmp_path / "copy")
    return SimpleNamespace(
        frame=trained.frame.copy(),
        store=tmp_path / "copy/store",
        at=tmp_path / "copy",
        summary=trained.summary,
    )


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def quick_fit(case, name="run", **options):
    said = []
    options = used_options(QUICK, options.get("head", "mlp")) | {"say": said.append} | options
    summary = abag.fit(case.frame, case.store, case.at / name, **options)
    return summary, said


@pytest.mark.parametrize("how", ["column", "file"])
def test_sequences_of_unused_pairs_alone_are_not_known_to_the_predictor(case, how):
    antibodies = case.frame["heavy"].unique()
    case.frame.loc[case.frame["heavy"].isin(antibodies[:4]), "part"] = "unused"
    split = "column=part"
    if how == "file":
        write_split(case.frame, case.at / "split.parquet", split=split)
        split = f"file={case.at / 'split.parquet'}"
    quick_fit(case, head="ridge", split=split)
    predictor = abag.load_predictor(case.at / "run")
    assert len(predictor.seen["antibody"].keys) == len(antibodies) - 4
    assert predictor.antibody.training_sequences == len(antibodies) - 4
    scores = abag.predict(case.frame, predictor, store=case.store, say=False)
    is_unused = case.frame["part"] == "unused"
    assert (scores.loc[is_unused, "regime"] != "known").all()
    assert (scores.loc[~is_unused, "regime"] == "known").all()


@pytest.mark.ci
@pytest.mark.parametrize("head", ["ridge", *in_ci("mlp")])
def test_a_learning_curve_scores_heads_of_fewer_training_groups_on_the_same_test_rows(case, head):
    options = {"head": head, "split": "random", "folds": 2}
    summary, _ = quick_fit(case, learning_curve=True, **options)
    curve = summary["learning_curve"]
    (regime,) = summary["regimes"]
    assert [point["share"] for point in curve] == [0.125, 0.25, 0.5, 1.0]
    sizes = [point["training_pairs"] for point in curve]
    assert sizes == pytest.approx([sizes[-1] * point["share"] for point in curve], abs=1)
    assert {point["score"]["n"] for point in curve} == {regime["n"]}
    assert curve[-1]["score"].items() <= regime.items()
    assert curve[0]["score"]["rmse"] != regime["rmse"]
    plain, _ = quick_fit(case, "plain", **options)
    assert without_times(plain | {"learning_curve": curve}) == without_times(summary)
    (case.at / "run" / "summary.json").unlink()  # as if it had been interrupted at the very end
    resumed, _ = quick_fit(case, learning_curve=True, **options)
    assert without_times(resumed) == without_times(summary)


def test_points_of_a_learning_curve_count_distances_from_their_own_training_pairs(
    tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    variants = []
    for _ in range(80):
        residues = list(HEAVY)
        for at in rng.choice(np.arange(98, 104), rng.integers(1, 4), replace=False):
            residues[at] = rng.choice(list("ADEFGHKLNPQSTVWY"))
        variants.append("".join(residues))
    frame = pd.DataFrame({"heavy": variants, "light": LIGHT, "antigen": "ACDEFGHIKL" * 4})
    frame["pKd"] = [8 + 0.3 * row["heavy"][98:104].count("W") for row in frame.to_dict("records")]
    frame["pKd"] += rng.normal(0, 0.2, len(frame))
    frame = frame.drop_duplicates("heavy", ignore_index=True)
    case = SimpleNamespace(frame=frame, at=tmp_path, store=fill_store(tmp_path / "store", frame))
    points = []
    weigh_run = fit_of_runs.weigh_run

    def weighed(pairs, folds):
        points.append((pairs, folds[0][0].splits))
        return weigh_run(pairs, folds)

    monkeypatch.setattr(fit_of_runs, "weigh_run", weighed)
    quick_fit(case, learning_curve=True, head="ridge", split="random", folds=3)
    assert len(points) == 4  # of the run and of three shares
    for pairs, splits in points:
        heavy = [pairs.table.antibodies.chains[number][0] for number in pairs.antibody]
        for split in splits:
            trained = learned_rows(split)
            for row in split.rows(TEST):
                nearest = min(
                    sum(a != b for a, b in zip(heavy[row], heavy[other], strict=True))
                    for other in trained
                )
                assert split.distance[row] == nearest > 0


def test_a_learning_curve_leaves_out_sizes_with_nothing_to_learn(case):
    case.frame = case.frame.head(12).assign(pKd=[8.0] * 6 + [7.0] * 6)
    summary, said = quick_fit(case, learning_curve=True, head="ridge", split="random", folds=5)
    left_out = "learning curve: 12.5% of the training groups left out: "
    assert any(line.startswith(left_out) for line in said)
    assert summary["learning_curve"][-1]["share"] == 1.0


def same_results(first, other):
    """Whether two runs have trained to the same bits: log, predictions and what is kept."""

    def results(run):
        log = [without_times(line) for line in lines_of(run)]
        files = ("baselines.parquet", "predictor/weights.safetensors")
        return log, [(run / name).read_bytes() for name in files]

    return results(first) == results(other)


def validated(run, metric):
    return [line["validation"][metric] for line in lines_of(run) if "validation" in line]


def without_times(summary):
    ignored = ("run", "seconds", "resumed_from_step")
    return {key: value for key, value in summary.items() if key not in ignored}


def test_the_run_folder_contains_the_documented_files(case):
    quick_fit(case, report=True)
    run = case.at / "run"
    files = {path.name for path in run.iterdir()}
    assert files >= {
        "config.json",
        "report.html",
        "predictions.parquet",
        "pairs.parquet",
        "baselines.parquet",
        "metrics.jsonl",
        "predictor",
        "summary.json",
    }
    assert "checkpoints" not in files
    written = json.loads((run / "config.json").read_text())
    assert {field.name for field in fields(FitConfig)} <= written.keys()
    assert written["lr"] is not None
    splits = pd.read_parquet(run / "splits.parquet")
    assert list(splits) == ["antibody_key", "antigen_key", "split", "fold", "group"]
    assert set(splits["split"]) == {"train", "validation", "test"}
    assert len(splits) == len(case.frame)
    assert not list(run.rglob("*.partial"))


def test_sigma_of_members_without_weight_is_the_one_that_was_measured(case):
    summary, _ = quick_fit(case, members=3, epochs=1, lr=3e-3)  # hardly trained
    (weights,) = (regime["weights"] for regime in summary["regimes"])
    assert "mlp" not in weights
    out = case.at / "scores.csv"
    abag.predict(case.frame, case.at / "run", out=out, store=case.store)
    assert pd.read_csv(out)["sigma"].nunique() > 1


def test_scores_are_computed_from_the_written_predictions(case):
    (regime,) = quick_fit(case, split="random", folds=3)[0]["regimes"]
    predictions = pd.read_parquet(case.at / "run/predictions.parquet")
    assert sorted(predictions["fold"].unique()) == [0, 1, 2]
    assert len(predictions) == len(case.frame)
    square = (predictions["pkd"] - predictions["pkd_predicted"]) ** 2
    assert regime["rmse"] == pytest.approx(np.sqrt(square.mean()))
    fold_rmse = np.sqrt(square.groupby(predictions["fold"]).mean())
    assert regime["metrics"]["head"]["rmse"] == pytest.approx(fold_rmse.mean())
    inside = np.sqrt(square) <= 1.6449 * predictions["sigma"]
    assert regime["coverage"] == pytest.approx(inside.mean())


def test_the_log_has_one_line_per_epoch_with_loss_and_validation(case, monkeypatch):
    set_sizes(monkeypatch, validation_pairs=5)
    quick_fit(case)
    lines = lines_of(case.at / "run")
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 6), (2, 12), (3, 18)]
    assert all(line["validation_pairs"] == 5 and "spearman" in line["validation"] for line in lines)


@pytest.mark.ci
def test_training_stops_when_validation_no_longer_improves_and_heads_of_all_pairs_earlier(case):
    summary, _ = quick_fit(case, epochs=200, patience=3, lr=1e-2, select="rmse")
    scores = validated(case.at / "run", "rmse")
    assert len(scores) < 200
    assert len(scores) - 1 - int(np.argmin(scores)) == 3
    assert summary["epochs"] == int(np.argmin(scores)) + 1


def test_a_finished_run_has_nothing_to_do_whatever_the_order_of_rows_and_cannot_be_shortened(
    finished,
):
    before = content(finished.at)
    left = finished.at / "run" / "checkpoints" / "left"  # as a kill after the last file leaves it
    left.parent.mkdir()
    left.touch()
    finished.frame = finished.frame.sample(frac=1, random_state=1).reset_index(drop=True)
    again, said = quick_fit(finished)
    assert "nothing to do" in said[-1]
    assert again == finished.summary | {"run": str(finished.at / "run")}  # where it is now
    with pytest.raises(RunError, match=r"epochs = 3, and now has 2; .* Give epochs=3, or"):
        quick_fit(finished, epochs=2)
    assert content(finished.at) == before


def test_options_that_only_an_earlier_version_had_do_not_matter_to_a_finished_run(case):
    quick_fit(case, head="ridge")
    path = case.at / "run" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"allow_adapter_leak": False}))
    assert "nothing to do" in quick_fit(case, head="ridge")[1][-1]


@pytest.mark.ci
@pytest.mark.parametrize("steps", [1, 6, *in_ci(5, 7, 13)])
def test_a_resumed_run_equals_an_uninterrupted_one(case, monkeypatch, steps):
    whole, _ = quick_fit(case, "whole", save_every=2)
    stop_after(monkeypatch, steps)
    with pytest.raises(KeyboardInterrupt):
        quick_fit(case, "broken", save_every=2)
    monkeypatch.undo()
    resumed, _ = quick_fit(case, "broken", save_every=2)
    assert resumed["resumed_from_step"] == (steps // 2 * 2 or None)
    assert without_times(resumed) == without_times(whole)
    assert same_results(case.at / "broken", case.at / "whole")


@pytest.mark.ci
def test_a_signal_takes_effect_after_the_step_is_saved(case, monkeypatch):
    def interrupt(loss):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(2)  # the main thread, which may do something else, receives it
        return loss

    at_loss(monkeypatch, 4, interrupt)
    with pytest.raises(KeyboardInterrupt):
        quick_fit(case)
    monkeypatch.undo()
    assert quick_fit(case)[0]["resumed_from_step"] == 4


def test_a_finished_run_is_trained_anew_for_more_epochs(finished):
    summary, _ = quick_fit(finished, epochs=5)
    assert summary["resumed_from_step"] is None
    fresh, _ = quick_fit(finished, "fresh", epochs=5)
    assert without_times(summary) == without_times(fresh)
    assert same_results(finished.at / "run", finished.at / "fresh")


@pytest.mark.ci
@pytest.mark.parametrize("together", [True, False])
def test_a_resumed_cross_validation_equals_an_uninterrupted_one(case, monkeypatch, together):
    options = {"split": "random", "folds": 3, "epochs": 2, "save_every": 3}
    if not together:  # without room all folds train one by one
        set_sizes(monkeypatch, trained_cpu_bytes=0)
    whole, _ = quick_fit(case, "whole", **options)
    with monkeypatch.context() as patch:
        stop_after(patch, whole["steps"] // (6 if together else 2))
        with pytest.raises(KeyboardInterrupt):
            quick_fit(case, "broken", **options)
    resumed, _ = quick_fit(case, "broken", **options)
    assert without_times(resumed) == without_times(whole)
    assert same_results(case.at / "broken", case.at / "whole")


def test_resuming_with_another_configuration_or_table_is_refused(finished):
    for change in ({"lr": 0.5}, {"widths": (8,)}, {"seed": 3}, {"loss": "huber"}):
        with pytest.raises(RunError, match=rf"{next(iter(change))} was .* and is now"):
            quick_fit(finished, **change)
    finished.frame.loc[0, "pKd"] += 1
    with pytest.raises(RunError, match="labels or features of the table differ"):
        quick_fit(finished)


@pytest.mark.ci
@pytest.mark.parametrize("split", [{}, {"split": "random", "folds": 2}])
def test_a_verbose_run_reports_every_validation(case, split):
    _, said = quick_fit(case, verbose=True, **split)
    assert len([line for line in said if "validation Spearman" in line]) == QUICK["epochs"]
    assert not any("validation Spearman" in line for line in quick_fit(case, "quiet")[1])


def test_resuming_after_the_split_file_changed_is_refused(finished):
    case = finished
    frame = pd.read_parquet(case.at / "run/splits.parquet")
    frame.to_parquet(case.at / "split.parquet")
    quick_fit(case, "split", split=f"file={case.at / 'split.parquet'}")
    swapped = frame["split"].replace({"test": "validation", "validation": "test"})
    frame.assign(split=swapped).to_parquet(case.at / "split.parquet")
    with pytest.raises(RunError, match="differs from the split"):
        quick_fit(case, "split", split=f"file={case.at / 'split.parquet'}", epochs=4)


@pytest.mark.parametrize("tested", [1, 12])
def test_a_network_is_not_refused_for_the_chance_of_few_tested_pairs_or_of_one_group(case, tested):
    every = case.frame
    for seed in (2, 3, 4, 5):
        case.frame = every.sample(40, random_state=seed).reset_index(drop=True)
        case.frame["part"] = np.where(np.arange(40) < tested, "test", "train")
        split = "column=part"
        if tested > 1:
            case.frame["site"] = np.where(np.arange(40) < tested, "a", "b")
            split = "column=site"
        quick_fit(case, f"{seed}", split=split, lr=0.5, epochs=2, widths=(8,), seed=seed)


@pytest.mark.parametrize("where", ["column", "file"])
def test_a_finished_run_is_not_that_of_another_split_of_the_same_name(case, where):
    case.frame["part"] = "train"
    case.frame.loc[::4, "part"] = "test"
    split = "column=part"
    options = {"head": "ridge"}
    if where == "file":
        quick_fit(case, "first", split=split, **options)
        split = f"file={case.at / 'split.parquet'}"
        parts = pd.read_parquet(case.at / "first/splits.parquet")
        parts.to_parquet(case.at / "split.parquet")
    quick_fit(case, split=split, **options)
    _, said = quick_fit(case, split=split, **options)
    assert any("nothing to do" in line for line in said)
    case.frame["part"] = case.frame["part"].to_numpy()[::-1]
    if where == "file":
        parts.assign(split=parts["split"].to_numpy()[::-1]).to_parquet(case.at / "split.parquet")
    with pytest.raises(RunError, match="differs from the split"):
        quick_fit(case, split=split, **options)


@pytest.mark.ci
@pytest.mark.parametrize("ended", [True, False])
def test_a_run_is_resumed_with_its_split_file_at_another_place(case, monkeypatch, ended):
    quick_fit(case, "first")
    frame = pd.read_parquet(case.at / "first/splits.parquet")
    frame.to_parquet(case.at / "split.parquet")
    frame.to_csv(case.at / "moved.csv", index=False)
    split = f"file={case.at / 'split.parquet'}"
    with monkeypatch.context() as patch:
        stop_after(patch, 10**6 if ended else 3)
        with nullcontext() if ended else pytest.raises(KeyboardInterrupt):
            quick_fit(case, "run", split=split, save_every=1)
    (case.at / "split.parquet").unlink()
    moved = f"file={case.at / 'moved.csv'}"
    summary, said = quick_fit(case, "run", split=moved, save_every=1)
    assert ended == any("nothing to do" in line for line in said)
    assert ended or summary["resumed_from_step"]
    swapped = frame["split"].replace({"test": "validation", "validation": "test"})
    frame.assign(split=swapped).to_csv(case.at / "moved.csv", index=False)
    with pytest.raises(RunError, match="differs from the split"):
        quick_fit(case, "run", split=moved, save_every=1)


def test_a_folder_with_other_files_is_refused(case):
    (case.at / "run").mkdir()
    (case.at / "run/thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match=r"holds thesis\.txt and no run"):
        quick_fit(case)
    assert [p.name for p in (case.at / "run").iterdir()] == ["thesis.txt"]


@pytest.mark.ci
def test_a_finished_run_or_a_wrong_table_is_reported_before_torch_is_imported(finished):
    case = finished
    case.frame.to_csv(case.at / "pairs.csv", index=False)
    case.frame.assign(pkd="high").to_csv(case.at / "wrong.csv", index=False)
    code = f"""if True:
        import sys, abag
        options = {QUICK}
        finished = abag.fit("pairs.csv", "store", "run", **options)
        assert finished["steps"]
        try:
            abag.fit("wrong.csv", "store", "other", **options)
        except abag.AbagError as error:
            assert "wrong.csv" in str(error), error
        else:
            raise AssertionError
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], cwd=case.at, check=True)


def test_a_folder_takes_one_run_at_a_time(case):
    (case.at / "run").mkdir()
    with locked(case.at / "run"), pytest.raises(OutputError, match="another process"):
        quick_fit(case)
    assert not list((case.at / "run").iterdir())
    assert quick_fit(case)[0]["steps"] > 0


@pytest.mark.parametrize("same", [True, False])
def test_a_run_that_another_process_finishes_meanwhile_is_not_touched(case, monkeypatch, same):
    before_lock(monkeypatch, lambda: quick_fit(case, epochs=3 if same else 2))
    with pytest.raises(OutputError if same else RunError):
        quick_fit(case, seed=0 if same else 1)
    config = json.loads((case.at / "run/config.json").read_text())
    assert (config["epochs"], config["seed"]) == (3 if same else 2, 0)


@pytest.mark.parametrize("name", ["config.json", "summary.json", "splits.parquet"])
@pytest.mark.parametrize("damage", [b"", b"[1]", b"{", b"\xff\xfe", b"PAR1" * 3, b"[" * 10**5])
def test_a_damaged_file_of_a_run_is_named(finished, name, damage):
    run = finished.at / "run"
    (run / name).write_bytes(damage)
    if name == "splits.parquet":
        (run / "summary.json").unlink()
    with pytest.raises(DamagedFile, match=rf"run/{name}: (is )?damaged"):
        quick_fit(finished)
    assert (run / name).read_bytes() == damage


def test_a_run_killed_while_writing_its_first_file_starts_again(case):
    (case.at / "run").mkdir()
    left_by_the_dead(case.at / "run", "config").write_text('{"lr": ')
    quick_fit(case)
    assert not list((case.at / "run").rglob("*.partial"))


def test_a_damaged_latest_checkpoint_falls_back_to_the_previous_one(case, monkeypatch):
    stop_after(monkeypatch, 9)
    with pytest.raises(KeyboardInterrupt):
        quick_fit(case, save_every=4)
    monkeypatch.undo()
    latest = case.at / "run/checkpoints/latest"
    latest.write_bytes(latest.read_bytes()[:-9])
    summary, said = quick_fit(case, save_every=4)
    assert summary["resumed_from_step"] == 4
    assert any("Resuming from previous, step 4" in text for text in said)


def test_accumulated_batches_equal_one_large_batch(case):
    # 96 pairs in steps of 40: the last group is incomplete in both
    quick_fit(case, "large", batch_size=40, dropout=0.0, loss="huber")
    quick_fit(case, "parts", batch_size=10, accumulate=4, dropout=0.0, loss="huber")
    large, parts = (lines_of(case.at / name) for name in ("large", "parts"))
    assert [x["loss"] for x in large] == pytest.approx([x["loss"] for x in parts], rel=1e-4)


@pytest.mark.parametrize(("n", "batch_size", "accumulate"), [(96, 16, 1), (97, 16, 3), (5, 5, 1)])
def test_an_epoch_takes_every_pair_once_with_equal_weight_within_its_step(
    n, batch_size, accumulate
):
    training = np.arange(100, 100 + n)
    rows_SAGB, weight_SAGB = make_epoch_batches([training], 3, batch_size, accumulate, [n])
    assert sorted(rows_SAGB[weight_SAGB > 0]) == training.tolist()
    assert weight_SAGB.sum((1, 2, 3)) == pytest.approx(1)
    assert all(len(np.unique(w[w > 0])) == 1 for w in weight_SAGB)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4), take=st.integers(1, 60))
def test_the_order_of_a_feed_does_not_depend_on_other_feeds(lengths, take):
    training_sets = [np.arange(n) + 100 * k for k, n in enumerate(lengths)]
    together, _ = make_epoch_batches(training_sets, 5, 8, 2, [take] * len(lengths))
    for k, training in enumerate(training_sets):
        alone, _ = make_epoch_batches([training], 5, 8, 2, [take])
        assert np.array_equal(together[:, :, k], alone[:, :, 0])


def test_the_learning_rate_rises_and_then_decays_to_zero():
    rates = cosine_rates(0, 100, 100, 1e-3)
    assert rates[:5] == pytest.approx(np.linspace(2e-4, 1e-3, 5))
    assert (np.diff(rates[5:]) < 0).all()
    assert rates[-1] < 1e-6
    assert cosine_rates(40, 7, 100, 1e-3) == pytest.approx(rates[40:47])


def test_the_seed_changes_the_result_and_the_global_random_state_is_restored(case):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    quick_fit(case, "one", seed=1)
    quick_fit(case, "other", seed=2, split_seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not same_results(case.at / "one", case.at / "other")


@pytest.mark.parametrize(("change", "error", "said"), [
    (lambda frame: frame.assign(pKd=7.0), LabelError, "labels are 7"),
    (lambda frame: frame.drop(columns="pKd"), abag.AbagError, "pkd"),
    (lambda frame: frame.assign(pKd=frame["pKd"].where(frame.index != 4)), LabelError, "row 5"),
])  # fmt: skip
def test_a_table_without_usable_labels_is_refused_before_the_run_exists(case, change, error, said):
    case.frame = change(case.frame)
    with pytest.raises(error, match=said):
        quick_fit(case)
    assert not (case.at / "run").exists()


def test_missing_vectors_are_reported_with_the_command_that_adds_them(case):
    case.store = fill_store(case.at / "partial", case.frame, drop=3)
    with pytest.raises(MissingVectors, match=r"3 of 30 antibody.*abag embed .* --store"):
        quick_fit(case)
    assert not (case.at / "run").exists()


def test_a_validation_set_too_small_for_a_correlation_falls_back_to_the_newest_weights(case):
    part = ["train"] * 7 + ["validation", "test", "test"]
    case.frame = case.frame[:10].assign(part=part)
    summary, _ = quick_fit(case)
    assert {line["validation"]["spearman"] for line in lines_of(case.at / "run")} == {None}
    assert summary["epochs"] == QUICK["epochs"]


def test_a_loss_of_nan_stops_with_its_step_and_keeps_the_checkpoint(case, monkeypatch):
    at_loss(monkeypatch, 5, lambda loss: loss * float("nan"))
    with pytest.raises(TrainingError, match=r"nan at step 5; .* step 4 is kept"):
        quick_fit(case, save_every=2)
    monkeypatch.undo()
    assert quick_fit(case, save_every=2)[0]["resumed_from_step"] == 4


def test_weights_that_are_not_finite_are_never_saved(case):
    with pytest.raises(TrainingError):
        quick_fit(case, lr=10.0, weight_decay=1e38, save_every=1)
    assert not (case.at / "run/summary.json").exists()


def test_an_unknown_option_and_device_are_refused(case):
    with pytest.raises(
        OptionError, match=r"fit: unknown option 'learning_rate'\. Did you mean 'lr'"
    ):
        quick_fit(case, learning_rate=1)
    with pytest.raises(DeviceError, match=r"^device warp"):
        quick_fit(case, device="warp")
    with pytest.raises(OptionError, match=r'^compile="full"'):
        quick_fit(case, compile="full")


@pytest.mark.parametrize("head", ["mlp", "ridge", "stack"])
def test_a_training_part_without_an_exact_label_is_refused_before_the_run_exists(case, head):
    case.frame["part"] = (["train"] * 5 + ["validation", "test"] * 2)[:7] * 17 + ["train"]
    case.frame["relation"] = np.where(case.frame["part"] == "train", ">=", "")
    with pytest.raises(LabelError, match="training part are censored"):
        quick_fit(case, split="column=part", head=head)
    assert not (case.at / "run").exists()


def stopped_run(case, monkeypatch, name="run", **options):
    with monkeypatch.context() as patch:
        stop_after(patch, 9)
        with pytest.raises(KeyboardInterrupt):
            quick_fit(case, name, save_every=4, **options)
    return case.at / name


def test_a_log_that_is_not_that_of_the_checkpoint_is_written_again(case, monkeypatch):
    log = stopped_run(case, monkeypatch) / "checkpoints/log.jsonl"
    kept = log.read_bytes()
    log.write_bytes(kept + kept[:9])  # as if it had been killed while it wrote
    quick_fit(case, save_every=4)
    assert [line["epoch"] for line in lines_of(case.at / "run")] == [1, 2, 3]


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"lr": 0.02}, {"weight_decay": 0.5}, {"split_seed": 3}]
)
def test_a_checkpoint_of_another_training_is_refused(case, monkeypatch, change):
    run = stopped_run(case, monkeypatch)
    other = stopped_run(case, monkeypatch, "other", **change)
    latest = next(other.rglob("latest"))
    shutil.copy(run / "checkpoints" / "latest", latest)
    latest.with_name("previous").unlink(missing_ok=True)
    with pytest.raises(RunError, match="belong to another training"):
        quick_fit(case, "other", save_every=4, **change)


# --- what only a GPU can show: pytest -m gpu ------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["graph", "full"])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replayed_graph_agrees_with_eager_steps_on_a_gpu(case, way, members, precision):
    options = {"device": "cuda", "batch_size": 16, "epochs": 4, "dropout": 0.0}
    options |= {"members": members, "precision": precision}
    quick_fit(case, "eager", compile="off", **options)
    quick_fit(case, "replayed", compile=way, **options)
    eager, replayed = (lines_of(case.at / name)[:20] for name in ("eager", "replayed"))
    near = 1e-3 if precision == "fp32" else 0.02
    assert [x["loss"] for x in replayed] == pytest.approx([x["loss"] for x in eager], rel=near)


@pytest.mark.gpu
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("way", ["off", "graph", "full"])
@pytest.mark.parametrize("steps", [3, 7])
def test_a_resumed_run_on_a_gpu_equals_an_unbroken_one_bit_for_bit(
    case, monkeypatch, members, way, steps
):
    options = {"device": "cuda", "deterministic": True, "compile": way, "save_every": 2}
    options["members"] = members
    quick_fit(case, "whole", **options)
    stop_after(monkeypatch, steps)
    with pytest.raises(KeyboardInterrupt):
        quick_fit(case, "broken", **options)
    monkeypatch.undo()
    resumed, _ = quick_fit(case, "broken", **options)
    assert resumed["resumed_from_step"] == steps // 2 * 2
    assert same_results(case.at / "broken", case.at / "whole")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu_gives_the_bits_of_the_first(case):
    for device in ("cuda:0", "cuda:1"):
        quick_fit(case, device, device=device, deterministic=True)
    assert same_results(case.at / "cuda:0", case.at / "cuda:1")


@pytest.mark.gpu
@pytest.mark.parametrize("members", [1, 3])
def test_tables_on_the_host_give_the_same_bits_as_on_the_gpu(case, monkeypatch, members):
    options = {"device": "cuda", "deterministic": True, "members": members}
    quick_fit(case, "device", **options)
    keep_tables_on_host(monkeypatch)
    quick_fit(case, "host", **options)
    assert same_results(case.at / "device", case.at / "host")


def test_a_disk_that_is_full_when_the_predictor_is_written_is_one_line(case, monkeypatch):
    fill_disk_for_tensors(monkeypatch, "numpy")
    with pytest.raises(OutputError, match=r"weights\.safetensors: cannot be written \(No space"):
        quick_fit(case)
    monkeypatch.undo()
    assert quick_fit(case)[0]["steps"]


def test_a_last_batch_of_one_pair_can_be_trained_on(case):
    quick_fit(case, batch_size=95)
    lines = lines_of(case.at / "run")
    assert len(lines) == 3
    assert all(np.isfinite(line["loss"]) for line in lines)


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [16, 33])
def test_several_heads_in_half_precision_stay_near_full_precision_on_a_gpu(case, batch_size):
    options = {"device": "cuda", "batch_size": batch_size, "epochs": 7, "members": 4}
    options |= {"dropout": 0.0, "lr": 1e-3, "widths": (33, 8)}  # no multiple of anything
    for precision in ("fp32", "auto"):
        quick_fit(case, precision, precision=precision, **options)
    full, half = (lines_of(case.at / name)[:20] for name in ("fp32", "auto"))
    assert [x["losses"] for x in half] == pytest.approx(
        np.array([x["losses"] for x in full]), rel=0.05
    )
    assert [x["losses"] for x in half] != [x["losses"] for x in full]


@pytest.mark.gpu
def test_members_take_the_steps_of_single_heads_on_a_gpu(case, monkeypatch):
    train_without_bootstrap(monkeypatch)
    options = {"head": "mlp", "device": "cuda", "dropout": 0.0, "precision": "fp32", "epochs": 4}
    options |= {"split_seed": 0}
    quick_fit(case, "all", members=3, **options)
    together = np.array([x["losses"] for x in lines_of(case.at / "all")[:20]])
    for k in range(3):
        quick_fit(case, f"{k}", seed=k, **options)
        alone = [x["loss"] for x in lines_of(case.at / f"{k}")[:20]]
        assert together[:, k] == pytest.approx(alone, rel=5e-3)  # TF32 rounds by its own order
