"""One kind of sequences to encode: its encoder, its folder in the store, what is missing there.

If several processes share the work, each computes the same owner of every sequence. torch is
imported as soon as a sequence has to be encoded.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abag.core.errors import DeviceError, OptionError, SequenceError, StoreError, WorkerError
from abag.core.messages import bar, note
from abag.embed.encoders.adapters import copy_adapter
from abag.embed.encoders.family import Encoder
from abag.embed.encoders.identity import Identity, check_backend, identify
from abag.embed.encoders.packing import TokenLayout
from abag.embed.encoders.registry import known_alias
from abag.embed.options import CDR_MEAN, EmbedOptions, EncodingOptions
from abag.embed.store.shard import MAX_ARRAYS
from abag.embed.store.store import EncoderFolder, Store
from abag.embed.tables.chains import PLURAL, Chains, Kind, shown_chains
from abag.embed.tables.pairs import Partitions, SequencePart

if TYPE_CHECKING:
    from abag.core.device import DevicePlan

_NO_RUN_ID = "none"  # what torchrun sets without --rdzv-id, for every job
MAX_LAYERS = 14
"""With four poolings each they fill the 64 datasets of a shard."""
_OTHER_ARRAYS: dict[Kind, tuple[str, ...]] = {
    "antibody": ("key", "length", "has_heavy", "has_light"),
    "antigen": ("key", "length"),
}
"""Arrays of a shard beside those of poolings."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job."""

    number: int = 0
    world: int = 1
    """Number of ranks."""
    local: int = 0
    """Index of this rank on its machine."""
    job: str = ""
    """Identifies the job: the same in all its ranks, different in the next job; may be empty."""

    def __str__(self) -> str:
        return f"rank {self.number} of {self.world}"

    def device(self, asked: str) -> str:
        """Name the device of this rank: a GPU of its own, if GPUs are used.

        Raises
        ------
        WorkerError
            If all ranks would share the device that was asked for.
        DeviceError
            If there are fewer GPUs than ranks on this machine.
        """
        if self.world == 1 or asked == "cpu":
            return asked
        import torch

        if not torch.cuda.is_available():
            return asked
        if asked not in ("auto", "cuda"):
            msg = f"--device {asked}: all {self.world} ranks would share it; give auto or cuda"
            raise WorkerError(msg)
        seen = torch.cuda.device_count()
        if seen > 1 and self.local >= seen:
            msg = (
                f"{self}: local rank {self.local}, but the machine has {seen} GPUs; start one per "
                "GPU"
            )
            raise DeviceError(msg)
        return f"cuda:{self.local % seen}"  # a launcher may show each rank one GPU only


def rank_here(environment: Mapping[str, str] = os.environ) -> Rank:
    """Read this process's rank from the variables of torchrun or srun; or raise `WorkerError`."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        job = environment.get("TORCHELASTIC_RUN_ID", "")
        job = "" if job == _NO_RUN_ID else job
    elif "SLURM_PROCID" in environment and not _is_batch_script(environment):
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        names = ("SLURM_PROCID", tasks, "SLURM_LOCALID")
        ids = [environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")]
        job = ".".join(filter(None, ids))
    else:
        return Rank()
    number_name, world_name, local_name = names
    try:
        number = int(environment.get(number_name, ""))
        world = int(environment.get(world_name, "1"))
        local = int(environment.get(local_name, "0"))
        is_valid = 0 <= number < world and local >= 0
    except ValueError:
        is_valid = False
    if not is_valid:
        values = ", ".join(f"{name}={environment.get(name)}" for name in names)
        msg = f"environment: {values}; expected a rank below the number of ranks. Unset them."
        raise WorkerError(msg)
    return Rank(number, world, local, job)


def _is_batch_script(environment: Mapping[str, str]) -> bool:
    """Tell a batch script from a task that srun started: both have SLURM_PROCID=0."""
    return "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment


def owners(
    keys: NDArray[np.uint8], tokens: NDArray[np.int64], world: int, job: str = ""
) -> NDArray[np.int64]:
    """Assign sequences to ranks that get about the same number of tokens each.

    Parameters
    ----------
    keys : ndarray, shape=(N, 16), dtype=uint8
        Sorted.
    tokens : ndarray, shape=(N,)
        Tokens of each sequence.
    world : int
        Number of ranks.
    job : str
        See `Rank`; all ranks of a job compute the same owners.

    Returns
    -------
    ndarray, shape=(N,), dtype=int64
        The rank of each sequence.
    """
    # `world` neighbours by tokens are spread over all ranks in an order that changes from job to
    # job, so that what an interrupted job left is balanced too
    seed = hashlib.blake2b(job.encode() + keys[:1].tobytes(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    place = np.arange(len(keys))
    order = np.lexsort((rng.random(len(keys)), -tokens))
    order = order[np.lexsort((rng.random(len(keys)), place // world))]
    owner = np.empty(len(keys), np.int64)
    # a random first rank, or the remainder would always go to rank 0
    owner[order] = (place + rng.integers(world)) % world
    return owner


class KindJob:
    """Sequences of a kind and their encoder: `survey`, `look_up`, `create_folder`, then encode."""

    folder: EncoderFolder
    """The encoder's folder in the store, which may not exist yet; from `look_up` on."""
    partitions: Partitions
    """All sequences of the table; from `survey` on."""

    def __init__(self, identity: Identity, device: str, options: EmbedOptions) -> None:
        self.identity = identity
        self.options = options
        self._device = device
        self.kind: Kind = identity.layout.kind
        self.plural = PLURAL[self.kind]
        self.unique = 0  # sequences of the table
        self.long = 0  # those with a chain that is longer than the encoder takes at once
        self.forms: Counter[str] = Counter()  # as in `SequencePart`, as is the next
        self.replaced = 0
        self.missing = 0  # sequences that the store lacked before this job
        self.tokens = 0  # in the missing sequences
        self.own = 0  # missing sequences that this process encodes
        self.own_tokens = 0
        self._own_bits: list[NDArray[np.uint8]] = []  # one bit per sequence, for each part

    @cached_property
    def plan(self) -> DevicePlan:
        """Device and precision."""
        return plan_for(self.identity, self._device, self.options)

    @property
    def backend(self) -> str:
        """Backend that runs the encoder."""
        return self.identity.family.effective_backend(self.options.backend(self.kind))

    @property
    def poolings(self) -> tuple[str, ...]:
        """Names of all stored poolings, in the order in which the encoder returns them."""
        last_layer = [*self.identity.layout.poolings, *self.extra_poolings]
        names = list(last_layer)
        for layer in self.folder.layers:
            names += [f"{name}@{layer}" for name in last_layer]
        return tuple(names)

    @property
    def extra_poolings(self) -> tuple[str, ...]:
        """Names of poolings of residues that the layout does not know."""
        return tuple(self.folder.info.get("poolings", ()))

    def survey(self, partitions: Partitions) -> None:
        """Count the sequences, and refuse what cannot be encoded with these options.

        Raises
        ------
        AbagError
            If the encoder cannot run as asked for, or there are long chains that are not to be
            encoded. Nothing has been written.
        """
        layout = self.identity.layout
        self.partitions = partitions
        longest = 0
        for part in partitions.parts():
            self.unique += len(part.chains)
            self.forms.update(part.forms)
            self.replaced += part.replaced
            self.long += sum(map(layout.is_long, part.chains))
            longest = max(longest, *map(len, chain.from_iterable(part.chains)))
        backend = self.options.backend(self.kind)
        check_backend(self.identity, backend, layers=bool(self.options.layers))
        if self.options.loglik:
            _ = self.head  # refuses an encoder without one before anything is written
        if self.options.ray is None:
            check_attention(self.identity, self._device, self.options)
        if self.options.long_antigens == "error":
            refuse_long(self.identity, self.long, longest)

    def look_up(self, store: Store, rank: Rank) -> None:
        """Find the sequences that the store lacks, and those that this rank encodes.

        Writes nothing. Raises `StoreError` or `OptionError` if the store has other poolings.
        """
        self.folder = self._open_folder(store)
        layout = self.identity.layout
        for part in self.partitions.parts():
            # verified byte for byte, so that a run replaces what a disk has damaged
            missing = self.folder.missing(part.keys, verify=True)
            is_own = missing
            if rank.world > 1:
                tokens = layout.count_tokens(part.chains)
                owner = owners(part.keys, tokens, rank.world, rank.job)
                is_own = missing & (owner == rank.number)
            absent = [part.chains[i] for i in np.flatnonzero(missing)]
            absent_tokens = layout.count_tokens(absent)
            self.missing += len(absent)
            self.tokens += int(absent_tokens.sum())
            self.own_tokens += int(absent_tokens[is_own[missing]].sum())
            self.own += int(is_own.sum())
            self._own_bits.append(np.packbits(is_own))

    def create_folder(self, store: Store) -> None:
        """Create the encoder's folder in the store, if it does not exist."""
        self.folder = self._open_folder(store, create=True)
        if self.identity.checkpoint.adapter is not None:
            copy_adapter(self.identity.checkpoint.adapter, self.folder)

    def _open_folder(self, store: Store, *, create: bool = False) -> EncoderFolder:
        """Return the encoder's folder, with the poolings it was begun with, or those asked for."""
        identity = self.identity
        asked = self._asked_values()
        given = {name: value for name, value in asked.items() if value}
        info = identity.info() | given
        for begun in store.folders(self.kind):
            if begun.fingerprint == identity.fingerprint:
                info = begun.info
                break
        open_folder = store.create_folder if create else store.find_folder
        folder = open_folder(self.kind, info)
        self._check_loglik(folder)
        for name, value in asked.items():
            held = folder.info.get(name, type(value)())
            if held != value:
                ours = ",".join(map(str, value)) or "none"
                theirs = ",".join(map(str, held)) or "none"
                msg = (
                    f"{folder.path}: begun with --{name} {theirs}, but --{name} {ours} was given; "
                    f"all sequences of a store have the same poolings. Leave out --{name} to "
                    "continue, or give a new --store."
                )
                raise StoreError(msg)
        self._check_poolings(folder)
        return folder

    def _asked_values(self) -> dict[str, list[Any] | str]:
        """Return what was asked for that all sequences of a folder have in common, by option."""
        options = self.options
        asked: dict[str, list[Any] | str] = {}
        if options.layers is not None:
            # the other encoder may have the rest
            present = {layer for layer in options.layers if layer <= self.identity.shape.layers}
            asked["layers"] = sorted(present)
        if options.poolings is not None:
            asked["poolings"] = list(options.poolings) if self.kind == "antibody" else []
        if options.loglik:
            asked["loglik"] = self.head
        return asked

    def _check_poolings(self, folder: EncoderFolder) -> None:
        """Check that a shard can hold all poolings, and that this abag knows them."""
        most = MAX_ARRAYS - len(_OTHER_ARRAYS[self.kind]) - bool(folder.head)
        layers = len(folder.layers)
        extra = folder.info.get("poolings", [])
        per_layer = len(self.identity.layout.poolings) + len(extra)
        if per_layer * (1 + layers) > most:
            msg = (
                f"--layers: {layers} layers are more than a shard can hold with the other poolings "
                f"of {self.plural} ({most} arrays). Leave out some."
            )
            raise OptionError(msg)
        depth = self.identity.shape.layers
        if deeper := [layer for layer in folder.layers if layer > depth]:
            msg = (
                f"{folder.path}: its encoder.json has layer {deeper[0]}; "
                f"{self.identity.checkpoint.name} has {depth}. Copy the store again, or give a new "
                "--store."
            )
            raise StoreError(msg)
        if extra not in ([], [CDR_MEAN]):
            msg = f"{folder.path}: has the poolings {extra!r}; this abag knows {CDR_MEAN} only."
            raise StoreError(msg)

    @cached_property
    def head(self) -> str:
        """Digest of the head of the encoder's language model; raises `EncoderError` without one."""
        from abag.embed.encoders.heads import head_digest

        return head_digest(self.identity.checkpoint)

    def _check_loglik(self, folder: EncoderFolder) -> None:
        """Check that likelihoods are wanted where they are stored, and those of the same head."""
        held = folder.head
        asked = self.options.loglik
        msg = ""
        if asked is not None and bool(held) != asked:
            msg = "begun without --loglik, but it was given"
            if held:
                msg = "begun with --loglik, but False was given"
        elif held and held != self.head:
            msg = f"has likelihoods of head {held}, that of this checkpoint is {self.head}"
        if msg:
            msg = (
                f"{folder.path}: {msg}; all sequences of a store have the same values. Leave out "
                "--loglik, give the checkpoint that began it, or a new --store."
            )
            raise StoreError(msg)

    def own_parts(self) -> Iterator[SequencePart]:
        """Yield the missing sequences that this process has to encode."""
        for part, bits in zip(self.partitions.parts(), self._own_bits, strict=True):
            at = np.flatnonzero(np.unpackbits(bits, count=len(part.chains)))
            if len(at):
                yield part.take(at)

    def remarks(self) -> list[str]:
        """Describe in lines how the sequences and their vectors are treated."""
        lines = describe_long(self.identity.layout, self.long)
        if layers := self.folder.layers:
            numbers = ", ".join(map(str, layers))
            lines.append(f"{self.plural}: poolings of layers {numbers} are stored too")
        if self.folder.head:
            lines.append(f"{self.plural}: loglik, the mean log-probability of residues, is stored")
        chosen = self.options.store_dtype
        if others := {block.number_format for block in self.folder.shards()} - {chosen}:
            kept = f"stored {self.plural} keep their {others.pop()} vectors"
            kept += f"; those encoded now are stored as {chosen}" if self.missing else ""
            lines.append(kept)
        return lines + describe_weights(self.identity)

    def change_of_precision(self) -> str:
        """Describe a change of precision since the store was begun; empty if there is none."""
        others = self.precisions() - {self.plan.precision}
        if not others:
            return ""
        earlier = ", ".join(sorted(others))
        return f"{self.folder.path.name}: begun in {earlier}, continued in {self.plan.precision}"

    def precisions(self) -> set[str]:
        """Return the precisions in which the stored vectors were encoded."""
        return {str(block.attrs.get("precision")) for block in self.folder.shards()}

    def check_complete(self) -> None:
        """Raise `WorkerError` unless the store now holds every sequence."""
        left = 0
        for part in self.partitions.parts():
            left += int(self.folder.missing(part.keys).sum())
        if left:
            msg = (
                f"{self.folder.path}: {left:,} {self.plural} are not stored, although every "
                "process ended normally. Has the table changed? Run the same command again."
            )
            raise WorkerError(msg)


# --- the same for all that encode -----------------------------------------------------------------


def identify_for(name: str, kind: Kind, options: EncodingOptions) -> Identity:
    """Find the encoder of a kind and compute its fingerprint, see `identify`."""
    if kind == "antigen":
        return identify(name, kind, options.long_antigens, options.antigen_adapter)
    return identify(name, kind, adapter=options.antibody_adapter)


def plan_for(identity: Identity, device: str, options: EncodingOptions) -> DevicePlan:
    """Choose device and precision; an encoder without weights always runs on the CPU."""
    from abag.core.device import plan_device

    if identity.checkpoint.folder is None:
        return plan_device("cpu", "fp32")
    return plan_device(device, options.precision)


def load_for(identity: Identity, plan: DevicePlan, options: EncodingOptions) -> Encoder:
    """Load the encoder of a kind, as the options ask for it, see `load_encoder`."""
    from abag.embed.encoders.loading import load_encoder  # imports torch

    backend = options.backend(identity.layout.kind)
    return load_encoder(identity, plan, backend=backend, attention=options.attention)


def name_sequence(kind: Kind, row: int, chains: Chains) -> str:
    """Name a sequence in a message; `row` is the number of its row in the table."""
    return f"row {row}: {kind} {shown_chains(chains)}"


def token_bar(identity: Identity, total: int, *, shown: bool = True) -> Any:  # noqa: ANN401
    """Make the progress bar of encoding, in tokens or residues: sequences differ in length."""
    title = f"{identity.layout.kind} · {identity.checkpoint.name}"
    hidden: dict[str, Any] = {} if shown else {"disable": True}
    return bar(total=total, desc=title, **hidden)


def check_attention(identity: Identity, device: str, options: EncodingOptions) -> None:
    """Check that the attention kernel that was asked for can run an encoder.

    The device is looked for only if one was asked for, as this imports torch. Raises `DeviceError`.
    """
    backend = identity.family.effective_backend(options.backend(identity.layout.kind))
    if options.attention == "auto" or backend != "packed":  # auto finds one everywhere
        return
    from abag.embed.kernels.attention import choose_attention

    biased = identity.family.biased_attention
    width = identity.shape.head_width
    plan = plan_for(identity, device, options)
    choose_attention(plan, biased=biased, head_width=width, requested=options.attention)


def refuse_long(identity: Identity, long: int, longest: int) -> None:
    """Raise `SequenceError` if there are `long` sequences that an encoder does not take whole."""
    if not long:
        return
    layout = identity.layout
    msg = (
        f"{long} {layout.kind} sequences have a chain of more than {layout.limit} residues "
        f"(longest {longest}), the most that {identity.checkpoint.name} takes at once; "
        "give --long-antigens window or truncate"
    )
    raise SequenceError(msg)


def describe_long(layout: TokenLayout, long: int) -> list[str]:
    """Say in a line, if there are `long` sequences that are not encoded whole, what is done."""
    if not long:
        return []
    policy = "truncated" if layout.long == "truncate" else "encoded in overlapping windows"
    plural = PLURAL[layout.kind]
    return [f"{long:,} {plural} have a chain of more than {layout.limit:,} residues: {policy}"]


def note_licence(identity: Identity) -> None:
    """Send a note if the licence of an encoder's weights forbids commercial use."""
    checkpoint = identity.checkpoint
    alias = known_alias(checkpoint.name, checkpoint.origin)
    if alias is not None and not alias.commercial:
        terms = f"the licence of its weights, {alias.licence}, forbids commercial use"
        note(f"{checkpoint.name}: {terms}")


def describe_weights(identity: Identity) -> list[str]:
    """Say in a line if the vectors of an encoder carry no biology."""
    name = identity.checkpoint.name
    text = f"{name}: random weights, its vectors have no biological meaning"
    return [text] if identity.checkpoint.random else []


def check_layers(identities: Sequence[Identity], layers: Sequence[int]) -> None:
    """Check that each layer exists in at least one encoder, and that all fit into a shard.

    Raises `OptionError`.
    """
    depths = {identity.checkpoint.name: identity.shape.layers for identity in identities}
    deepest = max((identity.shape.layers for identity in identities), default=0)
    bad = [layer for layer in layers if not 1 <= layer <= deepest]
    if bad or len(layers) > MAX_LAYERS:
        have = " and ".join(f"{name} has {depth}" for name, depth in depths.items())
        msg = (
            f"--layers {','.join(map(str, layers))}: {have} layers; expected at most "
            f"{MAX_LAYERS} layer numbers, counted from 1, each present in one of the encoders. "
            f"Leave out {bad[0] if bad else 'some'}."
        )
        raise OptionError(msg)
