"""Estimators of scikit-learn: the heads of ``abag fit``, groups of pairs, and a matrix of vectors.

A regressor and a classifier train and predict as ``abag fit`` and ``abag predict`` do, on the rows
of a data frame. R rows of X.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from abag.core.errors import FLAG, AbagError, LabelError, OptionError, TableError
from abag.core.frames import as_pandas, is_table
from abag.core.messages import reporting
from abag.core.options import VectorOptions, schema, unknown_option
from abag.core.python_surface import naming_keywords, with_options
from abag.embed.embed import embed_like_folders
from abag.embed.export import vector_names
from abag.embed.store.shard import ADAPTER_FOLDER
from abag.embed.store.store import Store, as_store, folder_with
from abag.embed.tables.chains import CHAIN_ROLES, TEXT_ROLES
from abag.embed.tables.columns import with_found
from abag.embed.tables.options import TableOptions
from abag.embed.tables.pairs import read_pairs, table_of
from abag.head.fit import fit_predictor
from abag.head.labels.column import decide_label
from abag.head.labels.features import read_features
from abag.head.labels.headers import read_header
from abag.head.labels.labelled_pairs import label_pairs, with_feature_columns
from abag.head.labels.options import LabelOptions, SplitOptions, named_beside
from abag.head.models.config import FitConfig
from abag.head.predictor.predictor import Scorer
from abag.head.predictor.scoring import load_predictor
from abag.head.regimes.splits import PairGroups
from abag.head.training.inputs import RunInputs, layout_of_run, vectors_of_pairs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from abag import _EstimatorKeywords
    from abag.embed.store.store import EncoderFolder
    from abag.embed.tables.chains import Kind
    from abag.embed.tables.pairs import SequenceTable
    from abag.head.labels.labelled_pairs import LabelledPairs


ANY_PKD = 7.0
"""Label of pairs whose label does not matter."""
_LABEL = "y"
_COLUMN_OF_LABELS = re.compile(r"--column '?(?:pkd|label|prediction)\b")
_COMMAND = re.compile(r"\babag [a-z]+ .*--")
"""In advice to run a command, whose flags are its own."""
NOT_OF_ESTIMATORS = frozenset(
    """
    adapter_rows add affinity_type antigen bad_rows columns floor folds
    classes label learning_curve limit matrix positive repeats save_every split_seed
    """.split()
)
"""Options of `fit` about tables, test parts and run folders, none of which an estimator has."""
_OPTIONS = [field for field in schema(FitConfig) if field.name not in NOT_OF_ESTIMATORS]
_KEYWORDS = {
    field.flag: field
    for field in schema(FitConfig)
    if field.name == "columns" or field.name not in NOT_OF_ESTIMATORS
}
"""What errors name instead of flags."""
_INNER_SPLITS = ("auto", "random", "antigen", "antibody", "both")


@contextmanager
def naming_own_options(own: Mapping[str, Any]) -> Iterator[None]:
    """Let errors in the block name keyword arguments of an estimator, and no options it lacks.

    `own` has its options, or the names of its arguments, by their flags.
    """
    with naming_keywords(own):
        try:
            yield
        except AbagError as error:
            lines = str(error).split("\n")
            error.args = ("\n".join(_without_others(line, own) for line in lines),)
            error.options = tuple(dict.fromkeys(FLAG.findall(str(error))))
            raise


def _without_others(text: str, own: Mapping[str, Any]) -> str:
    """Leave out the advice that needs options other than its `own`."""

    def is_possible(clause: str) -> bool:
        names_own = {*FLAG.findall(clause)} <= own.keys()
        return names_own and not _COLUMN_OF_LABELS.search(clause)

    def possible_ways(ways: Sequence[str]) -> list[str]:
        kept = list[str]()
        follows = True  # a way without a flag may be a value of the flag before it
        for way in ways:
            starts = kept and FLAG.search(way)
            follows = is_possible(way) and bool(follows or starts)
            kept += [way] if follows else []
        return kept

    problem, *advice = re.split(r"(?<=[.]) (?=[A-Z])", text)
    kept = []
    for sentence in advice:
        ways = sentence.removesuffix(".").split(", or ")
        possible = ways if _COMMAND.search(sentence) else possible_ways(ways)
        kept += [", or ".join(possible) + "."] if possible else []
    if advice and not kept:
        kept = ["Correct X."]
        if "--better" in own:
            kept = ["Correct y: it is pKd, or another quantity with --better higher, or lower."]
    return " ".join([problem, *kept])


def _refuse_other_unit(name: str) -> None:
    """Raise `LabelError` if labels without options are named in another unit than pKd."""
    header = read_header(name)
    says = header.not_label
    if not says and header.unit not in (None, "pkd"):
        says = f"{header.unit}, another unit of an affinity"
    elif not says and header.affinity and header.unit is None:
        says = "an affinity in no unit that is understood"
    if says:
        msg = (
            f"y: its name {name!r} says {says}; expected pKd, the -log10 of Kd in M, or another "
            "quantity. Convert it to pKd and rename it."
        )
        raise LabelError(msg)


def as_frame(
    X: Any,  # noqa: ANN401 - whatever the caller passes
    columns: Mapping[str, str | int] | None,
) -> pd.DataFrame:
    """Return X as a pandas DataFrame; the columns of an array are called by their places.

    Meta-estimators such as ``BaggingRegressor`` make arrays of a DataFrame. Their columns are found
    by `columns` only, such as ``{"heavy": 0, "light": 1, "antigen": 2}``.
    """
    if isinstance(X, np.ndarray) and X.ndim == 2 and columns:
        return pd.DataFrame(X, columns=[str(place) for place in range(X.shape[1])])
    table = as_pandas(X, "X") if is_table(X) else X
    if not isinstance(table, pd.DataFrame):
        msg = (
            f"X: {type(X).__name__}; expected a DataFrame with the sequences in columns such as "
            "heavy, light and antigen, or, with columns={'heavy': 0, 'antigen': 1}, an array. "
            "Wrap the sequences in pandas.DataFrame."
        )
        raise TableError(msg)
    return table


def read_frame(
    X: Any,  # noqa: ANN401 - whatever the caller passes
    *,
    columns: Mapping[str, Any] | None,
    options: TableOptions | None,
) -> SequenceTable:
    """Read the pairs of a DataFrame; row r of the result is row r of `X`."""
    X = as_frame(X, columns)
    named = {role: str(name) for role, name in (columns or {}).items()}
    chosen = replace(options or TableOptions(), columns=named)
    # folds of a cross-validation have any index; rows are told by their places
    table = read_pairs(X.reset_index(drop=True), chosen)
    if len(table.frame) < len(X):  # y, and the predictions, are one per row
        row = min(row for row, _ in table.skipped.rows)
        msg = (
            f"X: row {row} has no valid sequences ({len(table.skipped)} such rows); expected some "
            "in every row. Remove these rows from X and y."
        )
        raise TableError(msg)
    return table


def sequence_columns(table: SequenceTable) -> dict[str, str]:
    """Return the columns of X that sequences were read from, by role."""
    return {role: table.columns[role] for role in TEXT_ROLES if role in table.columns}


def refuse_missing(table: SequenceTable, fitted: Mapping[str, str]) -> None:
    """Refuse an X without a column that `fit` had for sequences, by role.

    Another column in its place will do, such as one of both chains.
    """
    columns = sequence_columns(table)
    if "antibody" in columns:
        columns |= dict.fromkeys(CHAIN_ROLES, columns["antibody"])
    if columns.keys() & {*CHAIN_ROLES}:
        columns.setdefault("antibody", "")
    for role, name in fitted.items():
        if role not in columns:
            problem = f"X: no column {name!r}, which fit had for {role}"
            raise TableError(with_found(problem, table.names, "Add it."))


def name_features(estimator: Any, X: Any) -> None:  # noqa: ANN401 - any estimator, any X
    """Remember the columns of X as scikit-learn does: by name only if all are text."""
    columns = as_frame(X, estimator.columns).columns
    estimator.n_features_in_ = len(columns)
    vars(estimator).pop("feature_names_in_", None)  # of an earlier fit
    if not isinstance(X, np.ndarray) and all(isinstance(name, str) for name in columns):
        estimator.feature_names_in_ = np.array(columns, dtype=object)


def labelled(
    table: SequenceTable,
    y: ArrayLike | None = None,
    options: LabelOptions | None = None,
    weight: ArrayLike | None = None,
    folders: Mapping[Kind, EncoderFolder] | None = None,
) -> LabelledPairs:
    """Make pairs of the rows; their exact labels are those of `y`, shape (R,).

    They are pKd, or another quantity if `options` or the name of a column say so. Without `y` all
    have the same label. Rows of the same pair are merged as in ``abag fit``. `options` name columns
    of features, too, whose likelihoods are in `folders`; `weight`, (R,), is how much each label
    counts.
    """
    values = np.full(len(table.frame), ANY_PKD) if y is None else np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:  # as of a frame with one column
        values = values[:, 0]
    if values.shape != (len(table.frame),):
        msg = (
            f"y: shape {values.shape} for {len(table.frame)} rows of X; expected one pKd per row. "
            "Pass a column, such as table['pKd']."
        )
        raise TableError(msg)
    chosen = options or LabelOptions()
    label = _LABEL
    columns: Sequence[Any] = getattr(y, "columns", ())  # of a frame with one column
    if isinstance(name := columns[0] if len(columns) == 1 else getattr(y, "name", None), str):
        is_other = chosen.asks_for_value
        is_known = read_header(name).better is not None
        if is_other:
            if read_header(name).states_affinity:
                msg = (
                    f"y: its name {name!r} says {read_header(name).unit}, an affinity, and "
                    "--better or --unit is given for another quantity; expected one or the other. "
                    "Convert it to pKd and leave these out, or rename it."
                )
                raise LabelError(msg)
        elif not is_known:
            _refuse_other_unit(name)
        if is_other or is_known:
            label = name
    named = named_beside(chosen)
    names = [name for name, _ in named]
    if label in names:
        label = _LABEL
    frame = table.frame[[name for name in names if name in table.frame.columns]].copy()
    label = free_name(label, frame)
    frame[label] = values
    if weight is not None:
        if not {"error", "weight"}.isdisjoint(role for _, role in named):
            msg = (
                "sample_weight: error or weight is given, too; expected one of them. Leave the "
                "others out."
            )
            raise TableError(msg)
        weights = np.asarray(weight)
        if weights.shape != values.shape:
            msg = (
                f"sample_weight: shape {weights.shape} for {len(values)} rows of X; expected one "
                "number per row. Correct it."
            )
            raise TableError(msg)
        name = free_name("sample_weight", frame)
        frame[name] = weights
        named.append((name, "weight"))
    bare = replace(table, frame=frame, columns={"pkd": label}, ties={})
    bare = replace(bare, labels=(decide_label(bare, chosen, named=named),))
    return label_pairs(bare, folders=lambda: folders or {})


def _of_weight(X: pd.DataFrame, y: ArrayLike, weight: ArrayLike) -> tuple[pd.DataFrame, Any, Any]:
    """Leave out the rows of weight 0, as ``BaggingRegressor`` gives those that it did not draw.

    What does not fit X is for `labelled` to refuse.
    """
    weights = np.asarray(weight)
    has_weight = weights != 0
    if weights.size and not has_weight.any():
        msg = "sample_weight: all are 0; expected some above. Correct it, or leave it out."
        raise TableError(msg)
    if weights.shape != (len(X),) or np.shape(y)[:1] != (len(X),) or has_weight.all():
        return X, y, weight
    kept = y[has_weight] if isinstance(y, pd.Series | pd.DataFrame) else np.asarray(y)[has_weight]
    return X[has_weight], kept, weights[has_weight]


def free_name(name: str, frame: pd.DataFrame) -> str:
    """Return a name that no column of a frame has."""
    while name in frame.columns:
        name += "_"
    return name


def folders_with(
    store: Store,
    table: SequenceTable,
    options: VectorOptions,
    *,
    encode: bool,
) -> dict[Kind, EncoderFolder]:
    """Find the folders that hold the vectors of a table.

    With `encode`, missing sequences are first encoded by the store's own encoders.
    """
    encoders = {kind: options.vectors_of(kind)["encoder"] for kind in table.kinds}
    if encode:
        chosen = {kind: store.folder(kind, encoder) for kind, encoder in encoders.items()}
        used = {kind: table.sequences[kind] for kind in table.kinds}
        if any(chosen[kind].missing(unique.keys).any() for kind, unique in used.items()):
            chains = {}
            for kind, unique in used.items():
                chains[kind] = [unique.chains[i] for i in unique.of_row]
            embed_like_folders(table_of(chains).drop_duplicates(), store.path, chosen)
    folders = {}
    for kind, encoder in encoders.items():
        keys = table.sequences[kind].keys
        folders[kind] = folder_with(store, kind, encoder, keys, table.source)
    return folders


class PairEstimator(BaseEstimator):  # type: ignore[misc] # no types
    """What the estimators of pairs have in common: options, a fit, and scores of rows."""

    def __init__(
        self,
        store: Store | Path | str | None = None,
        *,
        columns: Mapping[str, str | int] | None = None,
        encode: bool = False,
        verbose: bool = False,
        **options: Unpack[_EstimatorKeywords],
    ) -> None:
        # stored as given: `sklearn.clone` compares by identity
        self.store = store
        self.columns = columns
        self.encode = encode
        self.verbose = verbose
        for name in options.keys() - {field.name for field in _OPTIONS}:
            raise unknown_option(name, _OPTIONS, type(self).__name__)
        for field in _OPTIONS:
            setattr(self, field.name, options.get(field.name, field.default))

    def _fit(
        self,
        X: pd.DataFrame,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        label: str | None = None,
    ) -> None:
        """Train the head; `label` is that of `LabelOptions`."""
        with naming_own_options(_KEYWORDS), reporting(silent=not self.verbose, bars=False):
            config = self._config(label)
            used = as_frame(X, self.columns)
            if sample_weight is not None:
                used, y, sample_weight = _of_weight(used, y, sample_weight)
            table = read_frame(used, columns=self.columns, options=config)
            store = as_store(self.store)
            first = replace(
                config,
                antibody_encoder=config.views_of("antibody")[0]["encoder"],
                antigen_encoder=config.views_of("antigen")[0]["encoder"],
            )
            folders = folders_with(store, table, first, encode=self.encode)
            pairs = labelled(table, y, config, sample_weight, folders)
            if pairs.quantity.classes and label is None:
                msg = (
                    "y: it has two values; expected measurements. Use "
                    "abag.sklearn.BindingClassifier."
                )
                raise LabelError(msg)
            pairs = with_feature_columns(pairs)
            prints = {f"{kind}_fingerprint": folder.fingerprint for kind, folder in folders.items()}
            vectors = vectors_of_pairs(pairs, store, config, prints)
            # what is read of the folder is in memory; adapters stay in the store
            adapters: dict[str, Path] = {}
            for kind, folder in folders.items():
                if folder.info.get("adapter"):
                    adapters[kind] = folder.path / ADAPTER_FOLDER
            with TemporaryDirectory(prefix="abag-fit-") as scratch:
                references = table.files[0].references
                layout = layout_of_run(config, pairs, table.columns, references)
                inputs = RunInputs(pairs, store, vectors, layout, config)
                at = Path(scratch)
                regimes = fit_predictor(inputs, at / "run", at / "predictor")
                predictor = load_predictor(at / "predictor")
            self.regimes_ = regimes
            # the folder that it was read from has gone
            self.predictor_ = replace(predictor, store=store.path, adapters=adapters)
        self._columns = sequence_columns(table)
        name_features(self, X)

    def _score(self, X: pd.DataFrame) -> pd.DataFrame:
        """Score the rows of a frame, as `Scorer` does."""
        check_is_fitted(self)
        predictor = self.predictor_
        with naming_own_options(_KEYWORDS), reporting(silent=not self.verbose, bars=False):
            table = read_frame(X, columns=self.columns, options=self._config())
            refuse_missing(table, self._columns)
            predictor.refuse_without_chains(table.antibodies, "X")
            store = as_store(self.store)
            if self.encode:
                predictor.encode(store.path, table.antibodies, table.antigens)
            features = None
            if predictor.features is not None:
                features = read_features(predictor.features, table.frame, "X")
            scorer = Scorer(predictor, store, table.antibodies, table.antigens)
            return scorer.score_rows(features)

    def _config(self, label: str | None = None) -> FitConfig:
        given = {setting.name: getattr(self, setting.name) for setting in _OPTIONS}
        config = FitConfig(**given, label=label)
        if config.split not in _INNER_SPLITS:
            msg = (
                f"split={config.split!r}: chooses what is measured inside; expected one of "
                f"{', '.join(_INNER_SPLITS)}. Pass test parts to cross_val_score as cv=."
            )
            raise OptionError(msg)
        return config

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that X holds text."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


class AffinityRegressor(RegressorMixin, PairEstimator):  # type: ignore[misc] # no types
    """Predict pKd from pairs of sequences, with a head of ``abag fit`` on stored vectors.

    X is a DataFrame with one pair per row, in columns such as ``heavy``, ``light`` and ``antigen``;
    y is the pKd, or another quantity: a Series with a name such as ``Tm (°C)``, or any numbers with
    ``better="higher"`` or ``"lower"``. A Series that is named in another unit of an affinity, such
    as ``KD (nM)``, is refused. Columns that `features` and `categories` name are read
    beside the sequences. With ``no_antigen=True``, X has antibodies alone. Rows of
    the same pair are merged as `replicates` says. As in `abag.fit`, folds of the training pairs
    weigh the parts of the head in each regime, and all pairs train them.

    Parameters
    ----------
    store : path or Store
        Holds the vectors, or receives them if `encode` is set.
    columns : mapping, optional
        Columns of X by role (``heavy``, ``light``, ``antibody``, ``antigen``), where their names do
        not tell; of an array, as meta-estimators make of X, their places from 0.
    encode : bool
        Encode sequences that the store lacks with the store's encoders; else they are an error.
    verbose : bool
        Whether to report what is done on stderr.
    **options
        Fields of `abag.FitConfig`, such as ``head``, ``preset``, ``members`` or ``seed``, but not
        those about the table, the test part or the run folder. ``split`` is ``auto`` or the one
        regime that is measured: ``random``, ``antigen``, ``antibody`` or ``both``.

    Attributes
    ----------
    predictor_ : Predictor
        The fitted models; its ``predict`` takes lists of sequences, and flags unfamiliar ones.
    regimes_ : list of dict
        Scores of the regimes that the training pairs allow to measure.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Columns of the X of `fit`, if all have names of text. `predict` needs those of them that are
        read: of sequences, features and categories.

    Notes
    -----
    Encoders that were adapted to pairs (``abag adapt``) have seen their labels; `abag.fit` refuses
    such pairs in a test part, but an estimator does not know its test part.

    Examples
    --------
    >>> model = AffinityRegressor("store", head="ridge")
    >>> model.fit(table[["heavy", "light", "antigen"]], table["pKd"])  # doctest: +SKIP
    >>> pkd, sigma = model.predict(new, return_std=True)  # doctest: +SKIP
    """

    def fit(
        self, X: pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> AffinityRegressor:
        """Train the head.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.
        y : array-like, shape=(R,) or (R, 1)
            Measured pKd, or values of another quantity.
        sample_weight : array-like, shape=(R,), optional
            How much each label counts; only the ratios count, and rows of weight 0 are left out.

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If an option, a sequence, a label or the store is invalid.
        """
        self._fit(X, y, sample_weight)
        return self

    def predict(
        self, X: pd.DataFrame, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predict the pKd of pairs, or the quantity of the training.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.
        return_std : bool
            Whether to return sigma as well, the standard error of each prediction.

        Returns
        -------
        ndarray, shape=(R,), dtype=float64, or a tuple of two

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If a sequence or the store is invalid, or X lacks a column that `fit` had.
        """
        scores = self._score(X)
        pkd = scores["pkd_predicted"].to_numpy()
        return (pkd, scores["sigma"].to_numpy()) if return_std else pkd

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that labels are few and noisy."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


# scikit-learn finds the parameters of an estimator here
PairEstimator.__init__.__signature__ = with_options(  # type: ignore[attr-defined]
    inspect.signature(PairEstimator.__init__), _OPTIONS
)


class BindingClassifier(ClassifierMixin, PairEstimator):  # type: ignore[misc] # no types
    """Predict how probably pairs are of the second of two classes, such as binders.

    X is a DataFrame as for `AffinityRegressor`, whose parameters it has, too; y has two values, of
    which the last in their order, such as 1, True or ``yes``, is the positive one. Probabilities
    are calibrated for each regime on folds of the training pairs.

    Parameters
    ----------
    store : path or Store
        Holds the vectors, or receives them if `encode` is set.
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    encode : bool
        Encode sequences that the store lacks with the store's encoders; else they are an error.
    verbose : bool
        Whether to report what is done on stderr.
    **options
        Fields of `abag.FitConfig`, as for `AffinityRegressor`.

    Attributes
    ----------
    classes_ : ndarray, shape=(2,)
        The two values of y, the positive one last.
    predictor_ : Predictor
        The fitted models.
    regimes_ : list of dict
        Scores of the regimes that the training pairs allow to measure.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Columns of the X of `fit`, if all have names of text.

    Examples
    --------
    >>> model = BindingClassifier("store", head="ridge")
    >>> model.fit(table[["heavy", "light", "antigen"]], table["binder"])  # doctest: +SKIP
    >>> probability = model.predict_proba(new)[:, 1]  # doctest: +SKIP
    """

    def fit(
        self, X: pd.DataFrame, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> BindingClassifier:
        """Train the head.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.
        y : array-like, shape=(R,) or (R, 1)
            The class of each pair.
        sample_weight : array-like, shape=(R,), optional
            How much each label counts; only the ratios count, and rows of weight 0 are left out.

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If an option, a sequence, a label or the store is invalid, or y has not two classes.
        """
        values = np.asarray(y)
        # unlike np.unique, it sorts words beside numbers
        level, _ = pd.factorize(values.ravel(), sort=True)
        missing = int((level < 0).sum())
        if missing:
            msg = (
                f"y: {missing:,} of {len(values):,} classes are missing; expected one per row. "
                "Leave these rows out of X and y."
            )
            raise LabelError(msg)
        classes = values.ravel()[np.unique(level, return_index=True)[1]]
        if len(classes) != 2:
            msg = (
                f"y: {len(classes)} classes; expected 2: only binary classification is supported. "
                "Correct y, or use AffinityRegressor for numbers."
            )
            raise LabelError(msg)
        self._fit(X, level.reshape(values.shape), sample_weight, label="binary")
        self.classes_ = classes
        return self

    def predict_proba(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Predict the probabilities of both classes.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.

        Returns
        -------
        ndarray, shape=(R, 2), dtype=float64
            In the order of `classes_`.

        Raises
        ------
        MissingVectors
            If the store lacks a sequence, and `encode` is not set.
        AbagError
            If a sequence or the store is invalid, or X lacks a column that `fit` had.
        """
        probability = self._score(X)["pkd_predicted"].to_numpy(np.float64)
        return np.stack([1 - probability, probability], axis=1)

    def predict(self, X: pd.DataFrame) -> NDArray[Any]:
        """Predict the more probable class of each pair, (R,)."""
        is_positive = self.predict_proba(X)[:, 1] >= 0.5
        return np.asarray(self.classes_[is_positive.astype(np.int64)])

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that there are two classes, and that labels are few and noisy."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags


_OF_ALL = {"--column": "columns", "--no-antigen": "no_antigen"}
_IDENTITIES = ("antigen_identity", "antibody_identity")
_GROUP_KEYWORDS = _OF_ALL | {
    field.flag: field for field in schema(SplitOptions) if field.name in _IDENTITIES
}
"""What errors name instead of flags."""
_VECTOR_KEYWORDS = _OF_ALL | {field.flag: field for field in schema(VectorOptions)}
"""What errors name instead of flags."""
GROUPED = ("antibody", "antigen", "pair")


def pair_groups(
    X: pd.DataFrame,
    kind: str,
    *,
    antigen_identity: float = 0.4,
    antibody_identity: float = 0.9,
    columns: Mapping[str, str] | None = None,
    no_antigen: bool = False,
) -> NDArray[np.int64]:
    """Return the group of each row, shape (R,), for splitters such as ``GroupKFold``.

    Parameters
    ----------
    X : DataFrame, shape=(R, columns)
        One pair per row, in columns such as ``heavy``, ``light`` and ``antigen``.
    kind : str
        ``antibody`` or ``antigen``: clusters of near-duplicates, which ``abag fit --split`` keeps
        in one part, those of antibodies with their clones; ``pair``: rows of the same pair.
    antigen_identity, antibody_identity : float
        Sequence identities from which sequences share a cluster.
    columns : mapping, optional
        Columns of X by role, where their names do not tell.
    no_antigen : bool
        Whether X has antibodies alone.

    Raises
    ------
    AbagError
        If a sequence or an identity is invalid.
    """
    if kind not in GROUPED:
        msg = f"kind={kind!r}: is unknown; expected {', '.join(GROUPED)}. Give one of them."
        raise OptionError(msg)
    with naming_own_options(_GROUP_KEYWORDS):
        options = SplitOptions(
            antigen_identity=antigen_identity, antibody_identity=antibody_identity
        )
        reading = TableOptions(no_antigen=no_antigen)
        pairs = labelled(read_frame(X, columns=columns, options=reading))
        groups = PairGroups(pairs, options)
        of_pair: NDArray[np.int64] = getattr(groups, kind)
        antigens = len(pairs.table.antigens.keys)
        number_of_pair = pairs.antibody * antigens + pairs.antigen  # ascending, one per pair
        of_row = pairs.table.antibodies.of_row * antigens + pairs.table.antigens.of_row
        return of_pair[np.searchsorted(number_of_pair, of_row)]


class PairVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc] # no types
    """Turn pairs of sequences into a matrix: the antibody's vector, then the antigen's.

    Parameters
    ----------
    store : path or Store
        Holds the vectors, or receives them if `encode` is set.
    antibody_encoder, antigen_encoder : str, optional
        Encoders in the store; by default the only one of each kind.
    antibody_pooling, antigen_pooling : str
        Poolings such as ``mean``, ``cls`` or ``mean@LAYER``.
    columns : mapping, optional
        Columns of X by role (``heavy``, ``light``, ``antibody``, ``antigen``), where their names do
        not tell.
    encode : bool
        Encode sequences that the store lacks with the store's encoders; else they are an error.
    no_antigen : bool
        Whether X has antibodies alone, whose vectors then are the matrix.

    Attributes
    ----------
    fingerprints_ : dict
        Fingerprint of the encoder by kind; other vectors are not accepted after `fit`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Columns of the X of `fit`, if all have names of text. `transform` needs those of sequences.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> model = make_pipeline(PairVectorizer("store"), Ridge())  # doctest: +SKIP
    >>> model.fit(table[["heavy", "light", "antigen"]], table["pKd"])  # doctest: +SKIP
    """

    def __init__(
        self,
        store: Store | Path | str | None = None,
        *,
        antibody_encoder: str | None = None,
        antigen_encoder: str | None = None,
        antibody_pooling: str = "mean",
        antigen_pooling: str = "mean",
        columns: Mapping[str, str] | None = None,
        encode: bool = False,
        no_antigen: bool = False,
    ) -> None:
        self.store = store
        self.antibody_encoder = antibody_encoder
        self.antigen_encoder = antigen_encoder
        self.antibody_pooling = antibody_pooling
        self.antigen_pooling = antigen_pooling
        self.columns = columns
        self.encode = encode
        self.no_antigen = no_antigen

    def fit(self, X: pd.DataFrame, y: object = None) -> PairVectorizer:
        """Find the encoders in the store; `y` is ignored.

        Raises
        ------
        AbagError
            If X or the store is invalid, or sequences are missing.
        """
        table = self._read(X)
        vectors, fingerprints = self._look_up(table)
        self.fingerprints_ = fingerprints
        self._columns = sequence_columns(table)
        name_features(self, X)
        self._names = list[str]()
        for kind, x_RD in vectors.items():
            pooling = self._options().vectors_of(kind)["pooling"]
            self._names += vector_names(kind, pooling, x_RD.shape[1])
        return self

    def transform(self, X: pd.DataFrame) -> NDArray[np.float32]:
        """Return the vectors of the pairs.

        Parameters
        ----------
        X : DataFrame, shape=(R, columns)
            One pair per row.

        Returns
        -------
        ndarray, shape=(R, D + E), dtype=float32
            D and E are the widths of the antibody and the antigen vectors.
        """
        check_is_fitted(self)
        table = self._read(X)
        refuse_missing(table, self._columns)
        vectors, _ = self._look_up(table, self.fingerprints_)
        return np.concatenate([*vectors.values()], axis=1)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the columns, such as ``antigen_mean_0``."""
        check_is_fitted(self)
        return np.array(self._names, dtype=object)

    def _options(self, fingerprints: Mapping[str, str] | None = None) -> VectorOptions:
        encoders = fingerprints or {}
        return VectorOptions(
            antibody_encoder=encoders.get("antibody", self.antibody_encoder),
            antigen_encoder=encoders.get("antigen", self.antigen_encoder),
            antibody_pooling=self.antibody_pooling,
            antigen_pooling=self.antigen_pooling,
        )

    def _read(self, X: pd.DataFrame) -> SequenceTable:
        with naming_own_options(_VECTOR_KEYWORDS):
            reading = TableOptions(no_antigen=self.no_antigen)
            return read_frame(X, columns=self.columns, options=reading)

    def _look_up(
        self, table: SequenceTable, fingerprints: Mapping[str, str] | None = None
    ) -> tuple[dict[Kind, NDArray[np.float32]], dict[str, str]]:
        with naming_own_options(_VECTOR_KEYWORDS):
            options = self._options(fingerprints)
            folders = folders_with(as_store(self.store), table, options, encode=self.encode)
            vectors: dict[Kind, NDArray[np.float32]] = {}
            for kind, folder in folders.items():
                unique = table.sequences[kind]
                x_ND = folder.read(unique.keys, options.vectors_of(kind)["pooling"])
                vectors[kind] = x_ND[unique.of_row]
        return vectors, {kind: folder.fingerprint for kind, folder in folders.items()}

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - sklearn.utils.Tags
        """Declare that X holds text, and that fitting needs no y."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.target_tags.required = False
        return tags
