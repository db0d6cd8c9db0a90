"""Write the tables of docs/auto-pieces.md from results/auto-pieces.jsonl: python tools/auto_pieces.py.

They show by how much the test loss of Auto changes when one of its pieces is left out.
"""

from __future__ import annotations

import json
from math import log, sqrt
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "auto-pieces.md"
ROWS = ROOT / "results" / "auto-pieces.jsonl"
START, END = "<!-- tables: tools/auto_pieces.py -->", "<!-- end of the tables -->"
PIECES = {
    "one-rate": "a rate for every feature",
    "no-turn": "comparison of directions",
    "no-slope": "slope towards the average",
}
NETWORKS = {"auto": "with copies", "auto-plain": "plain"}


def changes() -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Return 100 times the mean log-ratio over seeds, at the chosen epoch and at the last step.

    It is keyed by piece and method, and then by workload.
    """
    rows = [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]
    whole = {(r["method"], r["workload"], r["seed"]): r for r in rows if r["piece"] == "all"}
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["piece"] != "all":
            usual = whole[row["method"], row["workload"], row["seed"]]
            ratios = (100 * log(row["test"] / usual["test"]), 100 * log(row["last"] / usual["last"]))
            of_piece = found.setdefault((row["piece"], row["method"]), {})
            of_piece.setdefault(row["workload"], []).append(ratios)
    return {
        key: {name: (mean(a for a, _ in each), mean(b for _, b in each)) for name, each in of.items()}
        for key, of in found.items()
    }


def tables() -> str:
    """Return a table of the means over workloads, and one of the workloads."""
    found = changes()
    keys = [(piece, method) for piece in PIECES for method in NETWORKS if (piece, method) in found]
    means = [
        "| left out | network | chosen epoch, % | last step, % | workloads with a lower loss |",
        "|---|---|--:|--:|--:|",
    ]
    for piece, method in keys:
        chosen, last = zip(*found[piece, method].values(), strict=True)
        lower = sum(x < 0 for x in chosen)
        means.append(
            f"| {PIECES[piece]} | {NETWORKS[method]} | {_with_error(chosen)} | {_with_error(last)} | "
            f"{lower} of {len(chosen)} |"
        )
    heads = [f"{PIECES[piece]}, {NETWORKS[method]}" for piece, method in keys]
    each = [f"| workload | {' | '.join(heads)} |", "|---|" + "--:|" * len(keys)]
    each += [
        f"| {name} | {' | '.join(_signed(found[key][name][0]) for key in keys)} |" for name in found[keys[0]]
    ]
    return "\n".join([*means, "", "By workload, at the chosen epoch, in %:", "", *each])


def _with_error(numbers: tuple[float, ...]) -> str:
    return f"{_signed(mean(numbers))} ± {stdev(numbers) / sqrt(len(numbers)):.1f}"


def _signed(number: float) -> str:
    return f"{number:+.1f}".replace("-", "−")


def renewed(page: str) -> str:
    """Return the page with the tables of the rows as they are."""
    before, rest = page.split(START)
    return f"{before}{START}\n{tables()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
