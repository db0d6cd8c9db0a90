"""The scikit-learn estimators beside scikit-learn's own, all at their defaults, on ten of its data sets.

Five sets that scikit-learn ships and five that it generates; nothing is downloaded. A quarter of each is the
test part, in several random splits. The defaults of the estimators were chosen on other data
(`--sets choosing`), never on these ten. Usage:
python benchmarks/tabular.py [--seeds 5] [--markdown docs/integrations/sklearn.md]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor

from alrao.integrations.sklearn import AlraoClassifier, AlraoRegressor
from alrao_lab.render.markdown import replace_table


def shipped(load: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: load(return_X_y=True)


TEN: dict[str, tuple[str, Callable[[], Any]]] = {
    "iris": ("classes", shipped(datasets.load_iris)),
    "wine": ("classes", shipped(datasets.load_wine)),
    "breast cancer": ("classes", shipped(datasets.load_breast_cancer)),
    "digits": ("classes", shipped(datasets.load_digits)),
    "moons": ("classes", lambda: datasets.make_moons(600, noise=0.25, random_state=0)),
    "classification": (
        "classes",
        lambda: datasets.make_classification(1000, 20, n_informative=6, n_classes=3, random_state=0),
    ),
    "diabetes": ("numbers", shipped(datasets.load_diabetes)),
    "friedman 1": ("numbers", lambda: datasets.make_friedman1(600, noise=1.0, random_state=0)),
    "friedman 2": ("numbers", lambda: datasets.make_friedman2(600, noise=50.0, random_state=0)),
    "friedman 3": ("numbers", lambda: datasets.make_friedman3(600, noise=0.1, random_state=0)),
}


def interaction() -> Any:
    """Features of very different sizes, two of which interact."""
    rng = np.random.RandomState(19)
    X = rng.randn(1000, 8) * np.logspace(-2, 2, 8)
    return X, np.sin(X[:, 3]) * X[:, 4] + X[:, 2] / 0.3 + 0.3 * rng.randn(1000)


CHOOSING: dict[str, tuple[str, Callable[[], Any]]] = {
    "hastie": ("classes", lambda: datasets.make_hastie_10_2(1500, random_state=11)),
    "quantiles": (
        "classes",
        lambda: datasets.make_gaussian_quantiles(n_samples=600, n_features=5, n_classes=4, random_state=12),
    ),
    "classification 40": (
        "classes",
        lambda: datasets.make_classification(1200, 40, n_informative=10, n_classes=5, random_state=13),
    ),
    "classification 8": (
        "classes",
        lambda: datasets.make_classification(160, 8, n_informative=4, n_classes=3, random_state=14),
    ),
    "blobs": ("classes", lambda: datasets.make_blobs(500, 6, centers=6, cluster_std=4.0, random_state=15)),
    "swiss roll": ("numbers", lambda: datasets.make_swiss_roll(800, noise=0.3, random_state=16)),
    "s curve": ("numbers", lambda: datasets.make_s_curve(300, noise=0.1, random_state=17)),
    "uncorrelated": ("numbers", lambda: datasets.make_sparse_uncorrelated(500, 20, random_state=18)),
    "interaction": ("numbers", interaction),
}

ESTIMATORS: dict[str, dict[str, Callable[[int], Any]]] = {
    "Alrao": {
        "classes": lambda seed: AlraoClassifier(random_state=seed),
        "numbers": lambda seed: AlraoRegressor(random_state=seed),
    },
    "MLP": {
        "classes": lambda seed: MLPClassifier(random_state=seed),
        "numbers": lambda seed: MLPRegressor(random_state=seed),
    },
    "linear": {"classes": lambda seed: LogisticRegression(), "numbers": lambda seed: Ridge()},
    "boosting": {
        "classes": lambda seed: HistGradientBoostingClassifier(random_state=seed),
        "numbers": lambda seed: HistGradientBoostingRegressor(random_state=seed),
    },
}


def scores(kind: str, data: Any, make: Callable[[int], Any], seeds: int) -> tuple[list[float], float]:
    """The test scores of an estimator, one for each split, and the mean time of a fit in seconds."""
    found, start = [], time.process_time()
    for seed in range(seeds):
        X, X_test, y, y_test = train_test_split(
            *data, test_size=0.25, random_state=seed, stratify=data[1] if kind == "classes" else None
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged: scikit-learn's own, at their defaults
            found.append(float(make(seed).fit(X, y).score(X_test, y_test)))
    return found, (time.process_time() - start) / seeds


def table(sets: dict[str, tuple[str, Callable[[], Any]]], seeds: int) -> str:
    lines = ["| data | score | " + " | ".join(ESTIMATORS) + " |", "|---|---|" + "--:|" * len(ESTIMATORS)]
    wins, times = 0, dict.fromkeys(ESTIMATORS, 0.0)
    for name, (kind, load) in sets.items():
        data = load()[:2]
        results = {}
        for estimator, kinds in ESTIMATORS.items():
            results[estimator], took = scores(kind, data, kinds[kind], seeds)
            times[estimator] += took / len(sets)
        means = {estimator: mean(found) for estimator, found in results.items()}
        wins += means["Alrao"] > means["MLP"]
        cells = [
            f"{'**' if means[estimator] == max(means.values()) else ''}{means[estimator]:.3f}"
            f"{'**' if means[estimator] == max(means.values()) else ''}"
            + (f" ± {stdev(found):.3f}" if seeds > 1 else "")
            for estimator, found in results.items()
        ]
        size = f"{data[0].shape[0]} × {data[0].shape[1]}"
        score = "accuracy" if kind == "classes" else "R²"
        lines.append(f"| {name}, {size} | {score} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    lines.append("| seconds of a fit | | " + " | ".join(f"{took:.2f}" for took in times.values()) + " |")
    lines += [
        "",
        f"Mean ± standard deviation over {seeds} random splits, a quarter for testing; the best in bold. "
        f"Alrao's mean is above MLP's on {wins} of {len(sets)}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", choices=["ten", "choosing"], default="ten")
    parser.add_argument("--markdown", type=Path, help="the page whose table is replaced")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = table(TEN if args.sets == "ten" else CHOOSING, args.seeds)
    print(text)
    if args.markdown:
        replace_table(args.markdown, "benchmarks/tabular.py", text)


if __name__ == "__main__":
    main()
