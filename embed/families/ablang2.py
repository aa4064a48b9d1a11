"""AbLang2: heavy and light chain as one sequence; ESM-2's layers with a gated feed-forward.

References
----------
github.com/TobiasHeOl/AbLang2, version 0.2.1: models/ablang2 for layers and tokens, load_model.py
for the files. The code of the package is never imported.
"""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from abag.core.messages import first_line
from abag.embed.families.architecture import Architecture, Config, EncoderShape
from abag.embed.families.family import Family
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.sequences.chains import Chains, Kind
from abag.embed.weights.checkpoints import BadCheckpoint, EncoderCheckpoint, EncoderNotFound

_RESIDUES = "MRHKDESTNQCGPAVIFYWL"
_TOKENS = f"<{_RESIDUES}->*X|"
_IDS_FILE = "vocab.json"


class _AbLang2Family(Family):
    def shape(self, config: Config) -> EncoderShape:
        width = config["hidden_embed_size"]
        heads = config["n_attn_heads"]
        return EncoderShape(config["n_encoder_blocks"], width, width, 4 * width, 3, heads)

    def builtin_checkpoint(self, alias: str) -> EncoderCheckpoint:
        """Find the weights that the package ablang2 has downloaded; its code is never imported.

        Raises
        ------
        EncoderNotFound
            If the package is not installed, or has not downloaded its weights.
        BadCheckpoint
            If its settings cannot be read.
        """
        spec = find_spec("ablang2")
        if spec is None or not spec.submodule_search_locations:
            msg = (
                f"encoder {alias}: the package ablang2 is not installed; "
                "run pip install 'abag[ablang2]'"
            )
            raise EncoderNotFound(msg)
        root = Path(spec.submodule_search_locations[0])
        folder = root / "model-weights-ablang2-paired"
        weights, settings = folder / "model.pt", folder / "hparams.json"
        if not (weights.is_file() and settings.is_file()):
            msg = (
                f"encoder {alias}: the package ablang2 has not downloaded its weights ({folder}); "
                "run python -c 'import ablang2; ablang2.pretrained()' once"
            )
            raise EncoderNotFound(msg)
        try:
            config = json.loads(settings.read_text(encoding="utf-8"))
            config = {"model_type": self.model_type} | {k: config[k] for k in self.config_keys}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            msg = (
                f"{settings}: not the settings of AbLang2 ({first_line(error)}); download it again"
            )
            raise BadCheckpoint(msg) from error
        names = self.weight_names(config)
        return EncoderCheckpoint(alias, self.name, root, (weights,), config, alias, names=names)

    def text(self, chains: Chains, kind: Kind) -> str:
        """Write the chains of one span as AbLang2's tokenizer must be given them."""
        heavy, light = chains if kind == "antibody" else (chains[0], "")
        return "|".join(f"<{chain}>" if chain else "" for chain in (heavy, light))

    def ids_by_files(self, checkpoint: EncoderCheckpoint, text: str) -> list[int] | None:
        """Return the ids that `load_tokenizer` gives a text; None if its file leaves a doubt."""
        try:
            ids: list[int] = self.load_tokenizer(checkpoint)(text)["input_ids"]
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return ids

    def load_tokenizer(self, checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - untyped
        """Return a function that looks up each character, as AbLang2's tokenizer does.

        The table is `vocab.json` beside the weights, or the literal in the package's source.
        """
        assert checkpoint.folder is not None
        if (path := checkpoint.folder / _IDS_FILE).is_file():
            ids = json.loads(path.read_text(encoding="utf-8"))
        else:
            path = checkpoint.folder / "models" / "ablang2" / "vocab.py"
            source = path.read_text(encoding="utf-8")
            try:
                ids = ast.literal_eval(source[source.index("{") : source.index("}") + 1])
            except SyntaxError as error:
                raise ValueError(first_line(error)) from error
        found = dict(ids).get
        return lambda text: {"input_ids": [found(letter, -1) for letter in text]}

    def tokenizer_files(self) -> dict[str, bytes]:
        return {_IDS_FILE: json.dumps({token: i for i, token in enumerate(_TOKENS)}).encode()}


_TINY_CONFIG: Config = {
    "model_type": "ablang2", "hidden_embed_size": 64, "n_attn_heads": 4, "n_encoder_blocks": 2,
    "vocab_size": 26, "layer_norm_eps": 1e-12, "a_fn": "swiglu",
}  # fmt: skip
_LAYERS = Architecture(
    embedding="aa_embed_layer",
    layers="encoder_blocks",
    norms=("pre_attn_layer_norm", "final_layer_norm"),
    qkv=tuple(f"multihead_attention.{part}_proj" for part in "qkv"),
    out="multihead_attention.out_proj",
    up=("intermediate_layer.0",),
    down="intermediate_layer.2",
    last_norm="layer_norm_after_encoder_blocks",
    rotary="neighbours",
    activation="silu",
    gate="second",
    scaled_twice=True,  # as the published code does
)
ABLANG2 = _AbLang2Family(
    name="ablang2",
    model_type="ablang2",
    # trained on variable domains; rotary positions allow any length
    vocabulary=Vocabulary(
        residue_ids(_RESIDUES, 1, other=_TOKENS.index("X")), start=0, end=_TOKENS.index(">"),
        separator=_TOKENS.index("|"), frames_chains=True, pad=_TOKENS.index("-"),
        max_residues=510, window=510,
    ),
    backends=("packed", "reference"),
    config_keys=(
        "hidden_embed_size", "n_attn_heads", "n_encoder_blocks", "vocab_size", "layer_norm_eps",
        "a_fn",
    ),
    required={"a_fn": "swiglu"},
    architecture=_LAYERS,
    weight_prefix="AbRep.",
    lora_targets=("q_proj", "v_proj"),
    lora_projections=("q_proj", "k_proj", "v_proj", "out_proj"),
    layer_list="encoder_blocks",
    spaced=False,
    tiny_config=_TINY_CONFIG,
    reduced_config={
        **_TINY_CONFIG, "hidden_embed_size": 256, "n_encoder_blocks": 4,
    },
)  # fmt: skip
