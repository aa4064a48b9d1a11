"""The encoder families and the aliases of their checkpoints."""

from __future__ import annotations

from typing import NamedTuple

from abag.embed.families.bert import BERT, PROTBERT, ROFORMER
from abag.embed.families.composition import COMPOSITION
from abag.embed.families.esm import ESM
from abag.embed.families.esmc import ESMC
from abag.embed.families.family import Config, Family
from abag.embed.families.t5 import ANKH, PROSTT5, T5


class Alias(NamedTuple):
    """A short name of a checkpoint: on the hub, made of random weights, or built in."""

    family: str
    hub_name: str | None = None
    random: bool = False
    revision: str | None = None  # the commit on the hub; None: its newest


def _esm2(size: str, revision: str) -> Alias:
    return Alias("esm", f"facebook/esm2_{size}_UR50D", revision=revision)


_ALL = (T5, PROSTT5, ANKH, ESM, ESMC, BERT, PROTBERT, ROFORMER, COMPOSITION)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
ALIASES: dict[str, Alias] = {
    "igt5": Alias("t5", "Exscientia/IgT5"),
    "igt5-unpaired": Alias("t5", "Exscientia/IgT5_unpaired"),
    "prott5": Alias("t5", "Rostlab/prot_t5_xl_half_uniref50-enc"),
    "esm2-8m": _esm2("t6_8M", "c731040fcd8d73dceaa04b0a8e6329b345b0f5df"),
    "esm2-35m": _esm2("t12_35M", "6fbf070e65b0b7291e7bbcd451118c216cff79d8"),
    "esm2-150m": _esm2("t30_150M", "a695f6045e2e32885fa60af20c13cb35398ce30c"),
    "esm2-650m": _esm2("t33_650M", "08e4846e537177426273712802403f7ba8261b6c"),
    "esm2-3b": _esm2("t36_3B", "476b639933c8baad5ad09a60ac1a87f987b656fc"),
    "antiberty": Alias("bert"),
    "composition": Alias("composition"),
    "tiny-igt5": Alias("t5", random=True),
    "tiny-esm2": Alias("esm", random=True),
}
SHAPES: dict[str, Config] = {
    "igt5": {
        **T5.tiny_config,
        "d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32, "num_layers": 24,
    },
    "esm2-650m": {
        **ESM.tiny_config, "hidden_size": 1280, "intermediate_size": 5120,
        "num_hidden_layers": 33, "num_attention_heads": 20,
    },
}  # fmt: skip
"""config.json of the default encoders, as far as it decides their speed."""


class HubSource(NamedTuple):
    """Where a checkpoint is on the hub."""

    name: str
    revision: str | None  # a branch, tag or commit; None: the newest commit

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def download_command(self) -> str:
        """The command that downloads the whole repository."""
        return f"hf download {self.name}" + (f" --revision {self.revision}" * bool(self.revision))


def hub_source(name: str) -> HubSource:
    """Return where an encoder is on the hub: ``alias`` or ``owner/model``, and ``@revision``."""
    short_name, _, revision = name.partition("@")
    alias = ALIASES.get(short_name, Alias(""))
    return HubSource(alias.hub_name or short_name, revision or alias.revision)


def family_of(config: Config) -> Family | None:
    """Return the family of a config.json; families of the same model_type differ in vocabulary."""
    families = [family for family in FAMILIES.values() if family.reads(config)]
    own = [family for family in families if config.get("vocab_size") in family.vocab_sizes]
    return next(iter(own + [f for f in families if not f.vocab_sizes]), None)


def guess_family(name: str) -> Family:
    """Return the family of an alias, or the likely family of a name that cannot be opened."""
    guess = "esm" if "esm" in name.lower() else "t5"
    alias = ALIASES.get(name.partition("@")[0])
    return FAMILIES[alias.family if alias else guess]
