"""Random options of fit, predict, rank, scan and sweep on small tables end well or in one line.

By hand: ``python tests/test_fit_options.py COUNT SEED --jobs J``; the tests are those of seed 0.
"""

import json
import random
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import many
import numpy as np
import pandas as pd
import pytest
from drawn import COMPOSITION
from heads import BASELINES, demo_table, schema, store_vectors, used_options
from marks import in_ci

import abag
from abag import AbagError, FitConfig, SweepOptions, TrainingError
from abag.core.messages import reporting

NUMBERS = {
    "limit": [None, None, None, 9, 30],
    "label": ["pkd", "pkd", "pkd", "pkd", "dg_kcal"],
    "split": ["auto", "random", "antigen", "antibody", "antibody", "both", "mutations",
              "mutations=1:3", "column=part", "column=part", "column=none"],
    "folds": [0, 0, 0, 2, 3],
    "repeats": [1, 2],
    "antigen_identity": [0.1, 0.4, 1.0],
    "antibody_identity": [0.1, 0.9, 1.0],
    "seed": [0, 7],
    "split_seed": [None, 3],
    "widths": [(1,), (8,), (8, 4)],
    "dropout": [None, 0.0, 0.95],
    "epochs": [1, 2],
    "batch_size": [None, 1, 2, 500],
    "accumulate": [None, 1, 3],
    "lr": [None, 1e-9, 1e-2, 10.0],
    "weight_decay": [None, 0.0, 1e3],
    "members": [1, 1, 2, 3],
    "patience": [0, 1],
    "save_every": [None, 1],
    "threads": [1],
    "device": ["cpu"],
    "head": [None, "stack", "kernel", "gp", "ridge", "antibody_ridge", "mlp"],
    "antibody_pooling": ["mean"] * 9 + ["cls"],
    "compile": ["auto", "off"],
}  # fmt: skip
"""Values of the options that are not choices; the others keep their default."""
PREDICT = {
    "cross": [None, None, "itself"], "antigen": [None, None, "MKTAYIAKQR", "MKT1"],
    "bad_rows": ["error", "skip"], "limit": [None, 1, 7], "chains": ["as-given", "auto", "most"],
    "columns": [{}, {}, {"heavy": "antigen"}, {"antigen": "nothing"}],
    "suffix": [".csv", ".tsv", ".parquet", ".csv.gz"],
}  # fmt: skip
RANK = {
    "batch": [1, 5, 96], "rule": ["ucb", "mean", "improvement", "probability", "nothing"],
    "explore": [0.0, 2.5, float("inf")], "best": [7.0, -1e9], "above": [7.0, 1e9],
    "measured": ["itself", None, None], "keep_far": [False, True, True],
    "run": [True, True, None],
    "antigen": [None, None, "MKTAYIAKQR"], "bad_rows": ["error", "skip"], "limit": [None, 3],
}  # fmt: skip
SCAN = {
    "region": [None, "cdrh3", "cdrl1,cdrh2", "antigen", "nothing"],
    "positions": [None, None, None, "H105-H107", "A1,A2", "H999", "L1"],
    "mutate_to": ["A", "AC", "ACDEFGHIKLMNPQRSTVWY", "B"], "exclude": [None, "C", "A"],
    "pairs_of": [None, None, 2], "antigen": [None, None, "MKTAYIAKQR"],
    "chains": ["as-given", "auto", "most"], "bad_rows": ["error", "skip"],
}  # fmt: skip
SWEEP = {"trials": [1, 2], "folds": [2, 3, 9], "final": [False, True], "members": [1, 2]}


def random_options(rng):
    drawn = {"widths": (8,), "epochs": 1, "device": "cpu", "report": False}
    for option in schema(FitConfig):
        flags = [False, True] if option.type is bool else []
        values = NUMBERS.get(option.name) or option.choices or flags
        if values and rng.random() < 0.4:
            drawn[option.name] = rng.choice(values)
    preset = FitConfig(preset=drawn.get("preset", "small"))
    return used_options(drawn, drawn.get("head") or preset.filled().head)


def random_table(rng):
    """Draw a small table of pairs with labels of one of many kinds."""
    demo = demo_table()
    n = rng.choice([1, 2, 4, 8, 12, 20, 20, 30, 40, 60])
    heavy = rng.sample(sorted(demo["heavy"].unique()), rng.randint(min(n, 3), min(n, 20)))
    antigen = rng.sample(sorted(demo["antigen"].unique()), rng.randint(1, 5))
    draw = np.random.default_rng(rng.randrange(1 << 30))
    frame = pd.DataFrame({"heavy": draw.choice(heavy, n), "antigen": draw.choice(antigen, n)})
    pkd = 7 + draw.normal(size=n)
    kind = rng.choice(["normal"] * 4 + ["constant", "two", "sequence", "outlier"])
    if kind == "constant":
        pkd[:] = 7.0
    elif kind == "two":
        pkd = np.where(pkd > 7, 9.0, 5.0)
    elif kind == "sequence":  # the label says which antibody it is
        pkd = np.unique(frame["heavy"], return_inverse=True)[1] / 10 + 6.1
    elif kind == "outlier":
        pkd[0] = 13.0
    frame["pKd"] = pkd
    frame["part"] = draw.choice(["train", "train", "validation", "test"], n)
    kind = rng.choice(["exact"] * 3 + ["some", "some", "validation", "test", "all"])
    censored = {
        "exact": np.zeros(n, bool),
        "some": draw.random(n) < 0.3,
        "all": np.ones(n, bool),
    }.get(kind, (frame["part"] == kind).to_numpy())
    if kind != "exact":
        bounds = [f">={10**-p:.9e}" if n % 2 else ">=" for p in pkd]
        frame["relation"] = np.where(censored, bounds, "")
    return frame


def random_vectors(rng, store, frame):
    """Store vectors, some of them equal, empty of information or of very unequal size."""
    kind = rng.choice(["normal", "normal", "equal", "zeros", "large", "one"])
    draw = np.random.default_rng(rng.randrange(1 << 30))

    def vectors_of(_kind, number):
        x_ND = draw.normal(size=(number, 1 if kind == "one" else 6))
        if kind == "equal":
            x_ND[:] = x_ND[0]
        elif kind == "zeros":
            x_ND[:, 1:] = 0
        elif kind == "large":
            x_ND[:, 0] *= 1e4
        return x_ND

    store_vectors(store, frame, vectors_of)


def is_encoded(seed: int) -> bool:
    """Tell whether the vectors are those of an encoder, which can encode mutants."""
    return seed % 2 == 0


def fit_at_random(folder: Path, seed: int) -> AbagError | None:
    """Fit once with a seed's table and options; return why it was refused."""
    rng = random.Random(seed)
    frame = random_table(rng)
    options = random_options(rng)
    if is_encoded(seed):
        with reporting(silent=True):
            abag.embed_table(frame, folder / "store", **COMPOSITION)
    else:
        random_vectors(rng, folder / "store", frame)
    run = folder / "run"
    try:
        summary = abag.fit(frame, folder / "store", run, say=lambda _: None, **options)
    except AbagError as error:
        return error
    json.dumps(summary, allow_nan=False)
    predictions = pd.read_parquet(run / "predictions.parquet").select_dtypes("number")
    assert np.isfinite(predictions).all(axis=None)
    abag.load_predictor(run)
    return None


def drawn(rng: random.Random, values: dict[str, list[Any]], share: float = 0.6) -> dict[str, Any]:
    return {name: rng.choice(of) for name, of in values.items() if rng.random() < share}


def predict_at_random(folder: Path, seed: int) -> AbagError | None:
    """Score the table of a finished run with a seed's options; return why it was refused."""
    rng = random.Random(seed)
    # that of the run first
    frame = random_table(rng)
    options = drawn(rng, PREDICT)
    if rng.random() < 0.2:
        frame = random_table(rng)
    out = folder / f"out{options.pop('suffix', '.csv')}"
    if options.get("cross"):
        options["cross"] = frame
    try:
        abag.predict(frame, folder / "run", out, say=lambda _: None, device="cpu", **options)
    except AbagError as error:
        assert not out.exists()
        return error
    assert out.stat().st_size
    return None


def rank_at_random(folder: Path, seed: int) -> AbagError | None:
    """Choose from the predictions of `predict_at_random`; return why it was refused."""
    rng = random.Random(seed)
    frame = random_table(rng)
    options = drawn(rng, RANK, 0.15)
    out = folder / f"chosen{rng.choice(['.csv', '.parquet'])}"
    options |= {"run": folder / "run"} if options.get("run") else {}
    options |= {"measured": frame} if options.get("measured") else {}
    predictions = next(folder.glob("out.*"))
    try:
        abag.rank(predictions, out, say=lambda _: None, **options)
    except AbagError as error:
        assert not out.exists()
        return error
    assert out.stat().st_size
    return None


def scan_at_random(folder: Path, seed: int) -> AbagError | None:
    """Predict mutants with a finished run; return why it was refused."""
    rng = random.Random(seed)
    frame = random_table(rng)
    options = {"mutate_to": "AC"} | drawn(rng, SCAN, 0.15)
    out = folder / f"mutants{rng.choice(['.csv', '.parquet'])}"
    options |= {"parents": frame, "limit": 1}
    try:
        abag.scan(folder / "run", out, say=lambda _: None, device="cpu", **options)
    except AbagError as error:
        assert not out.exists()
        return error
    assert out.stat().st_size
    return None


def sweep_at_random(folder: Path, seed: int) -> AbagError | None:
    """Search with a seed's options; return why it was refused."""
    rng = random.Random(seed)
    frame = random_table(rng)
    options = random_options(rng)
    random_vectors(rng, folder / "swept", frame)
    accepted = {option.name for option in schema(FitConfig)} - SweepOptions.leaves_out
    options = {name: value for name, value in options.items() if name in accepted}
    options |= {"trials": 1} | drawn(rng, SWEEP)
    try:
        abag.sweep(frame, folder / "swept", folder / "sweep", say=lambda _: None, **options)
    except AbagError as error:
        return error
    return None


def check_all(folder: Path, seed: int) -> Counter[str]:
    """Run the commands with a seed's options; return how they ended."""
    ends: Counter[str] = Counter()

    def end(name: str, refused: AbagError | None) -> bool:
        assert "\n" not in str(refused).replace("\n  row", "")  # bad rows have lines of their own
        assert "unknown option" not in str(refused)  # the case would test nothing
        ends[f"{name}, {'done' if refused is None else f'refused: {type(refused).__name__}'}"] += 1
        return refused is None

    refused = fit_at_random(folder, seed)
    late = refused is None or isinstance(refused, TrainingError)
    assert (folder / "run").exists() == late, str(refused)
    if end("fit", refused):
        if end("predict", predict_at_random(folder, seed)):
            end("rank", rank_at_random(folder, seed))
        if is_encoded(seed):
            end("scan", scan_at_random(folder, seed))
    if seed % 10 == 0:
        end("sweep", sweep_at_random(folder, seed))
    return ends


def check_case(series: int, number: int) -> Counter[str]:
    """Check one of many cases; its folder is kept if it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"abag-options-{series}-{number}-"))
    ends = check_all(folder, 1_000_000 * series + number)
    shutil.rmtree(folder)
    return ends


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 1000)]


@pytest.mark.parametrize("seed", [*range(6), *in_ci(*range(6, 20)), *SLOW])
def test_commands_end_well_or_in_one_line_with_any_options(tmp_path, seed):
    assert check_all(tmp_path, seed)


def test_a_baseline_that_does_not_apply_to_all_folds_is_left_out(tmp_path, monkeypatch):
    def in_second_fold(inputs):
        return inputs.pairs.pkd * 0 if inputs.split.fold == 1 else None

    monkeypatch.setitem(BASELINES, "sometimes", in_second_fold)
    frame = demo_table().head(40)
    abag.embed_table(frame, tmp_path / "store", **COMPOSITION)
    summary = abag.fit(
        frame,
        tmp_path / "store",
        tmp_path / "run",
        say=lambda _: None,
        head="ridge",
        folds=2,
        split="random",
        report=False,
    )
    (regime,) = summary["regimes"]
    assert "sometimes" not in regime["metrics"]
    assert "ridge" in regime["metrics"]


if __name__ == "__main__":
    many.main(lambda seed: partial(check_case, seed), __doc__)
