"""What commands that score sequences check before they read any, and say of a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from abag.core.files import refusal_to_write
from abag.core.messages import say
from abag.embed.sequences.table_writer import check_writable
from abag.head.prediction.inputs import CannotPredict

if TYPE_CHECKING:
    from abag.embed.sequences.options import AntibodyRegion
    from abag.embed.sequences.tables import TableLike
    from abag.head.prediction.options import ScoringOptions
    from abag.head.prediction.predictor import Predictor


def region_of_run(options: ScoringOptions, predictor: Predictor) -> AntibodyRegion:
    """Return the region of the run, which must not be contradicted."""
    if options.antibody_region not in (None, predictor.antibody_region):
        msg = (
            f"antibody_region={options.antibody_region!r}: the run used "
            f"{predictor.antibody_region!r}; expected the same. Leave it out."
        )
        raise CannotPredict(msg)
    return predictor.antibody_region


def check_table_out(out: Path, sources: Sequence[TableLike | None], *, force: bool) -> None:
    """Refuse a table that cannot be written before anything is read."""
    check_writable(out)
    check_out(out, sources, force=force)


def check_out(out: Path, sources: Sequence[TableLike | None], *, force: bool) -> None:
    """Refuse a file that exists, has no folder, or is one of the files that are read."""
    if why := refusal_to_write(out, sources, force=force):
        raise CannotPredict(why)


def say_random_weights(predictor: Predictor) -> None:
    """Say if scores cannot mean anything because the encoders are random."""
    for spec in (predictor.antibody, predictor.antigen):
        if spec.random_weights:
            say(f"{spec.name} has random weights: these scores have no biological meaning")
