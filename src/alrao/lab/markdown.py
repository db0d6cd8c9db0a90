"""The tables of the documentation, from run directories."""

from __future__ import annotations

import re
import shlex
from statistics import mean

from .display import cells, columns, digits, row_name
from .paper import rows_for
from .resolve import resolve
from .settings import Settings
from .table import OF_METHOD, Group, Row
from .tasks import get_task

__all__ = ["page"]

HEAD = """# Results

Made by `make results` from the run directories under `results/`; every row can be run again with the command
above its table. The epoch that counts, and SGD's rate, are chosen on validation data; the figures are those
on test data, mean ± standard deviation over the seeds. *Behind SGD* is how much worse the first measure is
than that of SGD at its best rate; a method that is ahead has a minus. *Minutes a run* is wall time on two
cores that had other work too; what a step costs is measured by `make bench`.

The paper's tables and figures one by one, with what it found and whether these runs agree, are
[on a page of their own](figures/README.md).
"""


def page(found: list[Group]) -> str:
    """A Markdown page with a section for each experiment."""
    return "\n".join([HEAD, *(_section(group) for group in found)])


def _line(items: list[str]) -> str:
    return "| " + " | ".join(items) + " |"


def _code(said: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", said)), default=0))
    return f"{fence}{said}{fence}"


def _text(said: str) -> str:
    """Words of the user's, such as the name of a file, as they are and not as Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>&|#])", r"\\\1", " ".join(said.split()))


def _section(group: Group) -> str:
    first = group.rows[0].runs[0]
    sizes = ", ".join(
        f"{first.about[part]:,} for {part}" for part in ("train", "valid", "test") if part in first.about
    )
    headings = [
        "method",
        *columns(group.measures),
        "behind SGD",
        "seeds",
        "failed",
        "minutes a run",
        "runs to tune",
    ]
    sgd = next((row for row in group.rows if row.searched > 1), None)
    lines = [
        f"## {_text(group.title)}",
        "",
        f"Data: {_text(str(first.about.get('source', group.task)))}; {sizes}. {_code(_command(group))}",
        "",
    ]
    lines += [_line(headings), _line(["---", *["---:"] * (len(headings) - 1)])]
    for row in group.rows:
        name = f"**{row_name(row)}**" if row.label.startswith("alrao") else row_name(row)
        numbers = [str(len(row.runs)), str(len(row.failures)), f"{row.seconds / 60:.1f}", str(row.searched)]
        lines.append(
            _line([name, *cells(row, group.measures), _behind(row, sgd, group.measures[0]), *numbers])
        )
    lines.append("")
    if group.grid:
        lines += ["SGD at every rate of the grid:", ""]
        lines += [
            _line(["rate", *columns(group.measures), "seeds"]),
            _line(["---", *["---:"] * (len(group.measures) + 1)]),
        ]
        for row in group.grid:
            said = (
                cells(row, group.measures) if row.good else ["diverged", *["–"] * (len(group.measures) - 1)]
            )
            lines.append(_line([row.label.partition("@")[2], *said, str(len(row.runs))]))
        lines.append("")
    if group.failures:
        lines += ["Failed: " + "; ".join(group.failures) + ".", ""]
    return "\n".join(lines + _paper(group))


def _behind(row: Row, sgd: Row | None, measure: str) -> str:
    if (
        sgd is None
        or row.label == sgd.label
        or not row.values("test", measure)
        or not sgd.values("test", measure)
    ):
        return ""
    more = mean(row.values("test", measure)) - mean(sgd.values("test", measure))
    return f"{-more if sgd.higher_is_better else more:+.{digits(measure)}f}"


def _command(group: Group) -> str:
    """What runs the rows again, those of Alrao with other choices than the task's aside."""
    methods = [row.label for row in group.rows if row.searched == 1 and "(" not in row.label]
    methods += ["sgd"] if len(group.grid) > 1 else []
    first = group.rows[0].runs[0].settings
    words = ["alrao", "compare", group.task, "--model", group.model, "--budget", first["budget"]]
    words += ["--methods", ",".join(methods)]
    seeds = max(len(row.runs) for row in group.rows)
    if seeds != get_task(group.task).budgets[first["budget"]].seeds:
        words += ["--seeds", str(seeds)]
    usual = resolve(Settings(task=group.task, model=group.model, budget=first["budget"]))[1].words()
    for name, field in Settings.__dataclass_fields__.items():
        if field.metadata["repeats"] and name not in (*OF_METHOD, "seed") and first[name] != usual[name]:
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if first[name] is True else [flag, str(first[name])]
    return shlex.join(words)


def _paper(group: Group) -> list[str]:
    rows = rows_for(group.task)
    if not rows:
        return ["The paper has no such experiment.", ""]
    shown = "return" if group.measures[0] == "return" else "loss, accuracy in %"
    lines = [f"The paper's own (full budget; {shown}):", ""]
    lines += [_line(["network", "optimal SGD (rate)", "Adam", "Alrao"]), _line(["---"] * 4)]
    lines += [_line([row.model, row.sgd, row.adam, row.alrao]) for row in rows]
    return [*lines, ""]
