"""Changes of antigens from the nearest training antigen."""

import json
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

import abag
from abag.head.prediction import antigen_changes as module
from abag.head.prediction.antigen_changes import (
    UNLIKE,
    TrainingAntigens,
    load_antigens,
    measure_antigens,
    nearest_edits,
    save_antigens,
)
from abag.head.prediction.predictor import PredictorDamaged

RESIDUES = list("ACDEFGHIKLMNPQRSTVWY")
QUIET = {"say": lambda _text: None}


def drawn(rng, length):
    return "".join(rng.choice(RESIDUES, length))


def mutated(rng, text, edits):
    """Substitute, insert and delete residues."""
    for _ in range(edits):
        at, kind = rng.integers(len(text)), rng.integers(3)
        text = text[:at] + ("", "W", "C")[kind] + text[at + (kind < 2) :]
    return text


def plain(asked, others):
    """The least edits to one of the others that is at least 90 % identical, by a loop."""
    found = []
    for one in asked:
        edits = [(Levenshtein.distance(one, o), max(len(one), len(o))) for o in others]
        found.append(min((d for d, n in edits if d <= int(0.1 * n + 1e-9)), default=UNLIKE))
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 256]))
def test_nearest_edits_equal_a_plain_loop(seed, block):
    rng = np.random.default_rng(seed)
    parents = [drawn(rng, n) for n in rng.integers(22, 120, 4)]  # none loses all residues
    others = [*parents, *(mutated(rng, parents[n % 4], n % 9) for n in range(12))]
    others.append("|".join(parents[:2]))
    asked = [mutated(rng, others[n], int(rng.integers(14))) for n in range(len(others))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        assert nearest_edits(asked, others).tolist() == plain(asked, others)
        rows = np.arange(len(others))
        alone = [plain([o], others[:n] + others[n + 1 :])[0] for n, o in enumerate(others)]
        assert nearest_edits(others, others, themselves=rows).tolist() == alone


def test_a_training_antigen_has_no_changes_and_an_unlike_one_an_empty_cell():
    rng = np.random.default_rng(0)
    parent, partner = drawn(rng, 100), drawn(rng, 60)
    known = measure_antigens([(parent,), tuple(sorted((parent, partner)))])
    single = parent[:50] + ("W" if parent[50] != "W" else "C") + parent[51:]
    asked = [(parent,), (single,), (parent[:-4],), (drawn(rng, 100),), (partner,)]
    found = known.count(asked)
    assert found[:, 0].tolist() == [0, 1, 4, UNLIKE, UNLIKE]
    cells = known.columns(found)["antigen_changes"]
    assert [None if pd.isna(n) else n for n in cells] == [0, 1, 4, None, None]
    assert str(cells.dtype) == "Int16"
    again = pickle.loads(pickle.dumps(known))
    assert again.count(asked).tolist() == found.tolist()


def test_variants_with_more_changes_than_those_in_training_are_far():
    rng = np.random.default_rng(1)
    parent = drawn(rng, 200)

    def variant(n):
        at = set(rng.choice(200, n, replace=False).tolist())
        return "".join("AW"[r == "A"] if k in at else r for k, r in enumerate(parent))

    training = [parent, *(variant(2) for _ in range(120))]
    known = measure_antigens([(one,) for one in dict.fromkeys(training)])
    held_out = known.count([(variant(2),) for _ in range(200)])
    assert known.is_far(held_out).mean() <= 0.03
    assert known.is_far(known.count([(variant(12),) for _ in range(50)])).all()
    assert known.is_far(known.count([(drawn(rng, 200),)])).all()


def test_unrelated_training_antigens_set_no_limit_and_a_single_one_is_all_that_is_known():
    rng = np.random.default_rng(2)
    unrelated = measure_antigens([(drawn(rng, 80),) for _ in range(20)])
    new = [(drawn(rng, 80),), (unrelated.antigens[0][:-3],)]
    assert unrelated.most_changes is None
    assert not unrelated.is_far(unrelated.count(new)).any()
    alone = measure_antigens([(unrelated.antigens[0],)])
    assert alone.is_far(alone.count([*new, (alone.antigens[0],)])).tolist() == [True, True, False]


def test_more_antigens_than_the_limit_are_not_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_ANTIGENS", 1)
    save_antigens(tmp_path, TrainingAntigens(["MKT"], 0), "a")
    save_antigens(tmp_path, measure_antigens([("MKT",), ("WWW",)]), "a")
    assert load_antigens(tmp_path, "a") is None


@pytest.mark.parametrize(
    "change",
    [
        {"antigens": []},
        {"antigens": ["MK1"]},
        {"antigens": ["MK||T"]},
        {"antigens": [""]},
        {"antigens": [3]},
        {"antigens": "MKT"},
        {"most_changes": -1},
        {"most_changes": True},
        {"most_changes": 1.5},
        {"more": 1},
    ],
)
def test_forged_training_antigens_are_refused(tmp_path, change):
    record = {"most_changes": 1, "antigens": ["MKT|AAA"]}
    for found in (record, record | change):
        digest = module._digest(found, "a")
        (tmp_path / "antigens.json").write_text(json.dumps({"digest": digest, **found}))
        if found is record:
            assert load_antigens(tmp_path, "a").antigens == ("MKT|AAA",)
    with pytest.raises(ValueError, match="training antigens are not valid"):
        load_antigens(tmp_path, "a")


# ---- fit, predict --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    at, rng = tmp_path_factory.mktemp("antigens"), np.random.default_rng(0)
    parent = drawn(rng, 80)
    antigens = [parent, *(mutated(rng, parent, 1) for _ in range(12))]
    heavy = [drawn(rng, 30) for _ in range(6)]
    table = pd.DataFrame([(h, g) for h in heavy for g in antigens], columns=["heavy", "antigen"])
    table["pKd"] = 8 + rng.normal(size=len(table))
    abag.embed_table(table, at / "store", "composition", "composition")
    options = {"split": "random", "head": "ridge", "report": False}
    abag.fit(table, at / "store", at / "run", **options, **QUIET)
    return at, table


def test_predict_all_pairs_the_predictor_and_a_scan_count_the_same_changes(case, tmp_path):
    at, table = case
    rng, parent, said = np.random.default_rng(1), table["antigen"][0], []
    antigens = [parent, parent[:-2], parent[:20] + "WWWWWW" + parent[20:], drawn(rng, 80)]
    asked = pd.DataFrame({"heavy": table["heavy"][0], "antigen": antigens})
    summary = abag.predict(asked, at / "run", tmp_path / "a.parquet", say=said.append)
    found = pd.read_parquet(tmp_path / "a.parquet")
    assert [None if pd.isna(n) else n for n in found["antigen_changes"]] == [0, 2, 6, None]
    assert found["far_antigen"].tolist()[2:] == [True, True]
    assert summary["far_by"]["antigen_changes"] >= 2
    abag.predict(asked, at / "run", tmp_path / "b.parquet", cross=asked, **QUIET)
    crossed = pd.read_parquet(tmp_path / "b.parquet")
    direct = abag.load_predictor(at / "run").predict(asked["heavy"], None, antigens, **QUIET)
    for other in (crossed, direct):
        cells = other["antigen_changes"].astype("Int16")  # files are read back as float
        assert cells.equals(found["antigen_changes"].astype("Int16"))
        assert other["far_antigen"].tolist() == found["far_antigen"].tolist()
    scanned = {"heavy": table["heavy"][0], "antigen": parent, "region": "antigen"}
    abag.scan(at / "run", tmp_path / "c.parquet", **scanned, **QUIET)
    assert set(pd.read_parquet(tmp_path / "c.parquet")["antigen_changes"]) <= {0, 1}


def test_a_predictor_without_its_training_antigens_predicts_the_same_without_the_column(
    case, tmp_path
):
    at, table = case
    abag.share(at / "run", tmp_path / "shared")
    assert not (tmp_path / "shared/antigens.json").exists()
    both = [
        abag.load_predictor(path).predict(
            table["heavy"][:3], None, table["antigen"][0], store=at / "store", **QUIET
        )
        for path in (at / "run", tmp_path / "shared")
    ]
    assert list(both[0])[:-1] == list(both[1])
    assert both[0]["pkd_predicted"].equals(both[1]["pkd_predicted"])


def test_training_antigens_of_another_predictor_or_altered_ones_are_refused(case, tmp_path):
    at, _ = case
    folder = shutil.copytree(at / "run" / "predictor", tmp_path / "copy")
    record = json.loads((folder / "antigens.json").read_text())
    for content in ("", "[]", "[" * 100_000, json.dumps(record | {"most_changes": 99})):
        (folder / "antigens.json").write_text(content)
        with pytest.raises(PredictorDamaged, match=r"antigens.json: is damaged or of another"):
            abag.load_predictor(folder)
    save_antigens(folder, TrainingAntigens(["MKT"], 0), "the digest of another predictor")
    with pytest.raises(PredictorDamaged, match=r"antigens.json: is damaged or of another"):
        abag.load_predictor(folder)
