"""What the commands make of a table, compared with what an oracle found in it.

One predictor is trained per process; the encoder is `composition`, which needs no weights.
"""

import csv
import gzip
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from oracle_files import as_dicts
from reading import demo_table

import abag
from abag import AbagError
from abag.core.messages import reporting

COMPOSITION = {"antibody_encoder": "composition", "antigen_encoder": "composition"}
TINY = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "tiny-esm2", "epochs": 1}
FIT = {"head": "ridge", "split": "random", "report": False, "replicates": "keep", "threads": 1}
FEWEST_PAIRS = 12
"""A random split of so many pairs always succeeds."""
ADAPT_EVERY = 5
"""Of so many tables that were fitted, one trains an adapter."""


def key_of(kind, chains):
    """Compute the key of a sequence as docs/store-format.md defines it."""
    return hashlib.blake2b("\0".join([kind, *chains]).encode(), digest_size=16).digest()


def keys_of_pair(row):
    return key_of("antibody", row[0]), key_of("antigen", row[1])


class Commands:
    """Runs embed, plan, fit, predict, evaluate and adapt on tables."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="abag-oracle-run-"))
        self.fitted = 0
        with self.quiet():
            table = demo_table().head(60)
            store = self.folder / "store"
            abag.embed_table(table, store, **COMPOSITION)
            abag.fit(table, store, self.folder / "run", **FIT)
        self.predictor = abag.load_predictor(self.folder / "run")

    @staticmethod
    @cache
    def of_process():
        return Commands()

    @staticmethod
    def quiet():
        return reporting(lambda _: None)

    def check(self, path, rows, truth, labelled, bad_rows):
        """Run all commands; return how they ended.

        ``labelled`` are the rows that can train a head, None if there are none.
        """
        good = [row for row in truth or () if None not in row[:2]]
        if not good or (bad_rows == "error" and len(good) < len(truth)):
            good = None
        with self.quiet(), tempfile.TemporaryDirectory(dir=self.folder) as folder:
            work = Path(folder)
            self.check_embed(path, work, good, bad_rows)
            self.check_plan(path, good, labelled, bad_rows)
            self.check_predict(path, work, rows, truth, good, bad_rows)
            counts = self.check_fit(path, work, good, labelled, bad_rows)
        return counts | Counter({f"embed, {'done' if good else 'refused'}": 1})

    def check_embed(self, path, work, good, bad_rows):
        try:
            abag.embed_table(path, work / "store", bad_rows=bad_rows, **COMPOSITION)
        except AbagError:
            assert good is None
            assert not (work / "store").exists()
            return
        folders = abag.open_store(work / "store").folders()
        stored = set()
        for folder in folders:
            for keys in folder.keys():
                stored |= {bytes(key) for key in keys}
        expected = set()
        for row in good:
            expected |= {*keys_of_pair(row)}
        assert stored == expected

    def check_plan(self, path, good, labelled, bad_rows):
        try:
            plan = abag.plan(path, bad_rows=bad_rows, **COMPOSITION)
        except AbagError:
            assert good is None
            return
        planned = plan["rows"], plan["antibodies"]["unique"], plan["antigens"]["unique"]
        assert planned == (len(good), len({row[0] for row in good}), len({row[1] for row in good}))
        if labelled and bad_rows == "skip":
            assert plan["labels"]["pairs"] == len({row[:2] for row in labelled})

    @staticmethod
    def scores(predictor, pairs, store):
        antibodies, antigens = zip(*(pair[:2] for pair in pairs), strict=True)
        heavy, light = zip(*antibodies, strict=True)
        made = predictor.predict(
            heavy, light, ["|".join(strands) for strands in antigens], store=store
        )
        return np.asarray(made["pkd_predicted"])

    def check_predict(self, path, work, rows, truth, good, bad_rows):
        """Every row has the score of its sequences, and its cells are those of the table."""
        is_text = path.name.startswith(("a.csv", "a.tsv"))
        out = work / ("out.csv" if is_text else "out.parquet")
        try:
            abag.predict(
                path,
                self.folder / "run",
                out,
                store=work / "store",
                bad_rows=bad_rows,
                device="cpu",
            )
        except AbagError:
            assert good is None
            assert not out.exists()
            return
        if is_text:
            with out.open(encoding="utf-8", newline="") as file:
                names, *lines = csv.reader(file)
            made = as_dicts(names, lines)
            kept = [row for row, of in zip(rows, truth, strict=True) if None not in of[:2]]
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rb") as table:
                is_airr = b"sequence_id" in table.read()
            if not is_airr:  # whose chains are joined
                assert len(made) == len(kept)
                for row, kept_row in zip(made, kept, strict=True):
                    written = {name: row[name] for name in rows[0]}
                    assert written == {name: cell or None for name, cell in kept_row.items()}
        else:
            made = pd.read_parquet(out).to_dict("records")
        got = [float(row["pkd_predicted"]) for row in made]
        np.testing.assert_allclose(
            got, self.scores(self.predictor, good, work / "store"), rtol=1e-5
        )

    def check_fit(self, path, work, good, labelled, bad_rows):
        """The rows and labels of fit, evaluate and adapt are those of the table."""
        if good is None:  # the store is that of the demo
            shutil.copytree(self.folder / "store", work / "store")
        run = work / "run"
        refused = None
        try:
            abag.fit(path, work / "store", run, bad_rows=bad_rows, **FIT)
        except AbagError as error:
            refused = str(error)
        if refused is not None:
            pairs = {row[:2] for row in labelled or ()}
            assert len(pairs) < FEWEST_PAIRS, refused
            return Counter({"fit, refused": 1})
        assert labelled is not None
        fitted = pd.read_parquet(run / "predictions.parquet")
        got = fitted[["antibody_key", "antigen_key", "pkd"]].to_records(index=False).tolist()
        want = []
        for row in labelled:
            antibody_key, antigen_key = keys_of_pair(row)
            want.append((antibody_key.hex(), antigen_key.hex(), row[2]))
        assert sorted(got) == sorted(want)
        evaluation = abag.evaluate(run, table=path)
        assert evaluation["table"]["pairs"] == len(labelled)
        predictor = abag.load_predictor(run)
        error = self.scores(predictor, labelled, work / "store") - [row[2] for row in labelled]
        rmse = evaluation["table"]["metrics"]["rmse"]
        np.testing.assert_allclose(rmse, np.sqrt(np.mean(error**2)), rtol=1e-4)
        counts = Counter({"fit and evaluate, done": 1})
        self.fitted += 1
        if self.fitted % ADAPT_EVERY == 0:
            self.check_adapt(path, work, want, bad_rows)
            counts["adapt, done"] += 1
        return counts

    def check_adapt(self, path, work, want, bad_rows):
        """An adapter is trained with the rows of the table."""
        out = work / "adapter"
        abag.adapt_encoders(
            path,
            out,
            split_from=work / "run",
            fold=0,
            head_share=0,
            bad_rows=bad_rows,
            device="cpu",
            replicates="keep",
            **TINY,
        )
        assert json.loads((out / "config.json").read_text())["pairs"] == len(want)
        pairs = pd.read_parquet(out / "splits.parquet")[["antibody_key", "antigen_key"]]
        assert {*pairs.itertuples(index=False, name=None)} == {row[:2] for row in want}
