"""Formats that files state, by the modules that write them: the move of one is one edit."""

from abag.embed.encoders.weights import ADAPTER_FORMAT as ADAPTER
from abag.embed.residues import FORMAT as RESIDUES
from abag.embed.store.shard import FORMAT as SHARD
from abag.head.predictor.folder import FORMAT as SHARED
from abag.head.runs.run_folder import RUN_FORMAT as RUN
from abag.head.sweep import SWEEP_FORMAT as SWEEP

__all__ = ["ADAPTER", "RESIDUES", "RUN", "SHARD", "SHARED", "SWEEP"]
