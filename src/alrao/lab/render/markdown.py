"""Markdown: the one writer of tables, and the page of results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..settings import spelled
from ..table import Experiment
from .cells import behind, cells, columns, compare_command, row_name

HEAD = """# Results

Test figures of every method on every task, from the records in `results/`. `make results` trains the runs and
writes this page; the command above a table repeats its rows. The best epoch and SGD's rate are chosen on
validation data. Figures are means ± standard deviation over the seeds. *Behind SGD* is by how much the first
measure is worse than that of SGD at its best rate; a minus is better. *Minutes per run* is wall time on two
shared cores; `make bench` measures what a step costs.

[The paper's tables and figures](figures/README.md) have a page of their own, with what the paper found and
whether these runs agree.
"""

PAPER_HEADS = ("network", "optimal SGD (rate)", "Adam", "Alrao")
"""The columns of Table 1: Adam at its defaults."""

TABLE_1 = {
    "cifar10": [
        ("MobileNet", "0.37 ± 0.01, 90.2 ± 0.3 (1e-1)", "1.01 ± 0.95, 78 ± 11", "0.42 ± 0.02, 88.1 ± 0.6"),
        ("MobileNet ×3", "–", "0.32 ± 0.02, 90.8 ± 0.4", "0.35 ± 0.01, 89.0 ± 0.6"),
        ("GoogLeNet", "0.45 ± 0.05, 89.6 ± 1.0 (1e-2)", "0.47 ± 0.04, 89.8 ± 0.4", "0.47 ± 0.03, 88.9 ± 0.8"),
        ("GoogLeNet ×3", "–", "0.41 ± 0.02, 88.6 ± 0.6", "0.37 ± 0.01, 89.8 ± 0.8"),
        ("VGG19", "0.42 ± 0.02, 89.5 ± 0.2 (1e-1)", "0.43 ± 0.02, 88.9 ± 0.4", "0.45 ± 0.03, 87.5 ± 0.4"),
        ("VGG19 ×3", "–", "0.37 ± 0.01, 89.5 ± 0.8", "0.381 ± 0.004, 88.4 ± 0.7"),
    ],
    "imagenet": [
        ("AlexNet", "2.15, 53.2 (1e-2)", "6.91, 0.10", "2.56, 43.2"),
        ("DenseNet121", "1.35, 69.7 (1)", "1.39, 67.9", "1.41, 67.3"),
        ("ResNet50", "1.49, 67.4 (1)", "1.39, 67.1", "1.42, 67.5"),
        ("ResNet50 ×3", "–", "1.99, 60.8", "1.33, 70.9"),
    ],
    "ptb": [
        ("LSTM", "1.566 ± 0.003, 66.1 ± 0.1 (1)", "1.587 ± 0.005, 65.6 ± 0.1", "1.67 ± 0.01, 64.1 ± 0.2")
    ],
    "pendulum": [("MLP (return)", "−372 ± 24 (1e-4)", "−414 ± 64", "−371 ± 36")],
    "lunarlander": [("MLP (return)", "188 ± 23 (1e-1)", "155 ± 23", "186 ± 45")],
}
"""The rows of each task, as printed."""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table, with ``left`` columns aligned to the left and the others to the right."""
    rule = ["---" if i < left else "---:" for i in range(len(heads))]
    return ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]


def escaped(text: str) -> str:
    """Return a user's words, such as the name of a file, so that no Markdown or HTML is read in them."""
    return re.sub(r"([\\`*_\[\]<>&|#])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}"


def page(found: Iterable[Experiment]) -> str:
    """Return a page with a section for each experiment."""
    return "\n".join([HEAD, *(_section(experiment) for experiment in found)])


def _section(experiment: Experiment) -> str:
    about, measures, rows = experiment.about, experiment.measures, experiment.rows
    sizes = ", ".join(f"{about[part]:,} for {part}" for part in ("train", "valid", "test") if part in about)
    source = escaped(str(about.get("source", experiment.settings.task)))
    plain = experiment.every.index[experiment.every["varied"] == ""]
    command = compare_command(experiment, plain if len(plain) else experiment.every.index)
    lines = [f"## {escaped(experiment.title)}", "", f"Data: {source}; {sizes}. {_code(command)}", ""]
    gaps = behind(experiment)
    heads = ["method", *columns(measures), "behind SGD", "seeds", "failed", "minutes per run", "runs to tune"]
    lines += table(
        heads,
        [
            [
                f"**{row_name(name, row)}**" if row["ours"] else escaped(row_name(name, row)),
                *cells(row, measures),
                gaps.get(name, ""),
                *map(str, (row["seeds"], row["failed"], f"{row['seconds'] / 60:.1f}", row["searched"])),
            ]
            for name, row in rows.iterrows()
        ],
    )
    if len(experiment.grid):
        grid = [
            [spelled(row["rate"]), *cells(row, measures), str(row["seeds"])]
            for _, row in experiment.grid.iterrows()
        ]
        lines += ["", "SGD at every rate of the grid:", ""]
        lines += table(["rate", *columns(measures), "seeds"], grid)
    if experiment.failures:
        lines += ["", "Failed: " + "; ".join(map(escaped, experiment.failures)) + "."]
    if experiment.note:
        lines += ["", experiment.note]
    paper = ["The paper has no such experiment."]
    if experiment.settings.task in TABLE_1:
        shown = "return" if experiment.measure == "return" else "loss, accuracy in %"
        paper = [f"The paper's figures (full budget; {shown}):", ""]
        paper += table(PAPER_HEADS, TABLE_1[experiment.settings.task], left=4)
    return "\n".join([*lines, "", *paper, ""])
