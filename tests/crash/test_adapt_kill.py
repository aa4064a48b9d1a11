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
    from drawn import draw_pairs, write_split

    table = draw_pairs(20, 2)
    table.to_csv(folder / "pairs.csv", index=False)
    write_split(table, folder / "split.parquet", split="random")


def adapt(folder, out):
    import abag

    split = folder / "split.parquet"
    return abag.adapt_encoders(folder / "pairs.csv", out / "a", split_from=split, **OPTIONS)


def main(folder, kills, seed):
    from faults import adapter_step
    from forks import kill_anywhere, snapshot

    kill_anywhere(
        folder,
        kills,
        seed,
        make_inputs,
        adapt,
        step=adapter_step(),
        snapshot=lambda out: snapshot(out, without=".partial"),
        summary=lambda out: json.loads((out / "a" / "adapter.json").read_text())["summary"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
