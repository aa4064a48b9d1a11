"""The predictor of a run, from a folder or the hub, with what encodes new sequences.

Of `head`, only this module and `estimators.regressor` import what runs encoders. Everything else
takes a function that encodes, or scores what a store holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from abag.embed.embed import embed_with_same_encoders
from abag.head.predictor import folder
from abag.head.predictor.folder import predictor_folder

if TYPE_CHECKING:
    from abag.head.predictor.predictor import Predictor


def load_predictor(path: Path | str) -> Predictor:
    """Load the predictor of a run.

    Parameters
    ----------
    path : path
        Folder of a run, a copy of its folder ``predictor``, or the address of a shared one:
        ``hf://user/name``, optionally with ``@`` and a branch, tag or commit.

    Returns
    -------
    Predictor
        Its ``predict(heavy, light, antigen)`` scores pairs, and encodes sequences that are not in
        the store.

    Raises
    ------
    AbagError
        If a file is missing, damaged or of another version, or the hub cannot be reached.
    """
    return folder.load_predictor(predictor_folder(path), embed=embed_with_same_encoders)


def loaded(run: Path | str | Predictor) -> Predictor:
    """Load the predictor of a run, unless it is loaded."""
    return load_predictor(run) if isinstance(run, Path | str) else run
