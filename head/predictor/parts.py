"""The parts of a predictor, the baselines beside them, and how a regime mixes parts.

Which parts a run has is decided once, from all its pairs: a part that only some fits had would be
measured and not saved, or saved with a weight that no fold has measured. Every part is fitted to
each fold, and in the end to all pairs, by the same code. A fold keeps what its parts predict; those
of all pairs are saved, and predict for users.

Baselines describe a table rather than new pairs. Each learns from the training part of a split, by
the weights of its labels, and predicts all pairs of the table. To add one, write its function and
register it in `BASELINES`. Baselines that can predict new pairs are models, see `registry`.

P pairs, F of them in training, K parts, N antibodies, T of them in training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from abag.core.arrays import Floats, Ints, distinct
from abag.core.errors import RunError
from abag.core.messages import tell_share
from abag.core.options import parse
from abag.embed.tables.chains import Kind
from abag.head.labels.options import MOST_VALUE
from abag.head.models.kernel_search import (
    CRITERIA,
    VECTORS,
    Criterion,
    KernelSearch,
    Views,
    shared_search,
)
from abag.head.models.pair_vectors import (
    DoesNotApply,
    FeatureScaling,
    Fit,
    PairModel,
    PairVectors,
    Standardizer,
    TrainedHeads,
    TrainingRows,
)
from abag.head.models.probit import ClassLink
from abag.head.models.registry import MODELS, NETWORK, closed_forms, describe_left_out
from abag.head.models.residue_kernel import (
    RESIDUE_KERNEL,
    find_residue_sides,
    residue_training,
    shared_lengths,
)
from abag.head.models.ridge import FeatureBlock, fit_ridge
from abag.head.regimes.relations import distance_to_consensus
from abag.head.regimes.splits import REGIMES, Split, grouped_folds

if TYPE_CHECKING:
    from abag.head.labels.labelled_pairs import LabelledPairs
    from abag.head.models.kernels import GaussianProcess
    from abag.head.models.pair_vectors import Index
    from abag.head.models.trees import Trees
    from abag.head.training.tasks import Kept


SUM_TOLERANCE = 1e-6
"""Largest distance from 1 of the sum of a regime's weights."""
MOST = 1e6 * MOST_VALUE**2
"""Of a number in predictor.json: variances of the largest labels, and factors of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Hold the models that a run fits to each fold and to all pairs."""

    pairs: int
    """Training pairs of the last fit; whatever depends on size depends on this one."""
    models: tuple[str, ...]
    """Parts in closed form, the mean among them, in the order of `MODELS`."""
    compared: tuple[str, ...]
    """Baselines that each fold is compared with, and that are no parts."""
    left_out: tuple[str, ...]
    """What the run does not have, and why, one sentence each."""
    residue_sides: tuple[Kind, ...]
    """Sides that models of residues compare by these."""

    @classmethod
    def decide(
        cls, head: str, kinds: Collection[Kind], vectors: PairVectors, fits: Sequence[Ints]
    ) -> RunParts:
        """Choose the parts that every fit of a run can have.

        Parameters
        ----------
        head : str
            As ``--head`` names it.
        kinds : collection of str
            Kinds of sequences that the pairs have.
        vectors : PairVectors
            Of all pairs, with the chains of their sequences.
        fits : sequence of ndarray
            The training pairs of each fit, indices of pairs; those of the last fit come first.

        Raises
        ------
        DoesNotApply
            If the head that was asked for does not suit the pairs of one of the fits.
        """
        n_pairs = len(fits[0])
        wanted = closed_forms(head, n_pairs)
        baselines = [name for name, entry in MODELS.items() if entry.is_baseline]
        reasons = [describe_left_out(n_pairs)] if head == "stack" else []
        parts = []
        sides, why_none = find_residue_sides(vectors, fits)
        for name in dict.fromkeys((*wanted, *baselines)):
            if name == "antigen_ridge" and "antigen" not in kinds:
                continue
            reason = why_none if MODELS[name].reads == "residues" else ""
            reason = reason or _why_not(name, vectors, fits, sides)
            if reason and name == head:
                msg = f"{name}: {reason}"
                raise DoesNotApply(msg)
            if reason:
                reasons.append(f"{name} left out: {reason}")
            else:
                parts.append(name)
        return cls(
            pairs=n_pairs,
            models=tuple(name for name in parts if name in wanted),
            compared=tuple(name for name in parts if name not in wanted),
            left_out=tuple(filter(None, reasons)),
            residue_sides=sides,
        )


def _why_not(name: str, vectors: PairVectors, fits: Sequence[Ints], sides: tuple[Kind, ...]) -> str:
    """Return why a model does not suit the training pairs of one of the fits, or nothing."""
    check = MODELS[name].check
    if check is None:
        return ""
    try:
        for rows in fits:
            check(vectors, rows, sides)
    except DoesNotApply as error:
        return str(error).removeprefix(f"{name}: ")
    return ""


def with_searches(
    every: TrainingRows, folds: Sequence[TrainingRows], models: Sequence[str], cores: int = 1
) -> tuple[list[TrainingRows], list[tuple[KernelSearch, list[Criterion]]]]:
    """Let folds share the searches that these models need.

    Parameters
    ----------
    every : TrainingRows
        All pairs that any fold learns from.
    folds : sequence of TrainingRows
        What each fold learns from.
    models : sequence of str
        Names of the models that are fitted.
    cores : int
        Those that all tasks together may use.

    Returns
    -------
    folds : list of TrainingRows
        With their choices of kernels.
    searches : list of tuple
        The search of each kind of columns, and the criteria by which it is to choose the kernels
        of all folds.
    """
    wanted: dict[str, tuple[TrainingRows, Views, list[Criterion]]] = {}
    criteria = [criterion for name, criterion in CRITERIA.items() if name in models]
    if criteria:
        wanted[VECTORS] = (every, {}, criteria)
    if RESIDUE_KERNEL in models:
        _, features, views = residue_training(every)
        wanted[RESIDUE_KERNEL] = (features, views, ["error"])
    searches = []
    choices = {}
    for columns, (features, views, criteria) in wanted.items():
        search, choices[columns] = shared_search(features, views, folds)
        if search.folds:
            searches.append((search, criteria))
    for search, _ in searches:
        search.threads = max(1, cores // len(searches))
    searching = []
    for number, fold in enumerate(folds):
        of_fold = {columns: by_fold[number] for columns, by_fold in choices.items()}
        searching.append(replace(fold, searches=of_fold))
    return searching, searches


def check_weights(regime: str, weights: Mapping[str, float], parts: Iterable[str]) -> None:
    """Raise `RunError` unless the weights of a regime add up to 1 over the given parts."""
    names = set(parts)
    total = sum(weight for name, weight in weights.items() if name in names)
    if abs(total - 1) > SUM_TOLERANCE:
        absent = sorted(weights.keys() - names)
        lacking = f", as {', '.join(absent)} is not there" if absent else ""
        msg = (
            f"regime {regime}: the weights of the predictor's parts add up to {total:.6g}{lacking};"
            " expected 1."
        )
        raise RunError(msg)


@dataclass(frozen=True, slots=True)
class Parts:
    """The models that were fitted to some pairs: they predict, and are saved and loaded."""

    models: Mapping[str, tuple[PairModel, ...]]
    """By name of the part, whose prediction is the mean of its models."""
    trained: TrainedHeads | None = None
    """How the networks were trained, if there are any; None once they are loaded."""
    seconds: float = 0.0
    """Time that the fits took."""

    @classmethod
    def fit(cls, training: TrainingRows, names: Iterable[str]) -> Self:
        """Fit parts in closed form, given by name."""
        start_s = time.monotonic()
        models = {}
        for name in names:
            fit = cast("Fit", MODELS[name].fit)
            models[name] = (fit(training),)
        return cls(models, seconds=time.monotonic() - start_s)

    def with_networks(self, trained: TrainedHeads) -> Self:
        """Add the networks that were trained on the same pairs."""
        return replace(
            self,
            models={**self.models, NETWORK: trained.models},
            trained=trained,
            seconds=self.seconds + trained.seconds,
        )

    def predict(self, vectors: PairVectors, names: Collection[str]) -> dict[str, Floats]:
        """Return what the parts with some names predict in pKd, (P,) each."""
        return self.predict_with_variance(vectors, names, ())[0]

    def predict_with_variance(
        self,
        vectors: PairVectors,
        names: Collection[str],
        varying: Collection[str] | None = None,
    ) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return what the parts with some names predict in pKd, and variances, (P,) each.

        The variances, in pKd^2, are those of the parts `varying`, by default `with_variance`.
        """
        varying = self.with_variance if varying is None else varying
        predicted = {}
        variances = {}
        for name, part in self.models.items():
            if name not in names and name not in varying:
                continue
            is_between = name in varying and not MODELS[name].has_variance
            of_part = []
            of_models = []
            for whole in part:
                model, read = whole.reading(vectors)
                if name in names or is_between:
                    of_part.append(model.predict(read))
                if name in varying and not is_between:
                    of_models.append(cast("GaussianProcess | Trees", model).variance(read))
            if name in names:
                predicted[name] = np.asarray(np.mean(of_part, axis=0))
            if is_between:
                variances[name] = np.asarray(np.var(of_part, axis=0))
            elif of_models:
                variances[name] = np.asarray(np.mean(of_models, axis=0))
        return predicted, variances

    def difference_variance(
        self, vectors: PairVectors, other: Index, varying: Collection[str]
    ) -> dict[str, Floats]:
        """Return the variances of differences of pairs from `other` ones, (P,) each in pKd^2.

        They are by part, of those `varying`, which are some of those `with_variance`.
        """
        variances = {}
        for name in varying:
            part = self.models[name]
            if MODELS[name].has_variance:
                models = cast("tuple[GaussianProcess | Trees, ...]", part)
                of_models = [model.difference_variance(vectors, other) for model in models]
                variances[name] = np.asarray(np.mean(of_models, axis=0))
            else:
                predicted_MP = np.stack([model.predict(vectors) for model in part])
                variances[name] = (predicted_MP - predicted_MP[:, other]).var(axis=0)
        return variances

    @property
    def with_variance(self) -> list[str]:
        """Return the names of the parts that have a variance.

        That between the models of a part counts only where no model has one of its own.
        """
        return _with_variance({name: len(part) for name, part in self.models.items()})

    def settings(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """Return what `load` needs of the models beside their arrays, as JSON."""
        settings = {}
        for name, part in self.models.items():
            settings[name] = tuple(asdict(model.settings) for model in part)
        return settings

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of all models, named by part and number."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, part in self.models.items():
            for number, model in enumerate(part):
                for key, array in model.arrays().items():
                    arrays[f"{name}.{number}.{key}"] = array
        return arrays

    @classmethod
    def load(
        cls,
        settings: Mapping[str, Sequence[Mapping[str, Any]]],
        arrays: Mapping[str, NDArray[Any]],
        trial: PairVectors,
    ) -> Self:
        """Restore from settings and arrays; an error of any kind if they do not fit.

        `trial` are vectors of a pair: arrays of other shapes would fail in the middle of a table.
        """
        models: dict[str, tuple[PairModel, ...]] = {}
        for name, of_part in settings.items():
            entry = MODELS[name]
            if not of_part:
                msg = f"part {name!r} has no models"
                raise ValueError(msg)
            loaded = []
            for number, values in enumerate(of_part):
                prefix = f"{name}.{number}."
                of_model = {}
                for key, array in arrays.items():
                    if key.startswith(prefix):
                        of_model[key.removeprefix(prefix)] = array
                model = entry.load(of_model, parse(entry.settings, values, "settings", most=MOST))
                with np.errstate(all="ignore"):  # `Predictor.score` checks what it returns
                    model.predict(trial)
                    model.variance(trial)
                loaded.append(model)
            models[name] = tuple(loaded)
        return cls(models)


def _with_variance(models: Mapping[str, int]) -> list[str]:
    """Name the parts with a variance, given how many models each has."""
    of_their_own = [name for name in models if MODELS[name].has_variance]
    return of_their_own or [name for name, count in models.items() if count > 1]


def needed_parts(models: Mapping[str, int], mixtures: Collection[Mixture]) -> list[str]:
    """Name the parts that a predictor with these mixtures needs, given how many models each has.

    Where no part with weight has a variance, sigma comes from all that have one.
    """
    with_variance = _with_variance(models)
    needed = set[str]()
    for mixture in mixtures:
        needed |= mixture.weights.keys()
        if mixture.reads_variance:
            needed |= {*mixture.varying(with_variance)}
    return [name for name in models if name in needed]


@dataclass(slots=True)
class Predictions:
    """What the parts and the baselines of a fold predict of the pairs of the table."""

    parts: tuple[str, ...]
    """Those of `predicted` that are parts of the predictor; the others are baselines."""
    predicted: dict[str, Floats]
    """pKd of every pair, (P,), by part or baseline; of parts, NaN where the fit has learned."""
    variances: dict[str, Floats] = field(default_factory=dict)
    """Variance of the predictions in pKd^2, (P,), by part that has one; sigma scales their mean."""
    trained: TrainedHeads | None = None
    """How the networks were trained, if there are any."""
    seconds: float = 0.0

    def add_networks(self, trained: TrainedHeads) -> None:
        """Add what the networks that were trained on the same fold predict."""
        if not self.variances and len(trained.predicted_MP) > 1:
            self.variances[NETWORK] = trained.predicted_MP.var(axis=0)
        self.parts = (*self.parts, NETWORK)
        self.predicted[NETWORK] = trained.predicted_MP.mean(axis=0)
        self.trained = replace(trained, models=())
        self.seconds = self.seconds + trained.seconds


def fit_fold(training: TrainingRows, of_run: RunParts, kept: Kept | None = None) -> Predictions:
    """Fit the parts and baselines of a run in closed form to a fold, and keep what they predict.

    They predict the pairs that they have not learned from. What is `kept` of a stopped run is not
    fitted again.
    """
    start_s = time.monotonic()
    held_out = np.setdiff1d(np.arange(len(training.vectors)), training.rows)
    vectors = training.vectors.take(held_out)
    predicted: dict[str, Floats] = {}
    variances: dict[str, Floats] = {}
    names = (*of_run.models, *of_run.compared)
    stored = {} if kept is None else {name: kept.read(name) for name in names}
    tell_share(sum(arrays is not None for arrays in stored.values()) / len(names), before=True)
    for name in names:
        arrays = stored.get(name)
        if arrays is None:
            part_start_s = time.monotonic()
            part = Parts.fit(training, [name])
            predicted_part, variance_of_part = part.predict_with_variance(vectors, [name])
            arrays = {}
            for key, of_part in (("predicted", predicted_part), ("variance", variance_of_part)):
                if name in of_part:
                    arrays[key] = np.full(len(training.vectors), np.nan)
                    arrays[key][held_out] = of_part[name]
            if kept is not None:
                kept.write(name, arrays, time.monotonic() - part_start_s)
        predicted[name] = arrays["predicted"]
        if name in of_run.models and "variance" in arrays:
            variances[name] = arrays["variance"]
    training.shared.clear()  # distances and kernels, which the next fold cannot use
    return Predictions(of_run.models, predicted, variances, seconds=time.monotonic() - start_s)


@dataclass(frozen=True, slots=True)
class Growth:
    """How the variance of errors grows with the differences from the nearest training sequences."""

    growth: float = 0.0
    """Share by which it grows at a distance of one more than the least; 0: it does not."""
    power: float = 1.0
    """Power of the distance."""
    least: int = 0
    """Least distance of the held-out pairs that it was fitted to."""
    most: int = 0
    """Largest distance of them, beyond which nothing is known."""

    def factor(self, distance: Ints) -> Floats:
        """Return the factor of the variance of P pairs, (P,)."""
        away = np.clip(distance, self.least, self.most) - self.least
        return np.asarray(1.0 + self.growth * away**self.power)

    def check(self) -> None:
        """Raise ValueError for what no fit has written."""
        if self.growth < 0 or self.power <= 0 or not 0 <= self.least <= self.most:
            msg = (
                f"sigma grows by {self.growth} with the power {self.power} of distances from "
                f"{self.least} to {self.most}"
            )
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class SigmaLevels:
    """How the variance of errors depends on the prediction: it is small near an assay's floor."""

    predicted: tuple[float, ...] = ()
    """Predictions in pKd, ascending; none: the variance is the same everywhere."""
    factors: tuple[float, ...] = ()
    """Of the variance at each of them."""

    def factor(self, predicted: Floats) -> Floats:
        """Return the factor of the variance of P pairs, (P,), between and beyond the levels."""
        if not self.predicted:
            return np.ones(len(predicted))
        return np.asarray(np.exp(np.interp(predicted, self.predicted, np.log(self.factors))))

    def check(self) -> None:
        """Raise ValueError for what no fit has written."""
        is_ascending = bool((np.diff(self.predicted) > 0).all())
        is_positive = all(0 < factor < np.inf for factor in self.factors)
        if len(self.predicted) != len(self.factors) or not (is_ascending and is_positive):
            msg = f"sigma has the factors {self.factors} at predictions of {self.predicted}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Weights of parts, and what turns the variance of their predictions into sigma."""

    weights: Mapping[str, float]
    """By part; they add up to 1."""
    spread: float
    """Factor of the standard deviation of the predictions; see `models.sigma`."""
    noise: float
    """Standard deviation of all else, in pKd."""
    growth: Growth = Growth()
    """How the variance of the errors grows with the distance from training."""
    levels: SigmaLevels = SigmaLevels()
    """How it depends on the prediction."""
    link: ClassLink | None = None
    """What turns predictions into classes; None: labels are measurements."""

    @property
    def reads_variance(self) -> bool:
        """Return whether the variance of predictions has an effect on sigma or its part."""
        return self.spread > 0 or self.link is not None

    def pkd(self, parts: Mapping[str, Floats]) -> Floats:
        """Mix the predictions of the parts, (P,) each in pKd; a missing part is a KeyError.

        Of classes, those of the parts are latent values, and the result is `ClassLink.expected`.
        """
        weighed = [weight * parts[name] for name, weight in self.weights.items()]
        mixed = np.asarray(np.sum(weighed, axis=0))
        return mixed if self.link is None else self.link.expected(self.link.latent(mixed))

    def varying(self, with_variance: Collection[str]) -> list[str]:
        """Return the parts whose variance counts, of those that have one: all if none weighs."""
        weighed = [name for name in with_variance if self.weights.get(name)]
        return weighed or [*with_variance]

    def variance(self, variances: Mapping[str, Floats], pairs: int) -> Floats:
        """Return the mean variance of the parts `varying`, (P,), each by its weight; 0 of none."""
        names = self.varying(variances)
        if not names:
            return np.zeros(pairs)
        shares = [self.weights.get(name) or 1.0 for name in names]
        return np.asarray(np.average([variances[name] for name in names], axis=0, weights=shares))

    def variance_between(self, parts: Mapping[str, Floats]) -> Floats:
        """Return the variance of what the parts give, (P,) each, by their weights."""
        given = [parts[name] for name in self.weights]
        weights = [*self.weights.values()]
        mean_P = np.average(given, axis=0, weights=weights)
        return np.asarray(np.average((given - mean_P) ** 2, axis=0, weights=weights))

    def sigma(
        self,
        predicted: Floats,
        variance: Floats,
        distance: Ints | None = None,
        factor: Floats | float = 1.0,
    ) -> Floats:
        """Return the standard deviation of the errors in pKd, (P,).

        Parameters
        ----------
        predicted : ndarray, shape=(P,)
            The predictions in pKd.
        variance : ndarray, shape=(P,)
            `variance` of the predictions, in pKd^2.
        distance : ndarray, shape=(P,), optional
            Differences of each pair from the nearest training sequences; None: none.
        factor : ndarray, shape=(P,), or float
            Of the variance of the errors, for the two sequences of each pair.
        """
        if self.link is not None:
            return self.link.spread(self.link.latent_of(predicted))
        larger = self.levels.factor(predicted)
        if distance is not None:
            larger *= self.growth.factor(distance)
        square = (self.spread**2 * variance + self.noise**2) * larger * factor
        return np.asarray(np.sqrt(square))

    def sigma_model(self, predicted: Floats, variance: Floats, distance: Ints) -> Floats:
        """Return the part of `sigma` that is no noise, (P,): what measurements nearby would reduce.

        What errors grow by away from training is of this part; the factor of sequences is not.
        """
        if self.link is not None:
            return self.link.deviation(predicted, variance)
        growth = self.growth.factor(distance)
        square = self.spread**2 * variance * growth + self.noise**2 * (growth - 1.0)
        return np.asarray(np.sqrt(square * self.levels.factor(predicted)))

    def pulled(self, predicted: Floats) -> Floats:
        """Return predictions of classes, (P,), as they are where nothing was measured."""
        return predicted if self.link is None else self.link.pulled(predicted)

    def scaled(self, factor: float) -> Mixture:
        """Return the mixture whose sigma is so many times as large."""
        return replace(self, spread=self.spread * factor, noise=self.noise * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRegime:
    """What a predictor does with the pairs of a regime that the run has measured."""

    name: str
    mixture: Mixture
    reach: int
    """Differences from the nearest training sequences that 95 % of the tested pairs had at most."""
    error: float
    """Upper end of the interval of the RMSE, or the RMSE if it has none, in pKd."""
    verdict: str
    """What the run has shown."""

    def check(self, parts: Collection[str], classes: int) -> None:
        """Raise ValueError for what no fit of a predictor with these parts has written.

        Labels are of so many `classes`; 0: they are measurements.
        """
        mixture = self.mixture
        unknown = mixture.weights.keys() - set(parts)
        least = min(
            mixture.noise, mixture.spread, self.reach, self.error, *mixture.weights.values()
        )
        if self.name not in REGIMES or unknown or least < 0:
            msg = (
                f"the regime {self.name!r} has weights of {', '.join(mixture.weights)}, "
                f"noise {mixture.noise}, spread {mixture.spread}, largest distance {self.reach}, "
                f"error {self.error}"
            )
            raise ValueError(msg)
        mixture.growth.check()
        mixture.levels.check()
        linked = 0
        if mixture.link is not None:
            mixture.link.check()
            linked = len(mixture.link.thresholds) + 1
        if linked != classes:
            msg = f"the regime {self.name!r} tells {linked} classes, and labels are of {classes}"
            raise ValueError(msg)


INNER_FOLDS = 5
"""Folds within the training pairs of a fold, at most."""
NEAREST_ROWS = 128
"""Antibodies compared with the whole training set at a time, whose scores stay in the cache."""
MAX_COMPARISONS = 10**9
"""Comparisons above which the nearest antibodies, which take minutes, are not looked for."""


@dataclass(frozen=True)
class BaselineInputs:
    """Hold what baselines learn from, and what several of them compute."""

    pairs: LabelledPairs
    """All pairs of the table; what is learned are the labels of `training`."""
    training: TrainingRows
    split: Split
    mutations: Ints | None
    """Edits of each antibody from the consensus, (N,); None: their lengths differ."""

    @property
    def fit_rows(self) -> Ints:
        """Return the rows that baselines learn from, (F,)."""
        return self.training.rows

    @cached_property
    def nearest(self) -> Ints | None:
        """Find the training antibody with the nearest vector, (N,); None if it takes minutes."""
        antibodies = self.training.vectors.sides["antibody"]
        trained = distinct(self.pairs.antibody[self.fit_rows])
        x_ND = antibodies.x_ND
        if len(x_ND) * len(trained) > MAX_COMPARISONS:
            return None
        z_ND = Standardizer.of(x_ND, trained, antibodies.widths).apply(x_ND)
        z_TD = z_ND[trained]
        # of several equal vectors, its own
        nearest = np.arange(len(z_ND))
        others = np.setdiff1d(nearest, trained)
        # the nearest has the largest x t - t^2 / 2: squared distances share x^2
        half_T = (z_TD**2).sum(1) / 2
        for start in range(0, len(others), NEAREST_ROWS):
            rows = others[start : start + NEAREST_ROWS]
            score = z_ND[rows] @ z_TD.T - half_T
            nearest[rows] = trained[np.argmax(score, axis=1)]
        return nearest

    def ridge(self, values: NDArray[np.integer]) -> Floats:
        """Predict every pair, (P,), by a ridge on one number per antibody, (N,)."""
        return self.ridge_of(FeatureBlock(values[:, None].astype(np.float32), self.pairs.antibody))

    def ridge_of(self, block: FeatureBlock) -> Floats:
        """Predict every pair, (P,), by a ridge on one block."""
        fit = fit_ridge([block], self.training)
        return np.asarray(fit.intercept + (block.table_ND @ fit.weights[0])[block.index])

    def mean_of(self, group: Ints) -> Floats:
        """Predict the mean label of the training rows in the same group, else of all, (P,).

        Rows of the group -1 are in none.
        """
        size = int(group.max(initial=0)) + 1
        weight = self.training.weight
        weight = np.ones(len(self.fit_rows)) if weight is None else weight
        inside = group[self.fit_rows] >= 0
        grouped = self.fit_rows[inside]
        count = np.bincount(group[grouped], weight[inside], minlength=size)
        pkd = self.training.pkd[inside]
        total = np.bincount(group[grouped], weight[inside] * pkd, minlength=size)
        seen = (group >= 0) & (count[group] > 0)
        mean = np.where(seen, total[group] / np.where(count, count, 1.0)[group], self.training.mean)
        for part in distinct(self.split.part):  # the mean of all would score as a mean of groups
            rows = self.split.part == part
            if not seen[rows].any():
                mean[rows] = np.nan
        return mean


def count_mutations(pairs: LabelledPairs) -> Ints | None:
    """Count the edits from the consensus, (N,); None for antibodies of different lengths."""
    chains = pairs.table.antibodies.chains
    if shared_lengths(chains, pairs.antibody) is None:
        return None
    return distance_to_consensus(chains)


def predict_baselines(inputs: BaselineInputs) -> dict[str, Floats]:
    """Fit each baseline that applies to the training part and predict every pair, by name."""
    predicted = {name: baseline(inputs) for name, baseline in BASELINES.items()}
    return {name: pkd for name, pkd in predicted.items() if pkd is not None}


def inner_folds(group: Ints) -> Ints:
    """Assign rows, (F,), to inner folds; those of a group stay together, if there are several."""
    groups = len(distinct(group))
    if groups == 1:
        group = np.arange(len(group))
        groups = len(group)
    return grouped_folds(group, min(INNER_FOLDS, groups), seed=0)


def _antigen_mean(inputs: BaselineInputs) -> Floats | None:
    return inputs.mean_of(inputs.pairs.antigen) if "antigen" in inputs.pairs.kinds else None


def _assay_mean(inputs: BaselineInputs) -> Floats | None:
    return None if inputs.pairs.assay is None else inputs.mean_of(inputs.pairs.assay)


def _mutation_count(inputs: BaselineInputs) -> Floats | None:
    return None if inputs.mutations is None else inputs.ridge(inputs.mutations)


def _features_ridge(inputs: BaselineInputs) -> Floats | None:
    """Fit a ridge on the features of pairs alone: what the vectors add is the rest."""
    features = inputs.training.vectors.features
    if features is None:
        return None
    scaling = FeatureScaling.of(features.take(inputs.fit_rows))
    z_PK = scaling.apply(features)
    return inputs.ridge_of(FeatureBlock(z_PK, np.arange(len(z_PK))))


def _nearest_antibody(inputs: BaselineInputs) -> Floats | None:
    """Predict the mean label of the nearest training antibody, with the same antigen if it can."""
    pairs = inputs.pairs
    fit_rows = inputs.fit_rows
    if inputs.nearest is None:
        return None
    nearest = inputs.nearest[pairs.antibody]
    n_antigens = int(pairs.antigen.max()) + 1
    both = pairs.antibody * n_antigens + pairs.antigen
    training = inputs.training
    weight = 1.0 if training.weight is None else training.weight
    labels = pd.DataFrame({"weight": weight, "pkd": training.pkd})
    labels["pkd"] *= labels["weight"]

    def means_by(group: Ints, wanted: Ints) -> Floats:
        sums = labels.groupby(group[fit_rows]).sum()
        return (sums["pkd"] / sums["weight"]).reindex(wanted).to_numpy()

    same = means_by(both, nearest * n_antigens + pairs.antigen)
    return np.where(np.isnan(same), means_by(pairs.antibody, nearest), same)


BASELINES: dict[str, Callable[[BaselineInputs], Floats | None]] = {
    "antigen_mean": _antigen_mean,
    "assay_mean": _assay_mean,
    "features_ridge": _features_ridge,
    "mutation_count": _mutation_count,
    "nearest_antibody": _nearest_antibody,
}
"""Predicted pKd of every pair, (P,), by name; None where a baseline does not apply."""
