"""What encoding one kind of sequence takes: encoder, device, options and the store's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abag import AbagError
from abag.embed.encoders.loading import Identity, identify, layer_count, load_encoder
from abag.embed.families.family import Encoder
from abag.embed.pipeline.options import EmbedOptions
from abag.embed.sequences.chains import Kind
from abag.embed.store.encoder_folder import EncoderFolder
from abag.embed.store.store import Store
from abag.embed.weights.adapters import copy_adapter

if TYPE_CHECKING:
    from abag.core.device import DevicePlan

MAX_LAYERS = 14
"""With four poolings each they fill the 64 datasets of a shard."""


class AbsentLayer(AbagError):
    """A layer that no encoder has."""


class PoolingsMismatch(AbagError):
    """The store holds the poolings of other layers."""


class MixedPrecision(AbagError):
    """The store was begun in another precision, and mixing was forbidden."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Which encoder writes into which folder of the store, and how."""

    identity: Identity
    folder: EncoderFolder
    plan: DevicePlan
    options: EmbedOptions

    @property
    def kind(self) -> Kind:
        """``antibody`` or ``antigen``."""
        return self.identity.layout.kind

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose poolings are stored beside those of the last layer."""
        return self.folder.layers

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of all stored poolings, in the order in which the encoder returns them."""
        last = self.identity.layout.poolings
        return (*last, *(f"{name}@{n}" for n in self.layers for name in last))

    def load_encoder(self) -> Encoder:
        """Load the encoder onto its device; see `abag.embed.encoders.loading.load_encoder`."""
        backend, attention = self.options.backend(self.kind), self.options.attention
        return load_encoder(self.identity, self.plan, backend=backend, attention=attention)

    def check_precision(self) -> str:
        """Describe a change of precision since the store was begun; empty if there is none.

        Raises
        ------
        MixedPrecision
            If ``strict_precision`` forbids the change.
        """
        earlier = {str(block.attrs.get("precision")) for block in self.folder.blocks()}
        earlier -= {self.plan.precision}
        if not earlier:
            return ""
        name, before = self.folder.path.name, ", ".join(sorted(earlier))
        text = f"{name}: begun in {before}, continued in {self.plan.precision}"
        if self.options.strict_precision:
            msg = f"{text}; give --precision {min(earlier)}, or leave out --strict-precision"
            raise MixedPrecision(msg)
        return text


def identify_for(name: str, kind: Kind, options: EmbedOptions) -> Identity:
    """Find an encoder and compute its fingerprint under these options."""
    if kind == "antigen":
        return identify(name, kind, options.long_antigens, options.antigen_adapter)
    return identify(name, kind, adapter=options.antibody_adapter)


def plan_for(identity: Identity, device: str, options: EmbedOptions) -> DevicePlan:
    """Choose device and precision; an encoder without weights always runs on the CPU."""
    from abag.core.device import plan_device

    if identity.checkpoint.folder is None:
        return plan_device("cpu", "fp32")
    return plan_device(device, options.precision)


def find_folder(store: Store, identity: Identity, options: EmbedOptions) -> EncoderFolder:
    """Return the store's folder for an encoder without creating it; a missing one is empty.

    The poolings of other layers than `options` asks for raise `PoolingsMismatch`.
    """
    return store.find_folder(identity.layout.kind, _folder_info(store, identity, options))


def create_folder(store: Store, identity: Identity, options: EmbedOptions) -> EncoderFolder:
    """As `find_folder`, but created if it does not exist."""
    folder = store.create_folder(identity.layout.kind, _folder_info(store, identity, options))
    copy_adapter(identity.checkpoint, folder)
    return folder


def _folder_info(store: Store, identity: Identity, options: EmbedOptions) -> dict[str, object]:
    """Describe the encoder, with the layers of an existing folder or else those asked for."""
    last = layer_count(identity.checkpoint)
    asked = tuple(n for n in sorted(set(options.layers or ())) if n <= last)
    folders = store.folders(identity.layout.kind)
    folder = next((f for f in folders if f.fingerprint == identity.fingerprint), None)
    if folder is None:
        return identity.info() | ({"layers": list(asked)} if asked else {})
    held = folder.layers
    if options.layers is not None and asked != held:
        begun = f"--layers {','.join(map(str, held))}" if held else "the last layer only"
        msg = (
            f"{folder.path}: begun with {begun}, but --layers {','.join(map(str, asked))} was "
            "given; all sequences of a store have the same poolings. Leave out --layers to "
            "continue, or give a new --store."
        )
        raise PoolingsMismatch(msg)
    return folder.info


def check_layers(identities: Sequence[Identity], layers: tuple[int, ...] | None) -> None:
    """Check that each layer exists in at least one encoder, and that all fit into a shard.

    Raises
    ------
    AbsentLayer
    """
    layers = layers or ()
    depths = {i.checkpoint.name: layer_count(i.checkpoint) for i in identities}
    bad = [n for n in layers if not 1 <= n <= max(depths.values())]
    if bad or len(layers) > MAX_LAYERS:
        have = " and ".join(f"{name} has {n}" for name, n in depths.items())
        msg = (
            f"--layers {','.join(map(str, layers))}: {have} layers; expected at most "
            f"{MAX_LAYERS} layer numbers, counted from 1, each present in one of the encoders. "
            f"Leave out {bad[0] if bad else 'some'}."
        )
        raise AbsentLayer(msg)
