"""Write the table of docs/comparison.md from the records in results/: python tools/comparison.py.

It shows how far each method is behind SGD at its best rate, for all tasks side by side.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from alrao_lab.methods import METHODS
from alrao_lab.records import SUFFIX, read_runs
from alrao_lab.render.cells import behind
from alrao_lab.render.markdown import table
from alrao_lab.table import Experiment, experiments, historical_note

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "comparison.md"
START, END = "<!-- table: tools/comparison.py -->", "<!-- end of the table -->"
COLUMNS = {
    "cifar10-small": "CIFAR-10, nats",
    "ptb-lstm": "Penn Treebank, bits",
    "regression-mlp": "diabetes, squared error",
    "pendulum-mlp": "Pendulum, return",
    "lunarlander-mlp": "LunarLander, return",
}
"""The files of results, and what their columns are called."""
USUAL_SEEDS = 3


def found() -> dict[str, Experiment]:
    """Return the experiment of each file."""
    files = {name: ROOT / "results" / f"{name}{SUFFIX}" for name in COLUMNS}
    return {name: experiments(read_runs([path]))[0] for name, path in files.items()}


def lines(results: dict[str, Experiment]) -> list[str]:
    """Return the table, methods down and tasks across, and a note about historical runs."""
    gaps = {name: behind(experiment) for name, experiment in results.items()}
    rows = []
    for method in METHODS:
        cells, name = [], ""
        for file, experiment in results.items():
            label = experiment.plain(method)
            if label is None or label not in gaps[file]:
                cells.append("–")
                continue
            row = experiment.rows.loc[label]
            name = f"**{label}**" if row["ours"] else label
            seeds = "" if row["seeds"] == USUAL_SEEDS else f" ({row['seeds']})"
            cells.append(gaps[file][label].replace("-", "−") + seeds)
        if name:
            rows.append([name, *cells])
    note = historical_note(pd.concat([experiment.ended for experiment in results.values()]))
    heads = ["method", *(COLUMNS[file] for file in results)]
    return [table(heads, rows), *(["", note] if note else [])]


def renewed(page: str) -> str:
    """Return the page with the table as the records have it now."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{START}", *lines(found()), f"{END}{after}"])


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
