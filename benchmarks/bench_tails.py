"""Whether heavy tails of errors ask for another curve than the normal one around a prediction.

Errors of held-out pairs are drawn from normal, Laplace and Student's t distributions, and from
normal ones with outliers. Half of the work is `fit_sigma`, as a run calibrates; its normal curve is
compared with Student's t curve of the likeliest degrees of freedom, and with quantiles of the
scaled errors, on 20,000 new errors: coverage of 90 % intervals, their width, and the Brier score of
the probability that a label is above a threshold.

    python benchmarks/bench_tails.py [--draws 200]
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
from scipy import stats

from abag.head.predictor.weigh import fit_sigma

NEW = 20_000
DEGREES = (2.5, 3, 4, 6, 10, 30, 1e6)
THRESHOLDS = (-1.0, 0.0, 1.0, 2.0)
"""Of a label minus its prediction, in standard deviations."""


def outliers(rng, size):
    """Draw normal errors, of which 5 % are four times as large."""
    return rng.normal(size=size) * np.where(rng.random(size) < 0.05, 4.0, 1.0)


DISTRIBUTIONS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "laplace": lambda rng, size: rng.laplace(size=size),
    "t, 5 degrees": lambda rng, size: rng.standard_t(5, size=size),
    "t, 3 degrees": lambda rng, size: rng.standard_t(3, size=size),
    "5 % outliers": outliers,
}


def normal_curve(error):
    """Return the half width of a 90 % interval and the probability above a threshold."""
    _, noise = fit_sigma(error, np.zeros(len(error)))
    return stats.norm.ppf(0.95) * noise, lambda at: stats.norm.sf(at / noise)


def student_curve(error):
    """Return the same as `normal_curve`, of the likeliest degrees of freedom and scale."""
    scales = np.geomspace(0.2, 1.5, 40) * error.std()
    tried = []
    for degrees, scale in product(DEGREES, scales):
        likelihood = stats.t.logpdf(error / scale, degrees).sum() - len(error) * np.log(scale)
        tried.append((likelihood, degrees, scale))
    _, degrees, scale = max(tried)
    return stats.t.ppf(0.95, degrees) * scale, lambda at: stats.t.sf(at / scale, degrees)


def quantile_curve(error):
    """Return the same as `normal_curve`, from the quantiles of the errors, both signs alike."""
    both = np.sort(np.concatenate([error, -error]))
    half = np.quantile(np.abs(error), min(1.0, 0.9 * (1 + 1 / len(error))))
    return half, lambda at: 1 - np.searchsorted(both, at) / len(both)


CURVES = {"normal": normal_curve, "student": student_curve, "quantiles": quantile_curve}


def main():
    """Print a line per distribution, number of pairs and curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    print("| errors | pairs | curve | coverage, mean | draws below 85 % | width | Brier |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for name, draw in DISTRIBUTIONS.items():
        for size in (60, 200, 1000):
            for curve_name, curve in CURVES.items():
                print(compare(name, draw, size, curve_name, curve, arguments.draws), flush=True)


def compare(name, draw, size, curve_name, curve, draws):
    """Return the line of one curve; all curves see the same draws."""
    covered = []
    widths = []
    scores = []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        error = draw(rng, size)
        new = draw(rng, NEW)
        half, above = curve(error)
        covered.append(np.mean(np.abs(new) <= half))
        widths.append(2 * half / error.std())
        scores.append([np.mean((above(at) - (new > at)) ** 2) for at in THRESHOLDS])
    low = np.mean(np.array(covered) < 0.85)
    return (
        f"| {name} | {size} | {curve_name} | {np.mean(covered):.3f} | {low:.3f} | "
        f"{np.mean(widths):.2f} | {np.mean(scores):.5f} |"
    )


if __name__ == "__main__":
    main()
