"""Change one piece of Auto at a time, and compare validation losses on the suite's choosing workloads.

    python tools/pieces.py [--variants A,B] [--workloads A,B] [--contenders auto,auto-plain] [--seeds 5]
    python tools/pieces.py --no-run

Every variant is trained with the same seeds as Auto as it is, or was (``ORIGIN``). The table gives the change
of the validation loss at the last step in per cent, a mean over workloads and seeds with its standard error:
a plus means that Auto as it is was better. Test data is not looked at. Finished runs are not repeated;
``--no-run`` writes the table of ``docs/auto-pieces.md`` from the records. Needs ALRAO_DATA.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib import import_module
from inspect import signature
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console

import alrao
from alrao_lab.provenance import require_clean
from alrao_lab.render.markdown import replace_table
from alrao_lab.settings import Settings
from alrao_lab.suite.contenders import CONTENDERS
from alrao_lab.suite.runs import Search
from alrao_lab.suite.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results/auto-pieces.jsonl", ROOT / "docs/auto-pieces.md"
BASE = "as it is"
ORIGIN: dict[str, Any] = {"betas": (0.7, 0.99), "STEADY": 10**9}
"""Values of the Auto that the table is about, where they have changed since."""

MODULES = [import_module(f"alrao.auto{name}") for name in ("", ".search", ".matrices", ".step")]
SEARCH = MODULES[1]

VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "a linear rate": {"linear": True},
    "half the rate": {"PRIOR": 0.0085},
    "twice the rate": {"PRIOR": 0.136},
    "no weight decay": {"weight_decay": 0.0},
    "weight decay 0.15": {"weight_decay": 0.15},
    "weight decay 1": {"weight_decay": 1.0},
    "no matrix steps": {"LAYERS": ()},
    "matrices at every tenth step": {"PERIOD": 10},
    "matrices at every 20th step": {"PERIOD": 20},
    "three iterations": {"COEFFICIENTS": MODULES[2].COEFFICIENTS[:3]},
    "half the size of matrix steps": {"SIZE": 0.1},
    "twice the size of matrix steps": {"SIZE": 0.4},
    "momentum 0.9 of matrices": {"MOMENTUM": 0.9},
    "momentum 0.8 of matrices": {"MOMENTUM": 0.8},
    "a rate that falls after 1000 steps": {"STEADY": 1000},
    "an average with weights k": {"newest_share": lambda k, newest=1: min(1.0, 2 * newest / (k + 1))},
    "an average with weights k⁴": {"newest_share": lambda k, newest=1: min(1.0, 5 * newest / (k + 4))},
    "β₁ of 0.3": {"betas": (0.3, 0.99)},
    "β₁ of 0.5": {"betas": (0.5, 0.99)},
    "β₁ of 0.9": {"betas": (0.9, 0.99)},
    "β₂ of 0.999": {"betas": (0.7, 0.999)},
    "copies at one rate": {"COPIES": (0.999, 1.0)},
    "faster growth": {"GROWTH": 2.0},
    "a search of 25 steps": {"SHORTEST": 25},
    "a higher start": {"START": 1e-5},
    "no distance that is too small": {"LEAST": 0.0},
}
"""Constants of ``alrao.auto`` and arguments of :class:`alrao.Auto`, by the name of what they change."""


def change(pieces: dict[str, Any]) -> None:
    """Put constants in the place of Auto's, in this process."""
    for name, value in (ORIGIN | pieces).items():
        places = [module for module in MODULES if hasattr(module, name)]
        for module in places:
            before = getattr(module, name)
            setattr(module, name, value)
            if module is SEARCH:  # some are the first values of its fields
                init: Any = SEARCH.RateSearch.__init__
                init.__defaults__ = tuple(value if each is before else each for each in init.__defaults__)
        if name == "linear":
            SEARCH.sqrt = lambda x: x / SEARCH.PRIOR  # type: ignore[attr-defined]
        elif not places:
            init = alrao.Auto.__init__
            names = list(signature(alrao.Auto).parameters)[: len(init.__defaults__)]
            arguments = dict(zip(names, init.__defaults__, strict=True)) | {name: value}
            init.__defaults__ = tuple(arguments.values())


def read() -> list[dict[str, Any]]:
    """Return the records, a row a run."""
    lines = RECORDS.read_text("utf-8").splitlines() if RECORDS.exists() else []
    return [json.loads(line) for line in lines]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells a run from the others."""
    return tuple(row[name] for name in ("variant", "workload", "contender", "seed"))


def train(variant: str, workload: Workload, contenders: list[str], seeds: int) -> None:
    """Train a variant on a workload, and add its rows to the records."""
    known = {key_of(row) for row in read()}
    wanted = [name for name in contenders if any(
        (variant, workload.name, name, seed) not in known for seed in range(seeds)
    )]  # fmt: skip
    if not wanted:
        return
    with tempfile.TemporaryDirectory() as out:
        common = Settings(budget="mini", threads=1)
        search = Search(
            workload, [CONTENDERS[name] for name in wanted], common, seeds=seeds, roots=[Path(out)]
        )
        search.run()
        for contender in search.contenders:
            for _, run in search.frame(contender).iterrows():
                row = {"variant": variant, "workload": workload.name, "contender": contender.name}
                row |= {"seed": int(run["seed"]), "valid": run["valid last"], "best": run["valid chosen"]}
                row |= {"cpu": run["cpu"], "commit": run["commit"]}
                if key_of(row) not in known:
                    with RECORDS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


def compare(
    rows: list[dict[str, Any]], variant: str, contender: str, figure: str = "valid"
) -> dict[str, list[float]]:
    """Return the logarithms of the ratios to Auto as it is, of each seed, by workload."""
    found = {key_of(row): row[figure] for row in rows}
    ratios: dict[str, list[float]] = {}
    for (name, workload, of, seed), value in found.items():
        base = found.get((BASE, workload, contender, seed))
        if name == variant and of == contender and base is not None:
            ratios.setdefault(workload, []).append(log(value / base) if 0 < value < 1e9 else log(10))
    return ratios


def cell(ratios: dict[str, list[float]]) -> str:
    """Return the mean change over workloads in per cent, with its standard error between seeds."""
    if not ratios:
        return "–"
    means = [fmean(each) for each in ratios.values()]
    errors = [stdev(each) ** 2 / len(each) for each in ratios.values() if len(each) > 1]
    error = sqrt(sum(errors)) / len(means) if len(errors) == len(means) else None
    mean = f"{100 * (exp(fmean(means)) - 1):+.1f}"
    return mean if error is None else f"{mean} ± {100 * error:.1f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page, and what it is made from."""
    lines = ["| changed | wrapped | plain | workloads | worst | seconds |", "|---|---:|---:|---:|---|---:|"]
    for variant in VARIANTS:
        both = {name: compare(rows, variant, name) for name in ("auto", "auto-plain")}
        if variant == BASE or not any(both.values()):
            continue
        every = {w: fmean([r for each in both.values() for r in each.get(w, [])])
                 for w in {w for each in both.values() for w in each}}  # fmt: skip
        worst = max(sorted(every), key=lambda w: every[w])
        seconds = fmean(fmean(each) for name in both for each in compare(rows, variant, name, "cpu").values())
        lines.append(
            f"| {variant} | {cell(both['auto'])} | {cell(both['auto-plain'])} | {len(every)} | "
            f"{worst} {100 * (exp(every[worst]) - 1):+.1f} | {exp(seconds):.2f} |"
        )
    base = [row for row in rows if row["variant"] == BASE]
    workloads, seeds = len({r["workload"] for r in base}), len({r["seed"] for r in base})
    commits = ", ".join(sorted({str(row["commit"])[:7] for row in rows}))
    about = f"Up to {workloads} workloads and {seeds} seeds, commits {commits}."
    return "\n".join([*lines, "", about])


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    choosing = [name for name, each in WORKLOADS.items() if each.chosen_on]
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--workloads", default=",".join(choosing))
    parser.add_argument("--contenders", default="auto,auto-plain")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--dirty", action="store_true", help="for a look: records of a tree with changes")
    settings = parser.parse_args()
    workloads, variants = settings.workloads.split(","), settings.variants.split(",")
    if held_out := set(workloads) - set(choosing):
        sys.exit(
            f"{', '.join(held_out)}: held out, or unknown; the choosing workloads: {', '.join(choosing)}"
        )
    if settings.no_run:
        replace_table(PAGE, "tools/pieces.py", table(read()))
        return
    if not settings.dirty:
        require_clean()
    if len(variants) > 1:  # a process each: constants are changed for good
        import subprocess

        for variant in variants:
            command = [sys.executable, __file__, "--variants", variant, "--workloads", settings.workloads]
            command += ["--contenders", settings.contenders, "--seeds", str(settings.seeds), "--dirty"]
            subprocess.run(command, check=True)
        Console().print(table(read()))
        return
    change(VARIANTS[variants[0]])
    for workload in workloads:
        train(variants[0], WORKLOADS[workload], settings.contenders.split(","), settings.seeds)


if __name__ == "__main__":
    main()
