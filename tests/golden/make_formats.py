"""Write the store, the run and the predictors of this version that later versions have to read.

    python tests/golden/make_formats.py

Run it only before a release, after a deliberate change of a format; what a released version wrote
is kept. `tests/test_golden.py` reads the files.
"""

import json
import shutil
import tempfile
from pathlib import Path

import pandas as pd

import abag

HERE = Path(__file__).parent / "formats"
ENCODERS = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
CLASSES = ("none", "weak", "strong")
PREDICTORS = {
    "predictor": ["pkd_predicted", "sigma", "regime"],
    "classes": ["predicted", "probability", "probability_low", "probability_high", "regime"],
}
"""Folders of predictors, and columns of their scores that are kept."""


def main():
    demo = pd.read_csv(HERE.parents[2] / "data" / "demo_pairs.csv").fillna("").head(60)
    kept = demo.head(3)
    classes = pd.qcut(demo["pKd"], len(CLASSES), labels=CLASSES).astype(str)
    ordered = demo.drop(columns="pKd").assign(binding=classes)
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        abag.embed_table(demo, at / "store", say=False, **ENCODERS)
        options = {"head": "ridge", "split": "random", "report": False, "say": False}
        abag.fit(demo, at / "store", at / "run", **options)
        abag.fit(ordered, at / "store", at / "classes", classes=CLASSES, **options)
        shutil.rmtree(HERE, ignore_errors=True)
        shutil.copytree(at / "classes" / "predictor", HERE / "classes")
        shutil.copytree(at / "run" / "predictor", HERE / "predictor")
        shutil.copytree(at / "run", HERE / "run")
    for record in (HERE / "run").glob("*.json"):  # no path of this machine
        record.write_text(record.read_text().replace(f"{scratch}/", ""))
    abag.embed_table(kept, HERE / "store", say=False, **ENCODERS)
    store = abag.open_store(HERE / "store")
    pairs = kept[["heavy", "light", "antigen"]]
    scores = {}
    for folder, columns in PREDICTORS.items():
        predictor = abag.load_predictor(HERE / folder)
        predicted = predictor.predict(*(pairs[name] for name in pairs), store=HERE / "store")
        scores[folder] = predicted[columns].round(5).to_dict("list")
    expected = {
        "pairs": pairs.to_dict("list"),
        "vectors": store.vectors("antigen", pairs["antigen"])[:, :4]
        .astype(float)
        .round(6)
        .tolist(),
        "scores": scores,
    }
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
