"""The table of docs/comparison.md, made from docs/results.md: python tools/comparison.py.

It shows how far each method is behind SGD at its best rate, for all tasks side by side.
"""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
START, END = "<!-- table: tools/comparison.py -->", "<!-- end of the table -->"
NAMES = {
    "alrao": "**Alrao**",
    "alrao-adam": "**Alrao** on Adam",
    "adam": "Adam",
    "prodigy": "Prodigy",
    "dadapt-adam": "D-Adaptation, Adam",
    "dadapt-sgd": "D-Adaptation, SGD",
    "dog": "DoG",
    "schedulefree": "Schedule-Free AdamW",
}
TASKS = {
    "cifar10": "CIFAR-10, nats",
    "ptb": "Penn Treebank, bits",
    "regression": "diabetes, squared error",
    "pendulum": "Pendulum, return",
    "lunarlander": "LunarLander, return",
}


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read(results: str) -> dict[str, dict[str, tuple[str, int]]]:
    """For each task, and method: how far it is behind SGD, and with how many seeds."""
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for section in results.split("\n## ")[1:]:
        task = section.split(",")[0]
        rows = [cells(line) for line in section.splitlines() if line.startswith("| ")]
        header = rows[0]
        if "behind SGD" not in header:
            continue
        for row in rows[1:]:
            if len(row) != len(header):
                break  # the next table
            method, behind = row[0].strip("*"), row[header.index("behind SGD")]
            if behind and not set(behind) <= set("-: "):
                seeds = int(row[header.index("seeds")])
                found.setdefault(task, {}).setdefault(method, (behind, seeds))
    return found


def table(results: str) -> str:
    """The table, methods down and tasks across."""
    found = read(results)
    tasks = [task for task in TASKS if task in found]
    lines = [
        "| method | " + " | ".join(TASKS.get(task, task) for task in tasks) + " |",
        "|---" + "|---:" * len(tasks) + "|",
    ]
    for method, name in NAMES.items():
        row = []
        for task in tasks:
            behind, seeds = found[task].get(method, ("–", 3))
            row.append(behind.replace("-", "−") + ("" if seeds == 3 else f" ({seeds})"))
        if set(row) != {"–"}:
            lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def renewed(page: str, results: str) -> str:
    """The page with the table as the results have it now."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{table(results)}\n{END}{after}"


def main() -> None:
    """Write the table into the page."""
    page = DOCS / "comparison.md"
    page.write_text(renewed(page.read_text("utf-8"), (DOCS / "results.md").read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
