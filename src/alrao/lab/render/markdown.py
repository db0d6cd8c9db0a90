"""Markdown: the one writer of tables, and the page of results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import jinja2

from ..records import PARTS
from ..settings import spelled
from ..table import Experiment
from .cells import behind, cells, columns, compare_command, row_name

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


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table, with ``left`` columns aligned to the left and the others to the right."""
    rule = ["---" if i < left else "---:" for i in range(len(heads))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *rows))


def filled(package: str, name: str, *, escape: bool = False, **values: Any) -> str:
    """Return a template of a package, filled with values, which ``escape`` makes safe in HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name).render(values)


def escaped(text: str) -> str:
    """Return a user's words, such as the name of a file, so that no Markdown or HTML is read in them."""
    return re.sub(r"([\\`*_\[\]<>&|#])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}"


def page(found: Iterable[Experiment]) -> str:
    """Return a page with a section for each experiment."""
    return filled(__package__, "page.md.j2", sections=map(_section, found))


def _section(experiment: Experiment) -> dict[str, Any]:
    about, measures, task = experiment.about, experiment.measures, experiment.settings.task
    plain = experiment.every.index[experiment.every["varied"] == ""]
    gaps = behind(experiment)
    heads = ["method", *columns(measures), "behind SGD", "seeds", "failed", "minutes per run", "runs to tune"]
    rows = [
        [
            f"**{row_name(name, row)}**" if row["ours"] else escaped(row_name(name, row)),
            *cells(row, measures),
            gaps.get(name, ""),
            *map(str, (row["seeds"], row["failed"], f"{row['seconds'] / 60:.1f}", row["searched"])),
        ]
        for name, row in experiment.rows.iterrows()
    ]
    grid = [
        [spelled(row["rate"]), *cells(row, measures), str(row["seeds"])]
        for _, row in experiment.grid.iterrows()
    ]
    return {
        "title": escaped(experiment.title),
        "source": escaped(str(about.get("source", task))),
        "sizes": ", ".join(f"{about[part]:,} for {part}" for part in PARTS if part in about),
        "command": _code(compare_command(experiment, plain if len(plain) else experiment.every.index)),
        "table": table(heads, rows),
        "grid": table(["rate", *columns(measures), "seeds"], grid) if grid else "",
        "failures": [escaped(failure) for failure in experiment.failures],
        "note": experiment.note,
        "unit": "return" if experiment.measure == "return" else "loss, accuracy in %",
        "paper": table(PAPER_HEADS, TABLE_1[task], left=4) if task in TABLE_1 else "",
    }
