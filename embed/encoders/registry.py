"""The aliases of checkpoints.

Each has the licence of its weights, and a commit of the hub where one was recorded.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

from abag.core.errors import EncoderError
from abag.core.hub import HubAddress, is_repository_name
from abag.core.options import names_folder, user_path

_IG = "MIT (Kenlay et al. 2024)"
_PROTTRANS = "AFL-3.0 (Elnaggar et al. 2021)"
_ANKH = "CC BY-NC-SA 4.0 (Elnaggar et al. 2023)"
_ANKH3 = "CC BY-NC-SA 4.0 (Alsamkary et al. 2025)"
_ALCHEMAB = "AntiBERTa2 License 1.0 (Barton et al. 2023)"
_ESM1B = "MIT (Rives et al. 2021)"
_ESM1V = "MIT (Meier et al. 2021)"
_ESM2 = "MIT (Lin et al. 2023)"
_ESMC = "MIT (Biohub, ESM C)"
_AMPLIFY = "MIT (Fournier et al. 2024)"
_GLM2 = "Apache-2.0 (Cornman et al. 2024)"
_AB_ROBERTA = "see its page on the hub (Huh et al. 2025)"
_RANDOM = "random weights made by abag: its vectors have no biological meaning"


class EncoderNotFound(EncoderError):
    """An encoder name that is not an alias, a folder or an available hub name."""


class Alias(NamedTuple):
    """A short name of a checkpoint: on the hub, made of random weights, or built in."""

    family: str
    hub_name: str | None = None
    revision: str | None = None
    """Commit on the hub; None: its newest."""
    parameters: float = 0
    """Number of parameters in the encoder's layers; 0 if not recorded."""
    width: int = 0
    """Numbers per vector; 0 if not recorded."""
    licence: str = ""
    """Licence of the weights, and their publication."""
    random: bool = False

    @property
    def commercial(self) -> bool:
        """Whether the licence allows commercial use."""
        return self.licence not in (_ANKH, _ANKH3, _ALCHEMAB)


def _esm2(size: str, revision: str, parameters: float, width: int) -> Alias:
    return Alias("esm", f"facebook/esm2_{size}_UR50D", revision, parameters, width, _ESM2)


# one record per checkpoint: family, name on the hub, commit, parameters, width, licence
ALIASES: dict[str, Alias] = {
    "igt5": Alias("t5", "Exscientia/IgT5", None, 1.21e9, 1024, _IG),
    "igt5-unpaired": Alias("t5", "Exscientia/IgT5_unpaired", None, 1.21e9, 1024, _IG),
    "igbert": Alias(
        "protbert", "Exscientia/IgBert", "81a4abb8a4dac5cdcbefc28e5b331a82224c485d",
        3.8e8, 1024, _IG,
    ),
    "igbert-unpaired": Alias(
        "protbert", "Exscientia/IgBert_unpaired", "53ed1be4a09fd30ef3f21ba0c8aae778ccdfff74",
        3.8e8, 1024, _IG,
    ),
    "antiberta2": Alias("roformer", "alchemab/antiberta2", None, 2.02e8, 1024, _ALCHEMAB),
    "antiberta2-cssp": Alias("roformer", "alchemab/antiberta2-cssp", None, 2.02e8, 1024, _ALCHEMAB),
    "ab-roberta": Alias("roberta", "mogam-ai/Ab-RoBERTa", None, 8.5e7, 768, _AB_ROBERTA),
    "antiberty": Alias(
        "bert", parameters=2.6e7, width=512, licence="MIT (Ruffolo et al. 2021)"
    ),
    "ablang2": Alias(
        "ablang2", parameters=4.4e7, width=480, licence="BSD 3-Clause (Olsen et al. 2024)"
    ),
    "prott5": Alias("t5", "Rostlab/prot_t5_xl_half_uniref50-enc", None, 1.21e9, 1024, _PROTTRANS),
    "prostt5": Alias(
        "prostt5", "Rostlab/ProstT5_fp16", None, 1.21e9, 1024, "MIT (Heinzinger et al. 2024)"
    ),
    "protbert": Alias("protbert", "Rostlab/prot_bert", None, 3.8e8, 1024, _PROTTRANS),
    "ankh-base": Alias(
        "ankh", "ElnaggarLab/ankh-base", "d99cb6b966530dfc2ae96bc69d9255c2a07308b0",
        4.5e8, 768, _ANKH,
    ),
    "ankh-large": Alias(
        "ankh", "ElnaggarLab/ankh-large", "74b371dbfa3ee0a05d32ae74df0c2e0b82d6b9a6",
        1.15e9, 1536, _ANKH,
    ),
    "ankh2-large": Alias(
        "ankh", "ElnaggarLab/ankh2-ext2", "aa9b9fa72288c47d9f618ce80c011e24b54e17a8",
        1.15e9, 1536, _ANKH,
    ),
    "ankh3-large": Alias(
        "ankh3", "ElnaggarLab/ankh3-large", "2be091622e8a393f0ef21735070084123c874b6e",
        1.15e9, 1536, _ANKH3,
    ),
    "ankh3-xl": Alias(
        "ankh3", "ElnaggarLab/ankh3-xl", "e00113df5c95ef71df7ea3f5a73d56bd00e473a4",
        3.49e9, 2560, _ANKH3,
    ),
    "esm1b": Alias("esm1", "facebook/esm1b_t33_650M_UR50S", None, 6.5e8, 1280, _ESM1B),
    "esm1v-1": Alias("esm1", "facebook/esm1v_t33_650M_UR90S_1", None, 6.5e8, 1280, _ESM1V),
    "esm1v-2": Alias("esm1", "facebook/esm1v_t33_650M_UR90S_2", None, 6.5e8, 1280, _ESM1V),
    "esm1v-3": Alias("esm1", "facebook/esm1v_t33_650M_UR90S_3", None, 6.5e8, 1280, _ESM1V),
    "esm1v-4": Alias("esm1", "facebook/esm1v_t33_650M_UR90S_4", None, 6.5e8, 1280, _ESM1V),
    "esm1v-5": Alias("esm1", "facebook/esm1v_t33_650M_UR90S_5", None, 6.5e8, 1280, _ESM1V),
    "esm2-8m": _esm2("t6_8M", "c731040fcd8d73dceaa04b0a8e6329b345b0f5df", 7.4e6, 320),
    "esm2-35m": _esm2("t12_35M", "6fbf070e65b0b7291e7bbcd451118c216cff79d8", 3.3e7, 480),
    "esm2-150m": _esm2("t30_150M", "a695f6045e2e32885fa60af20c13cb35398ce30c", 1.48e8, 640),
    "esm2-650m": _esm2("t33_650M", "08e4846e537177426273712802403f7ba8261b6c", 6.5e8, 1280),
    "esm2-3b": _esm2("t36_3B", "476b639933c8baad5ad09a60ac1a87f987b656fc", 2.8e9, 2560),
    "esmc-300m": Alias("esmc", "biohub/ESMC-300M-hf", None, 3.3e8, 960, _ESMC),
    "esmc-600m": Alias("esmc", "biohub/ESMC-600M-hf", None, 5.7e8, 1152, _ESMC),
    "esmc-6b": Alias("esmc", "biohub/ESMC-6B-hf", None, 6.3e9, 2560, _ESMC),
    "amplify-120m": Alias("amplify", "chandar-lab/AMPLIFY_120M", None, 1.18e8, 640, _AMPLIFY),
    "amplify-350m": Alias("amplify", "chandar-lab/AMPLIFY_350M", None, 3.54e8, 960, _AMPLIFY),
    "glm2-150m": Alias("glm2", "tattabio/gLM2_150M", None, 1.52e8, 640, _GLM2),
    "glm2-650m": Alias("glm2", "tattabio/gLM2_650M", None, 6.7e8, 1280, _GLM2),
    "composition": Alias("composition", width=256, licence="no weights: part of abag (MIT)"),
    "tiny-igt5": Alias("t5", random=True, licence=_RANDOM),
    "tiny-esm2": Alias("esm", random=True, licence=_RANDOM),
}  # fmt: skip


def hub_source(name: str) -> HubAddress:
    """Return the place of an encoder on the hub.

    `name` is an alias or ``owner/model``, which ``@revision`` may follow.
    """
    short_name, _, revision = name.partition("@")
    alias = ALIASES.get(short_name, Alias(""))
    return HubAddress("model", alias.hub_name or short_name, revision or alias.revision)


def refuse_unknown_name(name: str) -> None:
    """Raise `EncoderNotFound` for what is no alias, no folder and cannot be a name on the hub."""
    is_folder = name not in ALIASES and user_path(name, "encoder").is_dir()
    if name in ALIASES or is_folder or is_repository_name(hub_source(name).name):
        return
    if names_folder(name):
        msg = (
            f"encoder {name}: does not exist; expected a checkpoint folder, an alias such as "
            "esm2-650m, or a hub name (owner/model)."
        )
        raise EncoderNotFound(msg)
    near = near_aliases(name)
    meant = f"did you mean {' or '.join(near)}" if near else f"give one of {', '.join(ALIASES)}"
    msg = (
        f"encoder {name!r}: not an alias and not an existing folder; {meant}, a hub name "
        f"(owner/model) or a checkpoint folder{'?' if near else '.'}"
    )
    raise EncoderNotFound(msg)


def near_aliases(name: str) -> list[str]:
    """Return the aliases that somebody who wrote this name may have meant, nearest first."""
    trained = [short_name for short_name, alias in ALIASES.items() if not alias.random]
    model = name.partition("@")[0].rstrip("/").rsplit("/", 1)[-1].lower()
    return get_close_matches(model, trained, cutoff=0.6)


def download_command(source: HubAddress) -> str:
    """Return the command line that downloads a checkpoint into the cache of the hub."""
    revision = f" --revision {source.revision}" if source.revision else ""
    return f"hf download {source.name}{revision}"


def known_alias(name: str, origin: str) -> Alias | None:
    """Return the alias of a checkpoint, by its name or by where it came from; None without one."""
    hub_name = origin.partition("@")[0]
    for short_name, alias in ALIASES.items():
        if short_name == name or (alias.hub_name and alias.hub_name == hub_name):
            return alias
    return None
