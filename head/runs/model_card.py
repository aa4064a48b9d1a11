"""A predictor's README.md: what it was trained on, how well it did, and what it is not for.

Written from what the run wrote down; nothing in it is dated, so the same run gives the same card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abag.head.evaluation.metrics import metric_label, table_metrics

LICENCES = {
    "igt5": "MIT (Exscientia/IgT5; Kenlay et al. 2024)",
    "igt5-unpaired": "MIT (Exscientia/IgT5_unpaired; Kenlay et al. 2024)",
    "antiberty": "MIT (AntiBERTy; Ruffolo et al. 2021)",
    "composition": "no weights: part of abag (MIT)",
    "tiny-igt5": "random weights made by abag: no biology in its vectors",
    "tiny-esm2": "random weights made by abag: no biology in its vectors",
} | {f"esm2-{size}": "MIT (ESM-2; Lin et al. 2023)" for size in ("8m", "35m", "150m", "650m", "3b")}
"""What is known of encoders by name; others are said to be unknown."""


def model_card(source: str, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Write the card of a finished run.

    Parameters
    ----------
    source : str
        Name of the table.
    config : mapping
        Content of config.json.
    summary : mapping
        What `fit` returns.

    Returns
    -------
    str
        Markdown.
    """
    split = summary["split"]
    sections = [
        ["# Antibody-antigen affinity predictor", "", _what(config)],
        ["## Use", "", *_USE],
        ["## Data", "", *_data(source, config, summary)],
        ["## Split", "", *_split(split)],
        ["## Test scores beside baselines", "", *_scores(summary)],
        ["## Limits", "", *_limits(summary)],
        ["## Encoders and licences", "", *_encoders(config)],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


_USE = [
    "```python",
    "import abag",
    'predictor = abag.load_predictor("predictor")  # this folder',
    'predictor.predict(heavy=["EVQL..."], light=["DIQM..."], antigen=["MKTA..."])',
    "```",
    "",
    "Or score a table: `abag predict pairs.csv --run predictor --store store --out scored.csv`.",
    "Sequences are encoded with the encoders named below; others are refused by fingerprint. What",
    "adapted them, if anything did, lies beside this page.",
]


def _what(config: Mapping[str, Any]) -> str:
    return (
        f"Predicts pKd = -log10(Kd in M) from the `{config['antibody_pooling']}` vector of "
        f"{config['antibody_encoder']} and the `{config['antigen_pooling']}` vector of "
        f"{config['antigen_encoder']} by a `{config['head']}` head, trained with abag."
    )


def _data(source: str, config: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    counts = summary["counts"]
    lines = [f"- table `{source}`: {config['pairs']:,} pairs, labels read as `{config['label']}`"]
    if config["affinity_type"]:
        lines.append(f"- affinity type `{config['affinity_type']}` only")
    lines += [f"- {n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n]
    if summary["noise"] is not None:
        lines.append(f"- replicates differ with a standard deviation of {summary['noise']:.2f} pKd")
    return lines


def _split(split: Mapping[str, Any]) -> list[str]:
    lines = [f"- `{split['name']}`, {split['folds']} fold{'s' * (split['folds'] > 1)}"]
    if "why" in split:
        lines[0] += f" ({split['why']})"
    if "rows" in split:
        rows = ", ".join(f"{n:,} {part}" for part, n in split["rows"].items())
        lines.append(f"- rows in the first fold: {rows}")
    for kind, leaks in split.get("leaks", {}).items():
        counted = ", ".join(f"{n:,} {_mate(how)}" for how, n in leaks.items())
        lines.append(f"- test rows of the first fold with a mate in training, by {kind}: {counted}")
    return lines


def _mate(how: str) -> str:
    return how if how.isalpha() else f"at {how} identity"


def _scores(summary: Mapping[str, Any]) -> list[str]:
    rows = {"**this predictor**": summary["metrics"]["test"]}
    rows |= {name: scores["test"] for name, scores in summary["baselines"].items()}
    shown = table_metrics()
    head = ["", *(metric_label(name) for name in shown)]
    table = [head, ["---"] * len(head)]
    table += [[name, *(_number(scores.get(c)) for c in shown)] for name, scores in rows.items()]
    return [
        f"{summary['metrics']['test']['n']:,} test rows.",
        "",
        *map(_row, table),
        "",
        *(f"- {text}" for text in summary["verdicts"]),
    ]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _limits(summary: Mapping[str, Any]) -> list[str]:
    return [
        *(f"- {text}" for text in summary["warnings"]),
        f"- Predictions keep {summary['kept']:.0%} of the heads' distance from the training mean, "
        "which is",
        "  what fitted the validation pairs: where that is little, they differ little.",
        "- Scores hold for new pairs only as far as these resemble the test part of the split",
        "  above. Antibodies and antigens far from the training set are flagged (`far_antibody`,",
        "  `far_antigen`): further from all of it than 99 % of it lies apart.",
        "- `weights.safetensors` holds pooled vectors of up to 2,048 training sequences a side,",
        "  for these flags; share the folder only where these may be shared.",
        "- A prediction is no measurement: use it to choose what to measure.",
    ]


def _encoders(config: Mapping[str, Any]) -> list[str]:
    lines = []
    for kind in ("antibody", "antigen"):
        name = config[f"{kind}_encoder"]
        known = LICENCES.get(name, "licence not known to abag: see where the weights came from")
        lines.append(f"- {kind}: {name}, fingerprint `{config[f'{kind}_fingerprint']}`; {known}")
    return [*lines, "", "The data's own terms apply to this predictor too."]
