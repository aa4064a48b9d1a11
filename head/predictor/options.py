"""Options of the commands that use a run: plan, predict, evaluate, scan, rank, sweep and share.

Imports no torch, so that help is instant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from abag.core.errors import OptionError, PredictionError
from abag.core.messages import quoted
from abag.core.options import DeviceOptions, EncoderOptions, Options, option
from abag.embed.tables.chains import IMGT_REGIONS, STANDARD_RESIDUES, ChainPlaces, Kind
from abag.embed.tables.options import (
    BAD_ROWS_HELP,
    CHAINS_HELP,
    AntibodyRegion,
    BadRows,
    FileOptions,
    ReferenceOptions,
    SkippedOptions,
    TableOptions,
    refuse_together,
)
from abag.head.labels.options import Better, Label, LabelOptions, PairColumnOptions, read_molar_mass
from abag.head.models.config import ViewNames

_BAD_ROWS: Any = {"group": "Data", "help": BAD_ROWS_HELP}
_CHAINS: Any = {"group": "Data", "rare": True, "help": CHAINS_HELP}
_MOLAR_MASS: Any = {
    "group": "Data",
    "rare": True,
    "metavar": "KDA",
    "help": "Molar mass of the antibodies, for ug_ml or ng_ml: igg, scfv, vhh, or kDa.",
}


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(DeviceOptions, TableOptions, group="Encoders"):
    """Options of the store, of encoders for new sequences, and of reading a table of them."""

    store: Path | str | None = option(
        None,
        default_text="the store of the run",
        group="Data",
        help="Store that holds the vectors and receives those of new sequences.",
    )
    force: bool = option(False, group="Output", help="Overwrite the output file if it exists.")
    antibody_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="as in the run",
        help="Alias or folder of the run's antibody encoder on this machine.",
    )
    antigen_encoder: str | None = option(
        None,
        metavar="NAME",
        default_text="as in the run",
        help="Alias or folder of the run's antigen encoder on this machine.",
    )

    antibody_region: AntibodyRegion | None = option(  # type: ignore[assignment]
        None, python_only=True, help="As in the run; anything else is refused."
    )
    no_antigen: bool = option(
        False, python_only=True, help="As in the run; anything else is refused."
    )
    proposes_no_antigen = False

    bad_rows: BadRows | None = option(  # type: ignore[assignment]
        None, default_text="as in the run", **_BAD_ROWS
    )
    chains: ChainPlaces | None = option(  # type: ignore[assignment]
        None, default_text="as in the run", **_CHAINS
    )

    def encoding(self, progress: bool) -> dict[str, Any]:
        """Return the options with which `Predictor.encode` encodes new sequences."""
        return {
            "antibody_encoder": self.antibody_encoder,
            "antigen_encoder": self.antigen_encoder,
            "device": self.device,
            "progress": progress,
        }


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ScoringOptions, group="Encoders"):
    """All options of ``predict``."""

    cross: Path | str | Any | None = option(
        None,
        metavar="ANTIGENS",
        group="Data",
        help="Score every antibody of TABLE against every antigen of this table, which may be "
        "TABLE itself.",
    )
    strong: float | None = option(
        None,
        metavar="PKD",
        group="Output",
        help="Add p_strong, the probability that a pKd is at least this: 9 is a Kd of 1 nM. Of "
        "another quantity: that it is this or better.",
    )

    explain: Path | str | None = option(
        None,
        metavar="FILE",
        group="Output",
        help="Also write what each residue contributes to each prediction, position by position, "
        "for at most 1,000 pairs: of the parts that compare variants by their residues.",
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(FileOptions, ReferenceOptions, group="Data"):
    """All options of ``evaluate``."""

    store: Path | str | None = option(
        None, default_text="the store of the run", help="Store that holds the vectors of TABLE."
    )
    predictions: Path | str | Any | None = option(
        None,
        metavar="FILE",
        help="Table of the run's pairs with the predictions of another tool.",
    )
    label: Label | None = option(
        None,
        default_text="stated by the column's name, else as in the run, else pkd",
        help="Unit of the labels of TABLE, or of the predictions of FILE.",
    )
    molar_mass: str | None = option(None, default_text="as in the run", **_MOLAR_MASS)
    affinity_type: str | None = option(
        None, metavar="NAME", default_text="as in the run", help="Rows of TABLE to score."
    )
    strong: float | None = option(
        None,
        metavar="PKD",
        help="Say how well pairs with at least this pKd are found, or with values of another "
        "quantity that are this or better: precision, recall and cut-offs.",
    )
    bad_rows: BadRows | None = option(None, default_text="as in the run", **_BAD_ROWS)

    def check_combination(self) -> None:
        """Raise `OptionError` if the molar mass is invalid."""
        _ = read_molar_mass(self.molar_mass)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(
    ViewNames,
    PairColumnOptions,
    LabelOptions,
    SkippedOptions,
    TableOptions,
    EncoderOptions,
    group="Hardware",
):
    """All options of ``plan``."""

    price_per_hour: float | None = option(
        None, low=0, help="Price of one GPU hour, in any currency."
    )
    all_gpus: bool = option(False, help="List six GPU models beside this machine, not only two.")


REGIONS = {
    **dict.fromkeys(("cdr", "framework", "fv"), ("heavy", "light")),
    **dict.fromkeys(("cdrh1", "cdrh2", "cdrh3"), ("heavy",)),
    **dict.fromkeys(("cdrl1", "cdrl2", "cdrl3"), ("light",)),
    "antigen": ("antigen",),
}
"""Regions that can be asked for, and the chains that have them."""
IMGT_LAST = IMGT_REGIONS[-1][1]
CHAIN_LETTERS = {"H": "heavy", "L": "light", "A": "antigen"}
_POSITIONS = re.compile("([HLA])([1-9][0-9]{0,3})(?:([A-Z]{1,2})|-([HLA]?)([1-9][0-9]{0,3}))?")


class PositionRange(NamedTuple):
    """Positions of a chain that were asked for."""

    text: str
    chain: str
    first: int
    last: int
    insertion: str | None
    """Letters of a single inserted position; None: with all that are inserted."""


@dataclass(frozen=True, kw_only=True)
class ScanOptions(ScoringOptions, group="Scan"):
    """All options of ``scan``."""

    heavy: str | None = option(None, metavar="SEQ", group="Data", help="Heavy chain of a parent.")
    light: str | None = option(None, metavar="SEQ", group="Data", help="Light chain of a parent.")
    parents: Path | str | Any | None = option(
        None,
        metavar="TABLE",
        group="Data",
        help="Table of parents with their antigens, instead of --heavy and --light.",
    )
    region: str | None = option(
        None,
        metavar="LIST",
        default_text="cdr",
        help=f"Which residues to mutate, by IMGT: {', '.join(REGIONS)}; several with commas.",
    )
    positions: str | None = option(
        None,
        metavar="LIST",
        help="IMGT positions instead of a region, such as H105-H117,L56; A12 is residue 12 of the "
        "antigen.",
    )
    mutate_to: str | None = option(
        None,
        metavar="RESIDUES",
        default_text="the 20 standard ones",
        help="Residues to mutate to.",
    )
    exclude: str | None = option(
        None, metavar="RESIDUES", help="Residues not to mutate to, such as C."
    )
    pairs_of: int | None = option(
        None,
        low=2,
        metavar="N",
        help="Also score all double mutants of the N best single mutants of each parent.",
    )
    mutations: tuple[int, ...] | None = option(
        None,
        low=3,
        metavar="LIST",
        help="Also score mutants with so many mutations each, such as 3 or 3,4: drawn from the "
        "best single mutants of each parent: 20, or as many as --pairs-of says, at most 3 per "
        "position.",
    )
    drawn: int | None = option(
        None,
        low=1,
        metavar="N",
        default_text="200",
        help="How many mutants to draw per parent and number of --mutations.",
    )

    def check_combination(self) -> None:
        """Raise `OptionError` unless there is one source of parents, and something to mutate."""
        chains = self.heavy is not None or self.light is not None
        if chains == (self.parents is not None):
            problem = "both are given" if chains else "neither is given"
            msg = f"--heavy or --light, and --parents: {problem}; expected one. Give a parent."
            raise OptionError(msg)
        given = {"--region": self.region is not None, "--positions": self.positions is not None}
        refuse_together("each chooses the residues to mutate", given)
        if self.mutations is None:
            self.refuse_without("--mutations LIST", {"drawn"})
        _ = self.regions, self.ranges
        if not self.residues:
            msg = (
                f"--exclude: {self.exclude} leaves no residue to mutate to; expected some of "
                f"{STANDARD_RESIDUES}. Remove some."
            )
            raise OptionError(msg)

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions to mutate, unless there are `ranges`."""
        names = [name.strip().lower() for name in (self.region or "cdr").split(",")]
        asked = tuple(filter(None, names))
        for name in asked or ("",):
            if name not in REGIONS:
                msg = f"--region: {name!r} is unknown; expected one of {', '.join(REGIONS)}."
                raise OptionError(msg)
        return asked

    @property
    def scanned_chains(self) -> frozenset[str]:
        """The chains that have these regions or positions."""
        ranges = self.ranges
        if ranges:
            return frozenset(positions.chain for positions in ranges)
        return frozenset(chain for region in self.regions for chain in REGIONS[region])

    @property
    def ranges(self) -> tuple[PositionRange, ...]:
        """The positions to mutate; empty if a region is asked for."""
        if self.positions is None:
            return ()
        return tuple(_read_range(text.strip()) for text in self.positions.split(","))

    @property
    def residues(self) -> str:
        """Residues to mutate to, in one-letter code and alphabetic order.

        Raises
        ------
        OptionError
            If `mutate_to` or `exclude` has a letter that is not a standard residue.
        """
        wanted = (self.mutate_to or STANDARD_RESIDUES).upper()
        unwanted = (self.exclude or "").upper()
        for name, letters in (("mutate-to", wanted), ("exclude", unwanted)):
            bad = [letter for letter in letters if letter not in STANDARD_RESIDUES + ", "]
            if bad:
                msg = (
                    f"--{name}: {bad[0]!r} is not a standard residue; expected {STANDARD_RESIDUES}."
                )
                raise OptionError(msg)
        return "".join(
            residue
            for residue in STANDARD_RESIDUES
            if residue in wanted and residue not in unwanted
        )

    @property
    def chosen(self) -> str:
        """The residues to mutate, in words of the options."""
        return self.positions or ",".join(self.regions)


def _read_range(text: str) -> PositionRange:
    match = _POSITIONS.fullmatch(text.upper())
    if match is not None:
        chain, first, insertion, again, last = match.groups()
        if again in (None, "", chain) and (last is None or int(last) >= int(first)):
            alone = insertion or ("" if last is None else None)
            asked = PositionRange(text, CHAIN_LETTERS[chain], int(first), int(last or first), alone)
            if asked.chain == "antigen" or asked.last <= IMGT_LAST:
                return asked
    msg = (
        f"--positions: {quoted(text)} is not a position or range of one chain; expected IMGT "
        f"positions (1 to {IMGT_LAST}) such as H107, H111A or H105-H117. Correct it."
    )
    raise OptionError(msg)


RuleName: TypeAlias = Literal["mean", "ucb", "improvement", "probability"]
EXPLORE = 0.5
"""Sigmas that ``ucb`` adds by default; 1 found fewer of the best pairs in campaigns."""


@dataclass(frozen=True, kw_only=True)
class RankOptions(TableOptions, group="Choice"):
    """All options of ``rank``."""

    batch: int = option(96, low=1, metavar="N", help="Pairs to choose.")
    rule: RuleName = option(
        "mean",
        help="What is largest for the first pair: the prediction, the prediction plus --explore "
        "sigmas, the expected improvement over the best measured pair, or the probability of "
        "a pKd of --above or more.",
    )
    explore: float | None = option(
        None,
        low=0,
        metavar="K",
        default_text=f"{EXPLORE:g}",
        help="How often --rule ucb adds sigma_model.",
    )
    best: float | None = option(
        None,
        metavar="PKD",
        default_text="the best of --measured and --run",
        help="Best pKd so far, for --rule improvement.",
    )
    above: float | None = option(
        None, metavar="PKD", help="pKd to reach; the pairs expected above it are counted."
    )
    better: Better | None = option(
        None,
        default_text="as in the run, else higher",
        help="Which predictions are better; lower for ddG and the like. --best and --above are "
        "then values of this quantity.",
    )
    measured: Path | str | Any | None = option(
        None, metavar="TABLE", group="Data", help="Table of measured pairs, which are left out."
    )
    label: Label | None = option(
        None,
        group="Data",
        default_text="stated by the column's name, else pkd",
        help="Unit of the labels of --measured, whose column is --column pkd=NAME.",
    )
    molar_mass: str | None = option(None, default_text="as in the run, else igg", **_MOLAR_MASS)
    run: Path | str | None = option(
        None,
        metavar="DIR",
        group="Data",
        help="Run that made the predictions: its measured pairs are left out, too, and rank says "
        "how well it predicts such pairs.",
    )
    ordered: Path | str | None = option(
        None,
        metavar="FILE",
        group="Data",
        help="List of the pairs that are ordered and not measured yet: they are left out, and the "
        "batch is added. Created if it does not exist.",
    )
    second: Path | str | Any | None = option(
        None,
        metavar="TABLE",
        group="Data",
        help="Predictions of a second property of the same antibodies, such as the Tm or the "
        "affinity to another antigen. Without --second-above, the batch is of the Pareto front of "
        "both.",
    )
    second_run: Path | str | None = option(
        None,
        metavar="DIR",
        group="Data",
        help="Run that made the predictions of --second, which says what is better.",
    )
    second_better: Better | None = option(
        None,
        default_text="as in the second run, else higher",
        help="Which predictions of --second are better.",
    )
    second_above: float | None = option(
        None,
        metavar="VALUE",
        help="Leave out pairs whose second property is predicted to be worse than this.",
    )
    keep_far: bool = option(False, help="Keep pairs outside the training data.")
    per_position: int | None = option(
        None,
        low=1,
        metavar="N",
        help="Most mutants per position, in a table that abag scan wrote.",
    )
    bad_rows: BadRows | None = option(  # type: ignore[assignment]
        None, default_text="as in the run, else error", **_BAD_ROWS
    )
    chains: ChainPlaces | None = option(  # type: ignore[assignment]
        None, default_text="as in the run, else as-given", **_CHAINS
    )
    force: bool = option(False, group="Output", help="Overwrite the output file if it exists.")

    def check_combination(self) -> None:
        """Raise `OptionError` if the rule lacks what it needs, or an option has no effect."""
        _ = read_molar_mass(self.molar_mass)
        if self.measured is None:
            self.refuse_without("--measured TABLE", {"label", "molar_mass"})
        if self.second is None:
            of_second = {"second_run", "second_better", "second_above"}
            self.refuse_without("--second TABLE", of_second)
        if self.rule != "ucb":
            self.refuse_without("--rule ucb", {"explore"})
        if self.rule == "probability" and self.above is None:
            msg = "--rule probability: no threshold; expected one. Add --above PKD."
            raise OptionError(msg)
        references = self.best, self.measured, self.run
        if self.rule == "improvement" and all(reference is None for reference in references):
            msg = (
                "--rule improvement: the best measured pKd is not known; expected it or a table of "
                "measured pairs. Add --best PKD, --measured TABLE or --run DIR."
            )
            raise OptionError(msg)


CHOSEN_BY_SWEEP = frozenset(
    {
        "add",
        "antibody_pooling",
        "antigen_pooling",
        "dropout",
        "folds",
        "head",
        "learning_curve",
        "loss",
        "lr",
        "members",
        "preset",
        "repeats",
        "weight_decay",
        "widths",
    }
)
"""Options of ``fit`` that a sweep searches, sets itself or does not use."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options, group="Search"):
    """The options of ``sweep`` beside those of ``fit`` that are not searched."""

    leaves_out: ClassVar = CHOSEN_BY_SWEEP

    trials: int | None = option(
        None,
        low=1,
        metavar="N",
        default_text="50; with --final the existing ones",
        help="Total number of trials.",
    )
    folds: int = option(
        3,
        low=2,
        flag="--inner-folds",
        metavar="K",
        help="Folds of the other pairs than the test part, on which each trial is scored.",
    )
    final: bool = option(False, help="Refit the best trial and score it on the test part, once.")
    members: int = option(
        8, low=1, high=1024, metavar="K", help="Networks of that refit, if networks are best."
    )


@dataclass(frozen=True, kw_only=True)
class ShareOptions(Options, group="Output"):
    """All options of ``share``."""

    private: bool = option(
        False, help="Create the repository on the hub for you and your organization only."
    )
    with_sequences: bool = option(
        False,
        help="Keep the training sequences, so that near-duplicates of them are recognised; without "
        "them everything but an exact repeat counts as new.",
    )
    license: str | None = option(
        None, metavar="ID", help="Licence that the hub shows, such as mit or cc-by-4.0."
    )


def is_run_alone(options: TableOptions, kinds: Sequence[Kind]) -> bool:
    """Return whether a run is of antibodies alone, by its kinds, which must not be contradicted."""
    is_alone = "antigen" not in kinds
    if is_alone:
        refuse_antigen(options)
    elif options.no_antigen:
        msg = (
            "--no-antigen: the run was trained with antigens; expected the antigen of each pair. "
            "Leave it out."
        )
        raise PredictionError(msg)
    return is_alone


def refuse_antigen(options: ReferenceOptions) -> None:
    """Refuse an antigen that is given for a run of antibodies alone."""
    if options.antigen is not None or "antigen" in options.columns:
        option = "--column antigen=NAME" if options.antigen is None else "--antigen"
        msg = f"{option}: the run is of antibodies alone; expected no antigen. Leave it out."
        raise PredictionError(msg)
