"""Try many public networks and write docs/compatibility.md: ``make compatibility``.

Each network is built small, with random weights, converted, trained for 20 steps of :class:`alrao.Auto` on
one batch, collapsed, and its state is loaded into another copy. What was tried is kept in
``results/compatibility.jsonl``; the same command resumes, ``--retry`` tries again what failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import re
import signal
import sys
import textwrap
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from compatibility_models import BFLOAT16, Candidate, candidates

import alrao
from alrao_lab.zoo.vision import torchvision

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results" / "compatibility.jsonl"
PAGE = ROOT / "docs" / "compatibility.md"
STEPS = 20


def attempt(candidate: Candidate) -> dict[str, Any]:
    """Return the row of one network: ``ok``, or the ``reason``."""
    start = time.perf_counter()
    row: dict[str, Any] = {"network": candidate.key, "ok": False}
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _try(candidate, row)
        except Exception as error:
            row["reason"] = f"{row.pop('stage', 'build')}: {_short(error)}"
    row.pop("stage", None)
    row["spread"] = any("goes through the rest of the network" in str(w.message) for w in caught)
    row["seconds"] = round(time.perf_counter() - start)
    return row


def _try(candidate: Candidate, row: dict[str, Any]) -> None:
    net = candidate.build()
    row["parameters"] = sum(p.numel() for p in net.parameters())
    batch = candidate.batch(net)
    row["stage"] = "convert"
    model = alrao.Alrao(net, output=candidate.output).train()
    row["output"] = model.output_name
    optimizer = alrao.Auto(model)
    row["stage"] = "train"
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = candidate.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    row["losses"] = [round(losses[0], 4), round(min(losses[-3:]), 4)]
    if not all(map(math.isfinite, losses)):
        raise RuntimeError("a loss is not finite")
    if not row["losses"][1] < row["losses"][0]:
        raise RuntimeError(f"the loss did not fall: {row['losses'][0]} to {row['losses'][1]}")
    row["stage"] = "collapse"
    optimizer.zero_grad()
    del optimizer, loss  # the largest networks need the memory
    gc.collect()
    model.eval()
    with torch.no_grad():
        expected = _loss(candidate, model, batch)
        plain = model.collapse().eval()
        if any(isinstance(module, alrao.Alrao) or hasattr(module, "averaging") for module in plain.modules()):
            raise RuntimeError("copies are left")
        if not math.isfinite(_loss(candidate, plain, batch)):
            raise RuntimeError("the collapsed network's loss is not finite")
        del plain
        row["stage"] = "state"
        other = alrao.Alrao(candidate.build(), output=candidate.output).eval()
        other.load_state_dict(model.state_dict())
        got = _loss(candidate, other, batch)
    if not math.isclose(got, expected, rel_tol=1e-4, abs_tol=1e-5):
        raise RuntimeError(f"the loaded model's loss is {got}, expected {expected}")
    row["ok"] = True


def _loss(candidate: Candidate, model: nn.Module, batch: dict[str, Any]) -> float:
    loss: Tensor = candidate.loss(model, batch)
    return float(loss)


def _short(error: Exception) -> str:
    text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")
    return text if len(text) < 240 else text[:237] + "…"


def read() -> dict[str, dict[str, Any]]:
    """Return the kept rows by network; the last one counts."""
    if not KEPT.exists():
        return {}
    return {row["network"]: row for row in map(json.loads, KEPT.read_text(encoding="utf-8").splitlines())}


def write(rows: dict[str, dict[str, Any]], names: list[str]) -> None:
    """Write the kept rows, and the page; ``names`` are those of all networks."""
    KEPT.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)), encoding="utf-8")
    PAGE.write_text(page(rows, [name for name in names if name not in rows]), encoding="utf-8")


TITLES = {
    "torchvision/classifier": "torchvision: classifiers",
    "torchvision/segmentation": "torchvision: segmentation",
    "timm/classifier": "timm: the smallest model of each family",
    "transformers/classifier": "transformers: classifiers",
    "transformers/other": "transformers: language models, question answering, segmentation",
}


def page(rows: dict[str, dict[str, Any]], missing: list[str]) -> str:
    """Return the page as Markdown."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for key in sorted(rows, key=str.lower):
        kinds.setdefault(key.rpartition("/")[0], []).append(rows[key])
    of_classifiers = [row for kind, found in kinds.items() if kind.endswith("classifier") for row in found]
    text = [
        "# Compatible networks",
        "",
        *fill(
            "This page lists public networks that were converted and trained, with what happened. Each one "
            "is built small, with random weights and without a change of its code; `alrao.Alrao(net)` "
            f"converts it, `alrao.Auto` trains it for {STEPS} steps on one batch, on which the loss must "
            "fall. It is then collapsed, and its state is loaded into another copy, which must have the same "
            f"loss. {' and '.join(f'`{name}`' for name in BFLOAT16)} are tried in bfloat16, to save memory. "
            "`make compatibility` makes the page; it resumes where it was stopped. The packages are "
            f"{_versions()}."
        ),
        "",
        *fill(
            f"{_share(of_classifiers)} of the classifiers and {_share(list(rows.values()))} of all networks "
            "pass. ⟳ marks those in which more than a change of shape follows the output layer: there, each "
            "copy goes through the rest of the network "
            "([how it works](how-it-works.md#after-the-output-layer))."
        ),
    ]
    for kind, title in TITLES.items():
        found = kinds.get(kind, [])
        if not found:
            continue
        text += ["", f"## {title}", "", f"{_share(found)} pass.", ""]
        text += ["| network | result | loss, first → last |", "|---|---|---|"]
        for row in found:
            first, last = row.get("losses", ["–", "–"])
            result = ("✓ ⟳" if row["spread"] else "✓") if row["ok"] else _escape(row["reason"])
            text.append(f"| `{row['network'].rpartition('/')[2]}` | {result} | {first} → {last} |")
    if missing:
        listed = ", ".join(f"`{name.rpartition('/')[2]}`" for name in missing)
        text += ["", "## Not tried yet", "", *fill(f"{len(missing)} networks, most of them large: {listed}.")]
    return "\n".join(text) + "\n"


def fill(text: str) -> list[str]:
    """Return a paragraph as lines."""
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def _versions() -> str:
    names = ("torch", "torchvision", "timm", "transformers")
    return ", ".join(f"{name} {version(name).partition('+')[0]}" for name in names)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _share(rows: list[dict[str, Any]]) -> str:
    passed = sum(row["ok"] for row in rows)
    return f"{passed} of {len(rows)} ({100 * passed // max(1, len(rows))} %)"


def main() -> None:
    """Try what has not been tried, or what matches, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="a part of the networks' names")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument("--seconds", type=int, default=600, help="the most processor time for one network")
    parser.add_argument("--parameters", type=float, default=1e9, help="leave out larger networks")
    parser.add_argument("--page", action="store_true", help="write only the page")
    args = parser.parse_args()
    rows = read()
    known = list(candidates())
    names = [candidate.key for candidate in known]
    wanted = [] if args.page else [c for c in known if re.search(args.only, c.key)]
    wanted = [c for c in wanted if c.key not in rows or (args.retry and not rows[c.key]["ok"])]

    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {args.seconds} s of processor time")

    signal.signal(signal.SIGPROF, late)
    sizes = {candidate.key: _parameters(candidate) for candidate in wanted}
    wanted = [c for c in sorted(wanted, key=lambda c: sizes[c.key]) if sizes[c.key] <= args.parameters]
    for i, candidate in enumerate(wanted):
        signal.setitimer(signal.ITIMER_PROF, args.seconds)  # not of the clock: others may use the machine
        row = attempt(candidate)
        signal.setitimer(signal.ITIMER_PROF, 0)
        rows = {**read(), candidate.key: row}
        write(rows, names)
        result = "ok" if row["ok"] else row["reason"]
        sys.stdout.write(f"{i + 1}/{len(wanted)} {candidate.key} {row['seconds']} s: {result}\n")
        sys.stdout.flush()
        gc.collect()
    write(rows, names)


def _parameters(candidate: Candidate) -> float:
    """Return the number of parameters with 1000 classes, for networks of torchvision; else 0."""
    if candidate.package != "torchvision":
        return 0
    weights: Any = torchvision.models.get_model_weights(candidate.name)
    return float(next(iter(weights)).meta["num_params"])


if __name__ == "__main__":
    main()
