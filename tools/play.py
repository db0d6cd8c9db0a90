"""Write docs/play.html, a page to play with the suite's recorded runs: python tools/play.py.

The page is one file without a server: choose a workload and a seed, and move a learning rate over the
valleys of the tuned optimizers. ``play.html.j2`` is its template; ``evidence.py`` reads the records.
"""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path
from typing import Any

import jinja2

sys.path.insert(0, str(Path(__file__).parent))

from evidence import AUTO, RESULTS, ROOT, Evidence
from hero import VALLEYS, described

from alrao_lab.suite.workloads import WORKLOADS

PAGE = ROOT / "docs" / "play.html"
DEFAULTS = {"prodigy": "Prodigy", "schedulefree": "Schedule-Free", "adamw-0.001": "AdamW at 0.001"}
"""Contenders without a search that can be shown as lines, too."""


def _loss(value: float) -> float | None:
    return float(f"{value:.5g}") if isfinite(value) else None


def data(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the losses of each workload: by optimizer, rate and seed; null is a run that failed."""
    found = Evidence(results)
    everything = []
    for workload in found.workloads:
        own = found.runs[found.runs["workload"] == workload.name]
        valleys: dict[str, list[Any]] = {}
        for name, (label, _) in VALLEYS.items():
            runs = own[own["contender"] == name]
            runs = runs[[each[::2] == (name, 0.0) for each in runs["candidate"]]]
            valleys[label] = [
                [
                    rate,
                    {
                        int(seed): _loss(loss)
                        for seed, loss in zip(at["seed"], at["test chosen"], strict=True)
                    },
                ]
                for rate, at in runs.groupby("rate")
            ]
        lines = {}
        for name, label in {AUTO: "Auto", **DEFAULTS}.items():
            runs = own[own["contender"] == name]
            if len(runs):
                lines[label] = {
                    int(seed): _loss(loss)
                    for seed, loss in zip(runs["seed"], runs["test chosen"], strict=True)
                }
        everything.append(
            {
                "name": workload.name,
                "what": described(workload),
                "held_out": not workload.chosen_on,
                "valleys": valleys,
                "lines": lines,
            }
        )
    return everything


def page(results: Path = RESULTS) -> str:
    """Return the page."""
    found = data(results)
    template = jinja2.Template((Path(__file__).parent / "play.html.j2").read_text("utf-8"), autoescape=True)
    colours = dict(VALLEYS.values())
    packed = json.dumps(found, separators=(",", ":")).replace("<", "\\u003c")
    measured = any("Auto" in each["lines"] for each in found)
    return template.render(
        data=packed,
        colours=json.dumps(colours),
        count=len(found),
        total=len(WORKLOADS),
        measured=measured,
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
