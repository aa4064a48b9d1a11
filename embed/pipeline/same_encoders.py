"""Encode further sequences with exactly the encoders that a predictor was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag import AbagError
from abag.embed.encoders.loading import identify
from abag.embed.pipeline.run import EmbedSummary, embed_table
from abag.embed.store.store_files import ADAPTER_FOLDER

if TYPE_CHECKING:
    import pandas as pd

    from abag.embed.packing.tokens import LongPolicy
    from abag.embed.sequences.chains import Kind
    from abag.embed.store.encoder_folder import EncoderFolder


class OtherEncoder(AbagError):
    """The encoder found under a name is not the expected one."""


def embed_with_same_encoders(
    table: pd.DataFrame,
    store: Path,
    *,
    antibody_encoder: str,
    antigen_encoder: str,
    antibody_fingerprint: str,
    antigen_fingerprint: str,
    long_antigens: LongPolicy = "window",
    antibody_adapter: Path | None = None,
    antigen_adapter: Path | None = None,
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """Check that the encoders have the expected fingerprints, then encode what a store lacks.

    Parameters
    ----------
    table : DataFrame
        Columns ``heavy``, ``light``, ``antigen``.
    store : path
        Created if it does not exist.
    antibody_fingerprint, antigen_fingerprint : str
        The fingerprints that the encoders must have.
    **options
        This and all others are as for :func:`abag.embed_table`.

    Raises
    ------
    OtherEncoder
        If a fingerprint differs; nothing has been encoded or written then.
    """
    wanted: tuple[tuple[Kind, str, str, LongPolicy, Path | None], ...] = (
        ("antibody", antibody_encoder, antibody_fingerprint, "window", antibody_adapter),
        ("antigen", antigen_encoder, antigen_fingerprint, long_antigens, antigen_adapter),
    )
    for kind, encoder, expected, long, adapter in wanted:
        found = identify(encoder, kind, long, adapter).fingerprint
        if found != expected:
            msg = (
                f"{kind} encoder {encoder}: its fingerprint is {found}; expected {expected}, that "
                f"of the encoder used in training. Give that checkpoint as --{kind}-encoder, or a "
                "--store that holds its vectors."
            )
            raise OtherEncoder(msg)
    options |= {"long_antigens": long_antigens, "antibody_adapter": antibody_adapter}
    options |= {"antigen_adapter": antigen_adapter}
    return embed_table(table, store, antibody_encoder, antigen_encoder, **options)


def embed_like_folders(
    table: pd.DataFrame,
    store: Path,
    folders: Mapping[Kind, EncoderFolder],
    **options: Any,  # noqa: ANN401 - the fields of EmbedOptions
) -> EmbedSummary:
    """Encode what a store lacks with the encoders of folders in it, one per kind.

    Raises
    ------
    OtherEncoder
        If an encoder has changed since; nothing has been encoded then.
    """
    given: dict[str, Any] = {}
    for kind, folder in folders.items():
        given[f"{kind}_encoder"] = str(folder.info.get("origin", folder.name))
        given[f"{kind}_fingerprint"] = folder.fingerprint
        if folder.info.get("adapter"):
            given[f"{kind}_adapter"] = folder.path / ADAPTER_FOLDER
    long = str(folders["antigen"].info.get("long", "window")).partition("-")[0]
    given["long_antigens"] = long.replace("whole", "window")
    return embed_with_same_encoders(table, store, **given, **options)
