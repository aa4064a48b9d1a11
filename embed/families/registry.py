"""The encoder families and the aliases of their checkpoints."""

from __future__ import annotations

from typing import NamedTuple

from abag.embed.families.bert import BERT
from abag.embed.families.composition import COMPOSITION
from abag.embed.families.esm import ESM
from abag.embed.families.family import Family
from abag.embed.families.t5 import T5


class Alias(NamedTuple):
    """A short name of a checkpoint: on the hub, made of random weights, or built in."""

    family: str
    hub_name: str | None = None
    random: bool = False


FAMILIES: dict[str, Family] = {family.name: family for family in (T5, ESM, BERT, COMPOSITION)}
ALIASES: dict[str, Alias] = {
    "igt5": Alias("t5", "Exscientia/IgT5"),
    "igt5-unpaired": Alias("t5", "Exscientia/IgT5_unpaired"),
    "prott5": Alias("t5", "Rostlab/prot_t5_xl_half_uniref50-enc"),
    "esm2-8m": Alias("esm", "facebook/esm2_t6_8M_UR50D"),
    "esm2-35m": Alias("esm", "facebook/esm2_t12_35M_UR50D"),
    "esm2-150m": Alias("esm", "facebook/esm2_t30_150M_UR50D"),
    "esm2-650m": Alias("esm", "facebook/esm2_t33_650M_UR50D"),
    "esm2-3b": Alias("esm", "facebook/esm2_t36_3B_UR50D"),
    "antiberty": Alias("bert"),
    "composition": Alias("composition"),
    "tiny-igt5": Alias("t5", random=True),
    "tiny-esm2": Alias("esm", random=True),
}


def hub_name_of(name: str) -> str:
    """Return the hub name of an alias; any other name is returned unchanged."""
    alias = ALIASES.get(name)
    return (alias and alias.hub_name) or name


def guess_family(name: str) -> Family:
    """Return the family of an alias, or the likely family of a name that cannot be opened."""
    guess = "esm" if "esm" in name.lower() else "t5"
    return FAMILIES[ALIASES[name].family if name in ALIASES else guess]
