"""Types of the public names; written by tests/make_stub.py from the declared options."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:  # type checkers resolve import cycles by leaving such imports to the end
    from abag.adapt.config import AdaptConfig as AdaptConfig
    from abag.adapt.train import AdaptSummary
    from abag.core.errors import AbagError as AbagError
    from abag.core.errors import ColumnError as ColumnError
    from abag.core.errors import DamagedFile as DamagedFile
    from abag.core.errors import DeviceError as DeviceError
    from abag.core.errors import EncoderError as EncoderError
    from abag.core.errors import HubError as HubError
    from abag.core.errors import LabelError as LabelError
    from abag.core.errors import MissingPackage as MissingPackage
    from abag.core.errors import MissingVectors as MissingVectors
    from abag.core.errors import OptionError as OptionError
    from abag.core.errors import OutputError as OutputError
    from abag.core.errors import PredictionError as PredictionError
    from abag.core.errors import RunError as RunError
    from abag.core.errors import SequenceError as SequenceError
    from abag.core.errors import SplitError as SplitError
    from abag.core.errors import StoreError as StoreError
    from abag.core.errors import TableError as TableError
    from abag.core.errors import TrainingError as TrainingError
    from abag.core.errors import WorkerError as WorkerError
    from abag.core.frames import AnyTable
    from abag.core.frames import AnyTables
    from abag.core.options import EncoderOptions as EncoderOptions
    from abag.embed.embed import EmbedSummary
    from abag.embed.export import ExportSummary
    from abag.embed.options import EmbedOptions as EmbedOptions
    from abag.embed.options import ExportOptions as ExportOptions
    from abag.embed.options import ResidueFileOptions as ResidueFileOptions
    from abag.embed.options import ResidueOptions as ResidueOptions
    from abag.embed.residues import ResidueSummary
    from abag.embed.residues import ResidueVectors
    from abag.head.design.rank import RankSummary
    from abag.head.design.scan import ScanSummary
    from abag.head.estimators.dataset import DatasetOptions as DatasetOptions
    from abag.head.estimators.dataset import PairDataset as PairDataset
    from abag.head.estimators.python_store import Store as Store
    from abag.head.estimators.python_store import open_store as open_store
    from abag.head.models.config import FitConfig as FitConfig
    from abag.head.plan import Plan
    from abag.head.predictor.options import EvaluateOptions as EvaluateOptions
    from abag.head.predictor.options import PlanOptions as PlanOptions
    from abag.head.predictor.options import PredictOptions as PredictOptions
    from abag.head.predictor.options import RankOptions as RankOptions
    from abag.head.predictor.options import ScanOptions as ScanOptions
    from abag.head.predictor.options import ShareOptions as ShareOptions
    from abag.head.predictor.options import SweepOptions as SweepOptions
    from abag.head.predictor.predictor import Predictor as Predictor
    from abag.head.predictor.scoring import PredictSummary
    from abag.head.predictor.scoring import load_predictor as load_predictor
    from abag.head.runs.compare import RunsSummary
    from abag.head.runs.report import ReportSummary
    from abag.head.runs.run_folder import RunSummary
    from abag.head.share import ShareSummary
    from abag.head.sweep import SweepSummary
    import abag.sklearn

__version__: str
_FUNCTIONS: dict[str, tuple[str, ...]]
_MEANWHILE: str
__all__ = [
    "AbagError",
    "AdaptConfig",
    "ColumnError",
    "DamagedFile",
    "DatasetOptions",
    "DeviceError",
    "EmbedOptions",
    "EncoderError",
    "EncoderOptions",
    "EvaluateOptions",
    "ExportOptions",
    "FitConfig",
    "HubError",
    "LabelError",
    "MissingPackage",
    "MissingVectors",
    "OptionError",
    "OutputError",
    "PairDataset",
    "PlanOptions",
    "PredictOptions",
    "PredictionError",
    "Predictor",
    "RankOptions",
    "ResidueFileOptions",
    "ResidueOptions",
    "RunError",
    "ScanOptions",
    "SequenceError",
    "ShareOptions",
    "SplitError",
    "Store",
    "StoreError",
    "SweepOptions",
    "TableError",
    "TrainingError",
    "WorkerError",
    "__version__",
    "adapt_encoders",
    "dataset",
    "embed_table",
    "evaluate",
    "export_residues",
    "export_vectors",
    "fit",
    "load_predictor",
    "open_store",
    "plan",
    "predict",
    "rank",
    "report",
    "residues",
    "runs",
    "scan",
    "share",
    "sweep",
]

class _DatasetKeywords(TypedDict, total=False):
    say: Callable[[str], None] | Literal[False] | None
    progress: bool
    columns: Mapping[str, str]
    antigen: str | None
    sequences: tuple[str, ...]
    parent: str | None
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia']
    first_residue: int
    sheet: str | None
    matrix: bool
    bad_rows: Literal['error', 'skip']
    limit: int | None
    no_antigen: bool
    antibody_region: Literal['as-given', 'fv']
    chains: Literal['as-given', 'auto', 'most']
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None
    positive: str | None
    classes: tuple[str, ...] | None
    better: Literal['higher', 'lower'] | None
    unit: str | None
    scale: Literal['linear', 'log'] | None
    molar_mass: str | None
    no_binding: float | None
    no_binding_empty: bool
    label_range: str | None
    replicates: Literal['median', 'mean', 'first', 'keep', 'error']
    floor: Literal['keep', 'censor', 'drop']
    affinity_type: str | None
    features: tuple[str, ...] | None
    categories: tuple[str, ...] | None
    error: str | None
    weight: str | None
    split: str
    folds: int
    repeats: int
    antigen_identity: float
    antibody_identity: float
    seed: int
    split_seed: int | None
    antibody_encoder: str | None
    antigen_encoder: str | None
    antibody_pooling: str
    antigen_pooling: str

class _EstimatorKeywords(TypedDict, total=False):
    sequences: tuple[str, ...]
    parent: str | None
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia']
    first_residue: int
    sheet: str | None
    no_antigen: bool
    antibody_region: Literal['as-given', 'fv']
    chains: Literal['as-given', 'auto', 'most']
    skipped: Path | str | None
    better: Literal['higher', 'lower'] | None
    unit: str | None
    scale: Literal['linear', 'log'] | None
    molar_mass: str | None
    no_binding: float | None
    no_binding_empty: bool
    label_range: str | None
    replicates: Literal['median', 'mean', 'first', 'keep', 'error']
    features: tuple[str, ...] | None
    categories: tuple[str, ...] | None
    error: str | None
    weight: str | None
    split: str
    antigen_identity: float
    antibody_identity: float
    seed: int
    preset: Literal['small', 'medium', 'seed']
    head: str | None
    widths: tuple[int, ...] | None
    dropout: float | None
    epochs: int | None
    batch_size: int | None
    accumulate: int | None
    lr: float | None
    weight_decay: float | None
    loss: Literal['mse', 'huber', 'rank']
    members: int
    device: str
    antibody_encoder: str | None
    antigen_encoder: str | None
    antibody_pooling: str
    antigen_pooling: str
    antibody_vectors: tuple[str, ...] | None
    antigen_vectors: tuple[str, ...] | None
    select: str
    patience: int | None
    threads: int
    precision: Literal['auto', 'fp32', 'bf16']
    compile: Literal['auto', 'off', 'graph', 'full']
    deterministic: bool

def adapt_encoders(
    table: AnyTables,
    out: Path | str,
    *,
    split_from: Path | str,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    antibody_encoder: str = 'igt5',
    antigen_encoder: str = 'esm2-650m',
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    better: Literal['higher', 'lower'] | None = None,
    unit: str | None = None,
    scale: Literal['linear', 'log'] | None = None,
    molar_mass: str | None = None,
    no_binding: float | None = None,
    no_binding_empty: bool = False,
    label_range: str | None = None,
    replicates: Literal['median', 'mean', 'first', 'keep', 'error'] = 'median',
    floor: Literal['keep', 'censor', 'drop'] = 'keep',
    affinity_type: str | None = None,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.1,
    targets: tuple[str, ...] = ...,
    layers: tuple[int, ...] = ...,
    device: str = 'auto',
    fold: int | None = None,
    sides: Literal['antibody', 'antigen', 'both'] = 'both',
    head_share: float = 0.5,
    epochs: int = 10,
    batch_size: int = 16,
    lr: float = 0.0003,
    head_lr: float = 0.001,
    patience: int = 3,
    gradient_checkpointing: bool = False,
    seed: int = 0,
    save_every: int = 100,
    precision: Literal['auto', 'fp32', 'bf16'] = 'auto',
) -> AdaptSummary: ...
def dataset(
    store: Store | Path | str,
    table: AnyTables,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    better: Literal['higher', 'lower'] | None = None,
    unit: str | None = None,
    scale: Literal['linear', 'log'] | None = None,
    molar_mass: str | None = None,
    no_binding: float | None = None,
    no_binding_empty: bool = False,
    label_range: str | None = None,
    replicates: Literal['median', 'mean', 'first', 'keep', 'error'] = 'median',
    floor: Literal['keep', 'censor', 'drop'] = 'keep',
    affinity_type: str | None = None,
    features: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    error: str | None = None,
    weight: str | None = None,
    split: str = 'auto',
    folds: int = 0,
    repeats: int = 1,
    antigen_identity: float = 0.4,
    antibody_identity: float = 0.9,
    seed: int = 0,
    split_seed: int | None = None,
    antibody_encoder: str | None = None,
    antigen_encoder: str | None = None,
    antibody_pooling: str = 'mean',
    antigen_pooling: str = 'mean',
) -> PairDataset: ...
def embed_table(
    table: AnyTables,
    store: Path | str,
    antibody_encoder: Path | str = 'igt5',
    antigen_encoder: Path | str = 'esm2-650m',
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    skipped: Path | str | None = None,
    device: str = 'auto',
    kind: Literal['both', 'antibody', 'antigen'] = 'both',
    long_antigens: Literal['window', 'truncate', 'error'] = 'window',
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    antibody_backend: Literal['packed', 'reference'] = 'packed',
    antigen_backend: Literal['packed', 'reference', 'faesm'] = 'packed',
    antibody_adapter: Path | str | None = None,
    antigen_adapter: Path | str | None = None,
    attention: Literal['auto', 'triton', 'flash-attn', 'varlen', 'sdpa'] = 'auto',
    batch_tokens: int | None = None,
    layers: tuple[int, ...] | None = None,
    poolings: tuple[str, ...] | None = None,
    loglik: bool | None = None,
    commit_seconds: float = 30.0,
    store_dtype: Literal['float16', 'float32'] = 'float16',
    devices: int | Literal['all'] | None = None,
    ray: str | None = None,
) -> EmbedSummary: ...
def evaluate(
    run: Path | str,
    *,
    table: AnyTables | None = None,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    store: Path | str | None = None,
    predictions: AnyTable | None = None,
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    molar_mass: str | None = None,
    affinity_type: str | None = None,
    strong: float | None = None,
    bad_rows: Literal['error', 'skip'] | None = None,
) -> RunSummary: ...
def export_vectors(
    store: Store | Path | str,
    to: Path | str,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    antibody_encoder: str | None = None,
    antigen_encoder: str | None = None,
    antibody_pooling: str = 'mean',
    antigen_pooling: str = 'mean',
    table: AnyTable | None = None,
    kind: Literal['antibody', 'antigen', 'pair'] | None = None,
    dtype: Literal['stored', 'float32'] = 'stored',
    force: bool = False,
) -> ExportSummary: ...
def export_residues(
    table: AnyTables,
    out: Path | str,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    antibody_encoder: str = 'igt5',
    antigen_encoder: str = 'esm2-650m',
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    skipped: Path | str | None = None,
    device: str = 'auto',
    kind: Literal['both', 'antibody', 'antigen'] = 'both',
    long_antigens: Literal['window', 'truncate', 'error'] = 'window',
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    antibody_backend: Literal['packed', 'reference'] = 'packed',
    antigen_backend: Literal['packed', 'reference', 'faesm'] = 'packed',
    antibody_adapter: Path | str | None = None,
    antigen_adapter: Path | str | None = None,
    attention: Literal['auto', 'triton', 'flash-attn', 'varlen', 'sdpa'] = 'auto',
    batch_tokens: int | None = None,
    dtype: Literal['float16', 'float32'] = 'float16',
    file_mb: int = 256,
) -> ResidueSummary: ...
def fit(
    table: AnyTables,
    store: Path | str | None,
    run: Path | str,
    *,
    verbose: bool = False,
    report: bool = True,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    skipped: Path | str | None = None,
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    better: Literal['higher', 'lower'] | None = None,
    unit: str | None = None,
    scale: Literal['linear', 'log'] | None = None,
    molar_mass: str | None = None,
    no_binding: float | None = None,
    no_binding_empty: bool = False,
    label_range: str | None = None,
    replicates: Literal['median', 'mean', 'first', 'keep', 'error'] = 'median',
    floor: Literal['keep', 'censor', 'drop'] = 'keep',
    affinity_type: str | None = None,
    features: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    error: str | None = None,
    weight: str | None = None,
    split: str = 'auto',
    folds: int = 0,
    repeats: int = 1,
    antigen_identity: float = 0.4,
    antibody_identity: float = 0.9,
    seed: int = 0,
    split_seed: int | None = None,
    preset: Literal['small', 'medium', 'seed'] = 'small',
    head: str | None = None,
    widths: tuple[int, ...] | None = None,
    dropout: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    loss: Literal['mse', 'huber', 'rank'] = 'mse',
    members: int = 1,
    device: str = 'auto',
    antibody_encoder: str | None = None,
    antigen_encoder: str | None = None,
    antibody_pooling: str = 'mean',
    antigen_pooling: str = 'mean',
    antibody_vectors: tuple[str, ...] | None = None,
    antigen_vectors: tuple[str, ...] | None = None,
    add: str | None = None,
    adapter_rows: Literal['leave-out', 'train'] = 'leave-out',
    select: str = 'spearman',
    patience: int | None = None,
    save_every: int | None = None,
    threads: int = 1,
    precision: Literal['auto', 'fp32', 'bf16'] = 'auto',
    compile: Literal['auto', 'off', 'graph', 'full'] = 'auto',
    deterministic: bool = False,
    learning_curve: bool = False,
) -> RunSummary: ...
def plan(
    table: AnyTables,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    antibody_encoder: str = 'igt5',
    antigen_encoder: str = 'esm2-650m',
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    skipped: Path | str | None = None,
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    better: Literal['higher', 'lower'] | None = None,
    unit: str | None = None,
    scale: Literal['linear', 'log'] | None = None,
    molar_mass: str | None = None,
    no_binding: float | None = None,
    no_binding_empty: bool = False,
    label_range: str | None = None,
    replicates: Literal['median', 'mean', 'first', 'keep', 'error'] = 'median',
    floor: Literal['keep', 'censor', 'drop'] = 'keep',
    affinity_type: str | None = None,
    features: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    error: str | None = None,
    weight: str | None = None,
    antibody_vectors: tuple[str, ...] | None = None,
    antigen_vectors: tuple[str, ...] | None = None,
    price_per_hour: float | None = None,
    all_gpus: bool = False,
) -> Plan: ...
def predict(
    table: AnyTables,
    run: Path | str | Predictor,
    out: Path | str | None = None,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] | None = None,
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] | None = None,
    chains: Literal['as-given', 'auto', 'most'] | None = None,
    device: str = 'auto',
    store: Path | str | None = None,
    force: bool = False,
    antibody_encoder: str | None = None,
    antigen_encoder: str | None = None,
    cross: AnyTable | None = None,
    strong: float | None = None,
    explain: Path | str | None = None,
) -> Any: ...
def rank(
    predictions: AnyTables,
    out: Path | str | None = None,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] | None = None,
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] | None = None,
    batch: int = 96,
    rule: Literal['mean', 'ucb', 'improvement', 'probability'] = 'mean',
    explore: float | None = None,
    best: float | None = None,
    above: float | None = None,
    better: Literal['higher', 'lower'] | None = None,
    measured: AnyTable | None = None,
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    molar_mass: str | None = None,
    run: Path | str | None = None,
    ordered: Path | str | None = None,
    second: AnyTable | None = None,
    second_run: Path | str | None = None,
    second_better: Literal['higher', 'lower'] | None = None,
    second_above: float | None = None,
    keep_far: bool = False,
    per_position: int | None = None,
    force: bool = False,
) -> Any: ...
def report(
    run: Path | str,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
) -> ReportSummary: ...
def residues(
    table: AnyTables,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    antibody_encoder: str = 'igt5',
    antigen_encoder: str = 'esm2-650m',
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    skipped: Path | str | None = None,
    device: str = 'auto',
    kind: Literal['both', 'antibody', 'antigen'] = 'both',
    long_antigens: Literal['window', 'truncate', 'error'] = 'window',
    precision: Literal['auto', 'bf16', 'fp16', 'fp32'] = 'auto',
    antibody_backend: Literal['packed', 'reference'] = 'packed',
    antigen_backend: Literal['packed', 'reference', 'faesm'] = 'packed',
    antibody_adapter: Path | str | None = None,
    antigen_adapter: Path | str | None = None,
    attention: Literal['auto', 'triton', 'flash-attn', 'varlen', 'sdpa'] = 'auto',
    batch_tokens: int | None = None,
    dtype: Literal['float16', 'float32'] = 'float16',
) -> Iterator[ResidueVectors]: ...
def runs(
    folders: Path | str | Sequence[Path | str],
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
) -> RunsSummary: ...
def scan(
    run: Path | str | Predictor,
    out: Path | str | None = None,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] | None = None,
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] | None = None,
    chains: Literal['as-given', 'auto', 'most'] | None = None,
    device: str = 'auto',
    store: Path | str | None = None,
    force: bool = False,
    antibody_encoder: str | None = None,
    antigen_encoder: str | None = None,
    heavy: str | None = None,
    light: str | None = None,
    parents: AnyTable | None = None,
    region: str | None = None,
    positions: str | None = None,
    mutate_to: str | None = None,
    exclude: str | None = None,
    pairs_of: int | None = None,
    mutations: tuple[int, ...] | None = None,
    drawn: int | None = None,
) -> Any: ...
def share(
    run: Path | str,
    to: Path | str,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    private: bool = False,
    with_sequences: bool = False,
    license: str | None = None,
) -> ShareSummary: ...
def sweep(
    table: AnyTables,
    store: Path | str,
    folder: Path | str,
    *,
    say: Callable[[str], None] | Literal[False] | None = None,
    progress: bool = False,
    trials: int | None = None,
    folds: int = 3,
    final: bool = False,
    members: int = 8,
    columns: Mapping[str, str] = ...,
    antigen: str | None = None,
    sequences: tuple[str, ...] = ...,
    parent: str | None = None,
    numbering: Literal['sequential', 'imgt', 'kabat', 'chothia'] = 'sequential',
    first_residue: int = 1,
    sheet: str | None = None,
    matrix: bool = False,
    bad_rows: Literal['error', 'skip'] = 'error',
    limit: int | None = None,
    no_antigen: bool = False,
    antibody_region: Literal['as-given', 'fv'] = 'as-given',
    chains: Literal['as-given', 'auto', 'most'] = 'as-given',
    skipped: Path | str | None = None,
    label: Literal['pkd', 'kd_m', 'kd_mm', 'kd_um', 'kd_nm', 'kd_pm', 'kd_fm', 'log10_kd_m', 'log10_kd_um', 'log10_kd_nm', 'log10_kd_pm', 'neg_log10_kd_nm', 'ln_kd_m', 'ln_kd_nm', 'ka_per_m', 'ka_per_um', 'ka_per_nm', 'log10_ka_per_m', 'ug_ml', 'ng_ml', 'dg_kcal', 'dg_kj', 'binary', 'classes', 'value'] | None = None,
    positive: str | None = None,
    classes: tuple[str, ...] | None = None,
    better: Literal['higher', 'lower'] | None = None,
    unit: str | None = None,
    scale: Literal['linear', 'log'] | None = None,
    molar_mass: str | None = None,
    no_binding: float | None = None,
    no_binding_empty: bool = False,
    label_range: str | None = None,
    replicates: Literal['median', 'mean', 'first', 'keep', 'error'] = 'median',
    floor: Literal['keep', 'censor', 'drop'] = 'keep',
    affinity_type: str | None = None,
    features: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    error: str | None = None,
    weight: str | None = None,
    split: str = 'auto',
    antigen_identity: float = 0.4,
    antibody_identity: float = 0.9,
    seed: int = 0,
    split_seed: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    device: str = 'auto',
    antibody_encoder: str | None = None,
    antigen_encoder: str | None = None,
    antibody_vectors: tuple[str, ...] | None = None,
    antigen_vectors: tuple[str, ...] | None = None,
    adapter_rows: Literal['leave-out', 'train'] = 'leave-out',
    select: str = 'spearman',
    patience: int | None = None,
    save_every: int | None = None,
    threads: int = 1,
    precision: Literal['auto', 'fp32', 'bf16'] = 'auto',
    compile: Literal['auto', 'off', 'graph', 'full'] = 'auto',
    deterministic: bool = False,
) -> SweepSummary: ...
