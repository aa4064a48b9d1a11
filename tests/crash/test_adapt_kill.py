"""An adapter's training that is killed at any point ends like an uninterrupted one."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

OPTIONS = {
    "antibody_encoder": "tiny-igt5",
    "antigen_encoder": "tiny-esm2",
    "epochs": 3,
    "batch_size": 4,
    "save_every": 2,
    "device": "cpu",
    "patience": 2,
    "gradient_checkpointing": True,
}


@pytest.mark.ci
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kills", "seed"), [(3, 0), pytest.param(60, 1, marks=pytest.mark.slow)])
def test_a_killed_adaptation_resumes_to_the_same_bits_as_an_uninterrupted_one(
    killed_anywhere, kills, seed
):
    killed_anywhere(__file__, kills, seed)


def make_inputs(folder):
    """Write 40 pairs of short chains and a random split of them."""
    from drawn import draw_pairs

    from abag.embed.sequences.pairs import read_pairs
    from abag.head.data.label_options import SplitOptions
    from abag.head.data.labels import label_pairs
    from abag.head.regimes.folds import make_splits
    from abag.head.regimes.splits import split_frame

    draw_pairs(20, 2).to_csv(folder / "pairs.csv", index=False)
    pairs = label_pairs(read_pairs(folder / "pairs.csv"))
    splits = make_splits(pairs, SplitOptions(split="random"))
    split_frame(pairs, splits).to_parquet(folder / "split.parquet")


def adapt(folder, out):
    from abag.adapt.train import adapt_encoders

    split = folder / "split.parquet"
    return adapt_encoders(folder / "pairs.csv", out / "a", split_from=split, **OPTIONS)


def main(folder, kills, seed):
    from forks import kill_anywhere, snapshot

    from abag.adapt.train import AdapterTraining

    kill_anywhere(
        folder,
        kills,
        seed,
        make_inputs,
        adapt,
        step=(AdapterTraining, "_take_step"),
        snapshot=lambda out: snapshot(out, without=".partial"),
        summary=lambda out: json.loads((out / "a" / "adapter.json").read_text())["summary"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
