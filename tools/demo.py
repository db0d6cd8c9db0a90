"""Record the README's demo as an animated SVG: python tools/demo.py.

It runs three commands in a temporary folder with scikit-learn's irises, records what they print and when, and
writes docs/images/demo.svg. Waiting times are cut, and so are the last columns of wide lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from textwrap import wrap
from time import monotonic

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
COMMANDS = (
    "alrao train iris.csv --target kind --epochs 20",
    "alrao predict new.csv",
    "alrao export",
)
COLUMNS, ROWS = 48, 10
"""Few, so that letters are legible where the picture is as wide as a telephone."""
WIDE, HIGH, MARGIN = 8.4, 19, 14
"""The size of a letter, and the space around all of them."""
LONGEST = 0.6
"""Seconds that a line waits for the next one at most."""
TYPING, READING = 1.2, 6.0
"""Seconds before a command runs, and at the end."""

Line = tuple[float, str]


def prepare(folder: Path) -> None:
    """Write the petals of irises, and some of them without their names."""
    from sklearn.datasets import load_iris

    data = load_iris(as_frame=True)
    table = data.frame[["petal length (cm)", "petal width (cm)"]].set_axis(["length", "width"], axis=1)
    table["kind"] = [data.target_names[each] for each in data.target]
    table.to_csv(folder / "iris.csv", index=False)
    table.drop(columns="kind").sample(4, random_state=1).to_csv(folder / "new.csv", index=False)


def record(command: str, folder: Path) -> list[Line]:
    """Run a command; return its lines with the seconds since the line before."""
    program = [sys.executable, "-m", "alrao_lab.cli", *command.split()[1:]]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(
        program, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert running.stdout is not None
    lines, before = [], monotonic()
    for line in running.stdout:
        now = monotonic()
        lines.append((now - before, line.rstrip()))
        before = now
    if running.wait():
        raise SystemExit("\n".join(line for _, line in lines))
    return lines


def timed(recorded: dict[str, list[Line]]) -> tuple[list[Line], float]:
    """Return all lines with the times at which they appear, and the time of the end."""
    now, shown = 0.0, []
    for command, lines in recorded.items():
        shown.append((now, f"$ {command}"))
        now += TYPING
        for wait, line in lines:
            now += min(wait, LONGEST)
            shown.append((now, line))
        now += TYPING
        shown.append((now, ""))
    return shown[:-1], now + READING


def draw(shown: list[Line], end: float) -> str:
    """Return the SVG: all lines on one sheet, which moves up as the window is full."""
    width = round(COLUMNS * WIDE + 2 * MARGIN)
    height = ROWS * HIGH + 2 * MARGIN
    moves = {max(0, count - ROWS): when for count, (when, _) in reversed(list(enumerate(shown, 1)))}
    frames = [
        f"{100 * when / end:.2f}% {{ transform: translateY({-rows * HIGH}px) }}"
        for rows, when in sorted(moves.items())
    ]
    styles = [
        "text { font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #e6e8eb;"
        " white-space: pre }",
        ".c { fill: #7ee787; font-weight: 700 }",
        f"#sheet {{ animation: up {end:.1f}s step-end infinite }}",
        f"@keyframes up {{ 0% {{ transform: none }} {' '.join(frames)} }}",
    ]
    texts = []
    for place, (when, line) in enumerate(shown):
        part = 100 * when / end
        styles.append(f"@keyframes l{place} {{ 0% {{ opacity: 0 }} {part:.2f}%, 100% {{ opacity: 1 }} }}")
        styles.append(f"#l{place} {{ animation: l{place} {end:.1f}s step-end infinite }}")
        kind = ' class="c"' if line.startswith("$ ") else ""
        y = MARGIN + (place + 0.8) * HIGH
        words = escape(line)
        texts.append(
            f'<text id="l{place}" x="{MARGIN}" y="{y:.0f}"{kind} xml:space="preserve">{words}</text>'
        )
    still = "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="560" role="img">',
            f"<title>{escape('Three commands: ' + ', '.join(COMMANDS))}</title>",
            f"<style>{' '.join(styles)} {still}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
            f'<clipPath id="window"><rect y="{MARGIN}" width="{width}" height="{ROWS * HIGH}"/></clipPath>',
            '<g clip-path="url(#window)"><g id="sheet">',
            *texts,
            "</g></g></svg>",
            "",
        ]
    )


def fitted(line: str) -> list[str]:
    """Return a line without control sequences: wide ones without their last columns, or as several lines."""
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rpartition("\r")[2]
    while len(line) > COLUMNS and "  " in line:
        line = line.rpartition("  ")[0]
    return wrap(line, COLUMNS) if len(line) > COLUMNS else [line]


def main() -> None:
    """Run the commands and write the image."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        recorded = {command: record(command, folder) for command in COMMANDS}
    shown = {
        command: [
            (wait / len(parts), part) for wait, line in lines for parts in [fitted(line)] for part in parts
        ]
        for command, lines in recorded.items()
    }
    IMAGE.write_text(draw(*timed(shown)), "utf-8")


if __name__ == "__main__":
    main()
