"""Encode further sequences with exactly the encoders that something was trained with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag import AbagError
from abag.embed.encoders.registry import identify
from abag.embed.pipeline.run import embed_table

if TYPE_CHECKING:
    import pandas as pd

    from abag.embed.packing.tokens import LongPolicy
    from abag.embed.sequences.chains import Kind


class OtherEncoder(AbagError):
    """The encoder found under a name is not the one that was asked for."""


def embed_again(
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
    **options: Any,  # noqa: ANN401 - those of EmbedOptions
) -> dict[str, Any]:
    """Encode what a store lacks, after checking that the encoders found are those asked for.

    Parameters
    ----------
    table : DataFrame
        Columns ``heavy``, ``light``, ``antigen``.
    store : path
        Made if it does not exist.
    antibody_encoder, antigen_encoder : str
        Where the encoders are looked for: alias, hub name or folder.
    antibody_fingerprint, antigen_fingerprint : str
        What they must turn out to be.
    long_antigens, antibody_adapter, antigen_adapter, **options
        As in :func:`abag.embed_table`.

    Returns
    -------
    dict
        Of :func:`abag.embed_table`.

    Raises
    ------
    OtherEncoder
        Before anything is encoded or written.
    """
    _refuse_other("antibody", antibody_encoder, antibody_fingerprint, "window", antibody_adapter)
    _refuse_other("antigen", antigen_encoder, antigen_fingerprint, long_antigens, antigen_adapter)
    return embed_table(
        table,
        store,
        antibody_encoder,
        antigen_encoder,
        long_antigens=long_antigens,
        antibody_adapter=antibody_adapter,
        antigen_adapter=antigen_adapter,
        **options,
    )


def _refuse_other(
    kind: Kind, encoder: str, fingerprint: str, long: LongPolicy, adapter: Path | None
) -> None:
    found = identify(encoder, kind, long, adapter).fingerprint
    if found != fingerprint:
        msg = (
            f"{kind} encoder {encoder}: its fingerprint here is {found}, but {fingerprint} was "
            f"expected, the one trained with. Give the checkpoint trained with as "
            f"--{kind}-encoder, or --store with its vectors."
        )
        raise OtherEncoder(msg)
