"""AntiBERTy, and other BERT encoders with its vocabulary."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abag.embed.families.family import Config, EncoderShape, Family
from abag.embed.packing.tokens import Vocabulary, residue_ids
from abag.embed.weights.checkpoints import EncoderCheckpoint, EncoderNotFound

if TYPE_CHECKING:
    from torch.nn import Module

_ANTIBERTY = "antiberty"


class _BertFamily(Family):
    def shape(self, config: Config) -> EncoderShape:
        width = config.get("hidden_size", 768)
        layers, inner = config.get("num_hidden_layers", 12), config.get("intermediate_size", 3072)
        return EncoderShape(layers, width, width, inner)

    def builtin_checkpoint(self, alias: str) -> EncoderCheckpoint:
        """Find the weights inside the package antiberty; its code is never imported.

        Raises
        ------
        EncoderNotFound
            If the package is not installed.
        """
        spec = find_spec("antiberty")
        if spec is None or not spec.submodule_search_locations:
            msg = (
                "encoder antiberty: the package antiberty is not installed; "
                "run pip install 'abag[antiberty]'"
            )
            raise EncoderNotFound(msg)
        root = Path(spec.submodule_search_locations[0]) / "trained_models"
        folder = root / "AntiBERTy_md_smooth"
        config = json.loads((folder / "config.json").read_text())
        weights = (folder / "pytorch_model.bin",)
        return EncoderCheckpoint(alias, self.name, root, weights, config, _ANTIBERTY)

    def load_transformers_model(self, checkpoint: EncoderCheckpoint) -> tuple[Module, list[str]]:
        if checkpoint.origin != _ANTIBERTY:
            return super().load_transformers_model(checkpoint)
        import torch
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(**checkpoint.config), add_pooling_layer=False)
        state = torch.load(checkpoint.weights[0], map_location="cpu", weights_only=True)
        inner = {k.removeprefix("bert."): v for k, v in state.items() if k.startswith("bert.")}
        return model, model.load_state_dict(inner, strict=False).missing_keys

    def load_tokenizer(self, checkpoint: EncoderCheckpoint) -> Any:  # noqa: ANN401 - untyped
        if checkpoint.origin != _ANTIBERTY:
            return super().load_tokenizer(checkpoint)
        from transformers import BertTokenizer

        assert checkpoint.folder is not None
        return BertTokenizer(str(checkpoint.folder / "vocab.txt"), do_lower_case=False)


BERT = _BertFamily(
    name="bert",
    # X has no id of its own: the tokenizer returns [UNK], id 1
    vocabulary=Vocabulary(
        residue_ids("ACDEFGHIKLMNPQRSTVWY", 5, other=1),
        start=2, end=3, max_residues=510, window=510,
    ),
    backends=("reference",),
    transformers_class="BertModel",
    transformers_options={"add_pooling_layer": False},
    lora_targets=("query", "value"),
    lora_projections=("query", "key", "value"),
    layer_list="layer",
)  # fmt: skip
