"""Draw the pictures of ``docs/concepts/normalization.md``: ``python docs/pictures.py``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import seaborn
import torch

from robustfl.contracts import Norm
from robustfl.registry import create
from robustfl.scenarios.clusters import normalize_clusters

FOLDER = Path(__file__).parent / "pictures"
SCHEMES = ("centralised-bn", "fbn", "naive-bn", "fixbn")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    clusters().savefig(FOLDER / "clusters.png", dpi=120, metadata={"Software": None})
    distances().savefig(FOLDER / "clusters-distance.png", dpi=120, metadata={"Software": None})


def clusters() -> plt.Figure:
    """The points of the last of 100 rounds, a panel per scheme, a colour per cluster."""
    figure, axes = plt.subplots(1, len(SCHEMES), figsize=(10, 2.8), layout="constrained")
    colours = seaborn.color_palette("husl", 10)
    for axis, name in zip(axes, SCHEMES, strict=True):
        found = normalize_clusters(cast(Norm, create("norm", name)), gamma=0.0, seed=0)
        for label in range(10):
            x, y = found.points[found.labels == label].T
            axis.scatter(x, y, s=6, color=colours[label], linewidths=0)
        axis.set_title(name)
        axis.set_aspect("equal", adjustable="datalim")
        axis.tick_params(labelsize=7)
    return figure


def distances() -> plt.Figure:
    """The error of every round, a panel per degree of heterogeneity, a line per scheme; mean of five seeds."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True, layout="constrained")
    looks = {"fbn": "-", "naive-bn": "--", "fixbn": ":"}
    for axis, gamma in zip(axes, (0.0, 0.3, 1.0), strict=True):
        for name, line in looks.items():
            norm = cast(Norm, create("norm", name))
            errors = torch.stack([normalize_clusters(norm, gamma=gamma, seed=s).errors for s in range(5)]).mean(0)
            axis.plot(range(1, len(errors) + 1), errors, line, label=name)
        axis.set_title(f"γ = {gamma:g}")
        axis.set_xlabel("round")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("distance")
    axes[0].legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
