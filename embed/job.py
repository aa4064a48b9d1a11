"""One kind of sequences to encode: its encoder, its folder in the store, what is missing there.

If several processes share the work, each computes the same owner of every sequence. torch is
imported as soon as a sequence has to be encoded.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from abag.core.errors import DeviceError, OptionError, SequenceError, StoreError, WorkerError
from abag.core.messages import bar, counted, note
from abag.embed.encoders.family import Encoder
from abag.embed.encoders.identity import Identity, check_backend, head_digest, identify
from abag.embed.encoders.registry import known_alias
from abag.embed.encoders.weights import copy_adapter
from abag.embed.options import CDR_MEAN, EmbedOptions, EncodingOptions
from abag.embed.store.shard import MAX_ARRAYS
from abag.embed.store.store import LOGLIK, EncoderFolder, Store
from abag.embed.tables.chains import PLURAL, Chains, Kind, shown_chains
from abag.embed.tables.pairs import Partitions, SequencePart

if TYPE_CHECKING:
    from abag.core.device import DevicePlan

_NO_RUN_ID = "none"  # what torchrun sets without --rdzv-id, for every job
_OTHER_ARRAYS: dict[Kind, int] = {"antibody": 4, "antigen": 2}
"""Arrays of a shard beside those of poolings: keys, lengths, and which chains antibodies have."""


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
    elif "SLURM_PROCID" in environment and (
        # a batch script has it, too, but is no step that srun started
        "SLURM_STEP_ID" in environment or "SLURM_JOB_ID" not in environment
    ):
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


class EncoderJob:
    """An encoder that is to encode sequences of one kind, and the device that it will run on.

    Parameters
    ----------
    identity : Identity
    device : str
        As for ``--device``.
    options : EncodingOptions
    """

    options: EncodingOptions

    def __init__(self, identity: Identity, device: str, options: EncodingOptions) -> None:
        self.identity = identity
        self.options = options
        self.device = device
        self.kind: Kind = identity.layout.kind
        self.plural = PLURAL[self.kind]

    @cached_property
    def plan(self) -> DevicePlan:
        """Device and precision; an encoder without weights always runs on the CPU."""
        from abag.core.device import plan_device

        if self.identity.checkpoint.folder is None:
            return plan_device("cpu", "fp32")
        return plan_device(self.device, self.options.precision)

    @property
    def backend(self) -> str:
        """Backend that runs the encoder."""
        return self.identity.family.effective_backend(self.options.backend(self.kind))

    def load(self) -> Encoder:
        """Load the encoder as the options ask for it, see `load_encoder`."""
        from abag.embed.encoders.loading import load_encoder  # imports torch

        backend = self.options.backend(self.kind)
        attention = self.options.attention
        return load_encoder(self.identity, self.plan, backend=backend, attention=attention)

    def bar(self, total: int, *, shown: bool = True) -> Any:  # noqa: ANN401
        """Make the progress bar of encoding, in tokens or residues: sequences differ in length."""
        hidden: dict[str, Any] = {} if shown else {"disable": True}
        return bar(total=total, desc=f"{self.kind} · {self.identity.checkpoint.name}", **hidden)

    def check(
        self, long: int, longest: int, *, layers: bool = False, elsewhere: bool = False
    ) -> None:
        """Check that the encoder can run as asked for, before anything is written.

        The device is looked for only if an attention kernel was asked for, as this imports torch.

        Parameters
        ----------
        long, longest : int
            Sequences that it does not take whole, and residues of the longest chain.
        layers : bool
            Whether inner layers are to be pooled.
        elsewhere : bool
            Whether other machines encode, which may have other devices.

        Raises
        ------
        AbagError
            If it cannot, or long chains are not to be encoded.
        """
        options = self.options
        layout = self.identity.layout
        check_backend(self.identity, options.backend(self.kind), layers=layers)
        # auto finds one everywhere
        if options.attention != "auto" and self.backend == "packed" and not elsewhere:
            from abag.embed.kernels.attention import choose_attention

            choose_attention(
                self.plan,
                biased=self.identity.family.biased_attention,
                head_width=self.identity.shape.head_width,
                requested=options.attention,
            )
        if long and options.long_antigens == "error":
            msg = (
                f"{counted(long, self.kind)} with a chain of more than {layout.limit:,} residues "
                f"(longest {longest:,}), the most that {self.identity.checkpoint.name} takes at "
                "once. Give --long-antigens window or truncate."
            )
            raise SequenceError(msg)

    def describe_vectors(self, long: int) -> list[str]:
        """Say what is done to `long` sequences, and whether the vectors carry no biology."""
        layout = self.identity.layout
        lines = []
        if long:
            is_cut = layout.long == "truncate"
            policy = "truncated" if is_cut else "encoded in overlapping windows"
            residues = f"more than {layout.limit:,} residues"
            lines.append(f"{counted(long, self.kind)} with a chain of {residues}: {policy}")
        if self.identity.checkpoint.random:
            name = self.identity.checkpoint.name
            lines.append(f"{name}: random weights, its vectors have no biological meaning")
        return lines


class KindJob(EncoderJob):
    """Sequences of a kind and their encoder: `survey`, `look_up`, `create_folder`, then encode."""

    options: EmbedOptions
    folder: EncoderFolder
    """The encoder's folder in the store, which may not exist yet; from `look_up` on."""
    partitions: Partitions
    """All sequences of the table; from `survey` on."""

    def __init__(self, identity: Identity, device: str, options: EmbedOptions) -> None:
        super().__init__(identity, device, options)
        self.unique = 0  # sequences of the table
        self.long = 0  # those with a chain that is longer than the encoder takes at once
        self.forms: Counter[str] = Counter()  # as in `SequencePart`, as is the next
        self.replaced = 0
        self.missing = 0  # sequences that the store lacked before this job
        self.tokens = 0  # in the missing sequences
        self.own = 0  # missing sequences that this process encodes
        self.own_tokens = 0
        self._own_bits: list[NDArray[np.uint8]] = []  # one bit per sequence, for each part

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
        if self.options.loglik:
            _ = self.head  # refuses an encoder without one before anything is written
        layers = bool(self.options.layers)
        self.check(self.long, longest, layers=layers, elsewhere=self.options.ray is not None)

    def look_up(self, store: Store, rank: Rank) -> None:
        """Find the sequences that the store lacks, and those that this rank encodes.

        Writes nothing. Raises `StoreError` or `OptionError` if the store has other poolings.
        """
        self._open_folder(store)
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
        self._open_folder(store, create=True)
        if self.identity.checkpoint.adapter is not None:
            copy_adapter(self.identity.checkpoint.adapter, self.folder)

    def _open_folder(self, store: Store, *, create: bool = False) -> None:
        """Open the encoder's folder, with the poolings it was begun with, or those asked for."""
        identity = self.identity
        options = self.options
        asked: dict[str, list[Any] | str] = {}
        if options.layers is not None:
            # the other encoder may have the rest
            present = {layer for layer in options.layers if layer <= self.identity.shape.layers}
            asked["layers"] = sorted(present)
        if options.poolings is not None:
            asked["poolings"] = list(options.poolings) if self.kind == "antibody" else []
        if options.loglik is not None:
            asked[LOGLIK] = self.head if options.loglik else ""
        info = identity.info() | {name: value for name, value in asked.items() if value}
        for begun in store.folders(self.kind):
            if begun.fingerprint == identity.fingerprint:
                info = begun.info
                break
        open_folder = store.create_folder if create else store.find_folder
        self.folder = open_folder(self.kind, info)
        if self.folder.head and LOGLIK not in asked:
            asked[LOGLIK] = self.head  # likelihoods of another checkpoint's head are others
        for name, value in asked.items():
            held = self.folder.info.get(name, type(value)())
            if held != value:
                msg = (
                    f"{self.folder.path}: begun with --{name} {_spell(held)}, not {_spell(value)}; "
                    f"all sequences of a store have the same values. Leave out --{name} to "
                    "continue, use the encoder that began it, or give a new --store."
                )
                raise StoreError(msg)
        self._check_poolings()

    def _check_poolings(self) -> None:
        """Check that a shard can hold all poolings, and that this abag knows them."""
        path = self.folder.path
        if self.extra_poolings not in ((), (CDR_MEAN,)):
            extra = [*self.extra_poolings]
            msg = f"{path}: has the poolings {extra!r}; this abag knows {CDR_MEAN} only."
            raise StoreError(msg)
        arrays = len(self.poolings) + bool(self.folder.head) + _OTHER_ARRAYS[self.kind]
        if arrays > MAX_ARRAYS:
            msg = (
                f"--layers: a shard of {self.plural} would hold {arrays} arrays, poolings of "
                f"{len(self.folder.layers)} layers among them; expected at most {MAX_ARRAYS}. "
                "Leave out some layers."
            )
            raise OptionError(msg)
        depth = self.identity.shape.layers
        if deeper := [layer for layer in self.folder.layers if layer > depth]:
            msg = (
                f"{path}: its encoder.json has layer {deeper[0]}; "
                f"{self.identity.checkpoint.name} has {depth}. Copy the store again, or give a new "
                "--store."
            )
            raise StoreError(msg)

    @cached_property
    def head(self) -> str:
        """Digest of the head of the encoder's language model; raises `EncoderError` without one."""
        return head_digest(self.identity.checkpoint)

    def own_parts(self) -> Iterator[SequencePart]:
        """Yield the missing sequences that this process has to encode."""
        for part, bits in zip(self.partitions.parts(), self._own_bits, strict=True):
            at = np.flatnonzero(np.unpackbits(bits, count=len(part.chains)))
            if len(at):
                yield part.take(at)

    def remarks(self) -> list[str]:
        """Describe in lines how the sequences and their vectors are treated."""
        lines = self.describe_vectors(self.long)
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
        return lines

    def precisions(self) -> set[str]:
        """Return the precisions in which the stored vectors were encoded."""
        return {str(block.attrs.get("precision")) for block in self.folder.shards()}

    def note_precision(self, before: set[str], now: set[str]) -> None:
        """Send a note if vectors are added in another precision than those stored before."""
        if now and (others := before - now):
            begun = ", ".join(sorted(others))
            note(
                f"{self.folder.path.name}: begun in {begun}, continued in {', '.join(sorted(now))}"
            )

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


def name_sequence(kind: Kind, rows: NDArray[np.int64], chains: Sequence[Chains], at: int) -> str:
    """Name one of some sequences in a message; `rows` are numbers of rows of the table."""
    return f"row {rows[at]}: {kind} {shown_chains(chains[at])}"


def note_licences(jobs: Iterable[EncoderJob]) -> None:
    """Send a note for each encoder whose weights have a licence that forbids commercial use."""
    checkpoints = {job.identity.checkpoint.origin: job.identity.checkpoint for job in jobs}
    for origin, checkpoint in checkpoints.items():  # once, if both kinds have the same encoder
        alias = known_alias(checkpoint.name, origin)
        if alias is not None and not alias.commercial:
            terms = f"the licence of its weights, {alias.licence}, forbids commercial use"
            note(f"{checkpoint.name}: {terms}")


def check_layers(jobs: Sequence[EncoderJob], layers: Sequence[int]) -> None:
    """Raise `OptionError` for a layer that no encoder has."""
    depths = {job.identity.checkpoint.name: job.identity.shape.layers for job in jobs}
    for layer in layers:
        if not 1 <= layer <= max(depths.values()):
            have = " and ".join(f"{name} has {depth}" for name, depth in depths.items())
            msg = (
                f"--layers {','.join(map(str, layers))}: {have} layers; expected layer numbers, "
                f"counted from 1, each present in one of the encoders. Leave out {layer}."
            )
            raise OptionError(msg)


def _spell(values: list[Any] | str) -> str:
    """Write layers and poolings, or the digest of the head that gives likelihoods."""
    if isinstance(values, str) and values:
        return f"of head {values}"
    return ",".join(map(str, values)) or "none"
