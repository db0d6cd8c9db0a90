"""Random lifecycles: every case trains plainly, and again with visits between steps that must not matter.

Run in ``tests/``; a case follows from its seed alone:

    python -m support.lifecycles --cases 5000 --seed 0
    python -m support.lifecycles --cases 1 --seed 1234 --shrink
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as in conftest.py

import argparse
import copy
import gc
import io
import pickle
import random
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import alrao
from alrao.optim import sleep as sleeping
from support.lifecycle_cases import Case, Event, draw
from support.processes import together

EXPECTED = (
    ".*are tied to",
    "the output layer .* of the collapsed network has its own weights",
    ".*factor",  # a schedule that stays low
    "Detected call of `lr_scheduler.step",  # torch: a scaler skipped the first step
    "The PyTorch API of nested tensors",
    "the single copy of the head gets the middle",
)
"""Warnings that a case may cause. Every other one is a failure."""


class BrokenError(AssertionError):
    """A promise that a case did not keep."""


def require(kept: bool, promise: str) -> None:
    if not kept:
        raise BrokenError(promise)


@dataclass
class Program:
    """What the user's program knows beside the model and its optimizer; a checkpoint holds it too."""

    training: bool = True
    frozen: set[str] = field(default_factory=set)
    grown: bool = False
    edits: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Any] | None = None
    losses: list[float] = field(default_factory=list)


class Run:
    """A training of a case, by optimizers of alrao or, to compare with, of torch."""

    def __init__(self, case: Case, seed: int, of: Any = alrao) -> None:
        self.case, self.of, self.program = case, of, Program()
        self.model, self.optimizer, self.schedule = case.build(seed, of)
        self.next: dict[str, Any] = {}
        self.others: list[dict[str, Any]] = []
        """Results of other processes that continued from here."""

    @property
    def named(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def play(self, start: int = 0, *, visits: bool) -> Run:
        """Train from a step on, with the events of the case."""
        for at in range(start, self.case.steps):
            for event in self.case.events:
                if event.at == at and (event.name in CHANGES or visits):
                    EVENTS[event.name](self, random.Random(event.number), at)
            self.step(at)
        return self

    def step(self, at: int) -> None:
        case, model, optimizer, next_, self.next = self.case, self.model, self.optimizer, self.next, {}
        x, y = case.batch(at)
        if "input" in next_:
            x[0, 4:] = next_["input"]  # after what the words are made of
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled="scaled" in next_)

        def closure() -> Tensor:
            torch.manual_seed(at)
            optimizer.zero_grad()
            parts = list(zip(x.chunk(next_.get("parts", 1)), y.chunk(next_.get("parts", 1)), strict=True))
            losses = []
            for inputs, targets in parts:
                losses.append(case.loss(model(inputs), targets) * next_.get("times", 1.0))
                scaler.scale(losses[-1] / len(parts)).backward()
            scaler.unscale_(optimizer)
            if "clip" in next_:
                next_["clip"](self)
            return torch.stack(losses).mean()

        if "closure" in next_ and "scaled" not in next_:
            loss = optimizer.step(closure)
        else:
            loss = closure()
            scaler.step(optimizer)
            scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        for name, edit in self.program.edits.items():
            EDITS[edit](self.named[name])
        self.program.losses.append(loss.item())

    # Checkpoints.

    def checkpoint(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def rebuild(self, seed: int) -> None:
        """Build all of it again, as a program does that starts a second time."""
        self.model, self.optimizer, self.schedule = self.case.build(seed, self.of)
        for name in self.program.frozen:
            self.named[name].requires_grad_(False)
        if self.program.grown:
            self.grow()

    def load(self, states: dict[str, Any], order: list[str]) -> None:
        for name in order:
            if name in states:
                getattr(self, name).load_state_dict(states[name])
        self.model.train(self.program.training)

    def grow(self) -> None:
        known = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        self.optimizer.add_param_group({"params": [p for p in self.named.values() if id(p) not in known]})

    # What is compared.

    def outputs(self, training: bool) -> Tensor:
        """Return what the model returns for a clean batch, in one of both modes, which does not last."""
        self.model.train(training)
        with torch.no_grad():
            out = torch.Tensor(self.model(self.case.batch(self.case.steps)[0]))
        self.model.train(self.program.training)
        return out

    def result(self) -> dict[str, Any]:
        result = {f"loss {i}": torch.tensor(loss) for i, loss in enumerate(self.program.losses)}
        for mode in (True, False):
            self.model.train(mode)
            result |= {f"{k} in mode {mode}": v.clone() for k, v in self.model.state_dict().items()}
        self.model.train(self.program.training)
        return result | {"the output": self.outputs(False)}

    def check_finite(self) -> None:
        """Check that no weight or output has failed, but for copies of the head that are too fast."""
        for mode in (False, True):
            self.model.train(mode)
            for name, p in self.model.named_parameters():
                slowest = p[0] if self.case.copies and name.startswith("output.") else p
                require(bool(slowest.isfinite().all()), f"{name} is finite in mode {mode}")
            for name, b in self.model.named_buffers():
                require("running" not in name or bool(b.isfinite().all()), f"{name} is finite")
        self.model.train(self.program.training)
        require(bool(self.outputs(False).isfinite().all()), "the output is finite")

    def check_edits(self) -> None:
        """Check that what an edit in place keeps of the weights holds in evaluation mode too."""
        self.model.eval()
        for name, edit in self.program.edits.items():
            p = self.named[name].detach().double()
            changed = p.clone()
            EDITS[edit](changed)
            off = (p - changed).abs().max().item()
            require(off < 0.1, f"{edit} holds for {name} in evaluation mode, off by {off:.3g}")
        self.model.train(self.program.training)


def difference(one: dict[str, Tensor], other: dict[str, Tensor], close: float = 0.0) -> str | None:
    """Return where two results differ first, or None."""
    for name, value in one.items():
        if not torch.allclose(value, other[name], rtol=close, atol=close, equal_nan=True):
            return f"{name}, by {(value.double() - other[name].double()).abs().max().item():.3g}"
    return None


def check(case: Case) -> None:
    """Raise what breaks in a case."""
    with _quiet(), mock.patch.multiple(sleeping, PERIOD=5, LOOKS=2, LONGEST=3, NEGLIGIBLE=0.1):
        check_start(case)
        plain = Run(case, case.seed).play(visits=False)
        expected = plain.result()
        plain.check_finite()
        plain.check_edits()
        happened = {event.name for event in case.events}
        if happened & VISITS.keys():
            visited = Run(case, case.seed).play(visits=True)
            for result in (visited.result(), *visited.others):
                where = difference(expected, result)
                require(where is None, f"visits change nothing: they changed {where}")
        number = isinstance(case.options.get("lr"), float) and not case.copies
        if number and not happened & {"not finite", "add parameters"}:
            twin = Run(case, case.seed, torch.optim).play(visits=False)
            where = difference(twin.result(), expected, 0.0 if case.schedule == "none" else 1e-5)
            require(where is None, f"a single rate is torch's optimizer: it differs in {where}")


def check_start(case: Case) -> None:
    """Check that a converted network returns what the network returned."""
    if case.copies:
        x, net = case.batch(0)[0], case.net(case.seed).eval()
        with torch.no_grad():
            expected = net(x)
            model = alrao.Alrao(net, case.copies, likelihood=case.likelihood, keep_output=True)
            out = torch.Tensor(model(x))
        if case.likelihood == "categorical":
            expected, out = expected.log_softmax(1), out.log_softmax(1)
        close = 0.05 if case.dtype == "bfloat16" else 1e-5
        require(torch.allclose(out.to(expected), expected, close, close), "the output is the network's")


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "unclosed|.*subprocess", ResourceWarning)
        for message in EXPECTED:
            warnings.filterwarnings("ignore", message)
        yield


# Events that change the training: they happen in both runs.


def clip(run: Run, r: random.Random, at: int) -> None:
    run.next["clip"] = _clip_own if run.case.copies and r.random() < 0.5 else _clip_torch


def _clip_own(run: Run) -> None:
    run.model.clip_grad_norm_(0.5)


def _clip_torch(run: Run) -> None:
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)


def accumulate(run: Run, r: random.Random, at: int) -> None:
    run.next["parts"] = r.choice([2, 4])


def not_finite(run: Run, r: random.Random, at: int) -> None:
    number = r.choice([torch.nan, torch.inf, 1e30])
    run.next["input" if r.random() < 0.7 else "times"] = number


def scale(run: Run, r: random.Random, at: int) -> None:
    if run.case.dtype != "bfloat16":
        run.next["scaled"] = True


def freeze(run: Run, r: random.Random, at: int) -> None:
    """Freeze a parameter, or train it again."""
    name = r.choice([name for name in run.named if not name.startswith("output.")])
    run.program.frozen ^= {name}
    run.named[name].requires_grad_(name not in run.program.frozen).grad = None


def add_parameters(run: Run, r: random.Random, at: int) -> None:
    if run.case.groups == "later" and not run.program.grown:
        run.grow()
        run.program.grown = True


def train_in_evaluation_mode(run: Run, r: random.Random, at: int) -> None:
    run.program.training = not run.program.training
    run.model.train(run.program.training)


def edit(run: Run, r: random.Random, at: int) -> None:
    """Change a matrix in place after this and every later step."""
    body = [n for n, p in run.named.items() if p.ndim > 1 and not n.startswith("output.")]
    name, kind = r.choice(body), r.choice(list(EDITS))
    if run.program.training and name != "words.weight":
        run.program.edits[name] = kind
        EDITS[kind](run.named[name])


@torch.no_grad()
def mask(p: Tensor) -> None:
    p.mul_((torch.arange(p.numel()) % 3 > 0).view_as(p))


@torch.no_grad()
def clamp(p: Tensor) -> None:
    p.clamp_(-0.05, 0.05)


@torch.no_grad()
def renormalise(p: Tensor) -> None:
    p.div_(p.flatten(1).norm(dim=1).view([-1] + [1] * (p.ndim - 1)) + 1e-3)


EDITS: dict[str, Callable[[Tensor], None]] = {"mask": mask, "clamp": clamp, "renormalise": renormalise}


def go_back(run: Run, r: random.Random, at: int) -> None:
    """Load the weights of an earlier step, without the optimizer's state."""
    if run.case.network == "max_norm":
        return  # torch changes such weights in evaluation mode, and what is kept with them
    if run.program.kept is not None:
        run.model.load_state_dict(run.program.kept)
    run.program.kept = copy.deepcopy(run.model.state_dict())


# Visits: they must not change the training, to the bit.


def look(run: Run, r: random.Random, at: int) -> None:
    """Use the model in the other mode for a while."""
    x, y = run.case.batch(at)
    run.model.eval()
    with r.choice([torch.no_grad, torch.inference_mode])():
        run.case.loss(run.model(x), y)
    if r.random() < 0.3:
        run.model.state_dict()
        run.optimizer.state_dict()
    if r.random() < 0.3 and run.case.copies:
        run.model.collapse()
    if r.random() < 0.5:
        run.model.train(r.random() < 0.5)
        run.model.eval()
    run.model.train(run.program.training)
    if r.random() < 0.2 and hasattr(run.optimizer, "eval"):
        run.optimizer.eval()
        run.optimizer.train() if run.program.training else run.optimizer.eval()


def resume(run: Run, r: random.Random, at: int) -> None:
    """Save in some mode, build all again, and load in some order; or train on, and load into what is there."""
    run.model.train(r.random() < 0.6)
    states = copy.deepcopy(run.checkpoint())
    if r.random() < 0.5:
        states = _through_file(states)
    run.model.train(run.program.training)
    if r.random() < 0.7:
        run.rebuild(run.case.seed + 1)
    else:
        losses = list(run.program.losses)
        for stray in range(r.randrange(3)):
            run.step(1000 + stray)
        run.program.losses = losses
    run.model.train(r.random() < 0.6)
    run.load(states, [*r.sample(["model", "optimizer"], 2), "schedule"])


def _through_file(states: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, **options)


def duplicate(run: Run, r: random.Random, at: int) -> None:
    """Continue with a copy or a pickle, or drop it."""
    run.model.train(r.random() < 0.6)
    parts = (run.model, run.optimizer, run.schedule)
    how = r.randrange(3)
    if how == 0:
        parts = copy.deepcopy(parts)
    elif how == 1:
        parts = pickle.loads(pickle.dumps(parts))
    else:
        parts = _through_file(parts, weights_only=False)
    if r.random() < 0.5:
        run.model, run.optimizer, run.schedule = parts
    del parts
    gc.collect()
    run.model.train(run.program.training)


def load_what_does_not_fit(run: Run, r: random.Random, at: int) -> None:
    """Load states that must be refused."""
    run.model.train(r.random() < 0.6)
    before = run.checkpoint()
    bad = copy.deepcopy(before)
    groups, states = bad["optimizer"]["param_groups"], bad["optimizer"]["state"]
    part, how = "optimizer", r.randrange(5)
    if how == 0:
        groups.append(copy.deepcopy(groups[0]))
    elif how == 1:
        groups[0]["params"].pop()
    elif how == 2:
        bad["optimizer"] = torch.optim.SGD(run.case.net(0).parameters(), 0.1).state_dict()
    elif how == 3 and any(len(state) > 1 for state in states.values()):
        state = next(state for state in states.values() if len(state) > 1)
        key = next(key for key, value in state.items() if isinstance(value, Tensor) and value.ndim)
        state[key] = torch.zeros(5, 7, 3, 2, 2)
    elif run.case.copies:
        part = "model"
        bad["model"] = {name: value + 1 if value.is_floating_point() else value for name, value in bad["model"].items()}
        last = list(bad["model"])[-1]
        bad["model"][last] = torch.zeros(13, 2)
    else:
        part, bad["model"] = "model", None
    try:
        getattr(run, part).load_state_dict(bad[part])
    except (ValueError, RuntimeError, TypeError):
        pass
    else:
        require(False, f"a state of the {part} that does not fit is refused ({how})")
    run.model.train(run.program.training)


def cast(run: Run, r: random.Random, at: int) -> None:
    """Cast the model to a wider type and back."""
    own, wide = getattr(torch, run.case.dtype), r.choice([torch.float32, torch.float64])
    if torch.promote_types(own, wide) == wide:
        run.model.train(r.random() < 0.6)
        run.model.to(wide)
        run.model.eval() if r.random() < 0.3 else None
        run.model.to(own)
        run.model.train(run.program.training)


def closure(run: Run, r: random.Random, at: int) -> None:
    run.next["closure"] = True


def collect(run: Run, r: random.Random, at: int) -> None:
    """Leave a finished run of the same case to the garbage collector, in a cycle."""
    other = Run(run.case, 0)
    other.cycle = other  # type: ignore[attr-defined]
    other.step(0)
    del other
    gc.collect()


def second_process(run: Run, r: random.Random, at: int) -> None:
    """Let another process continue from a file, to the end."""
    run.model.train(r.random() < 0.6)
    with tempfile.TemporaryDirectory() as folder:
        torch.save([run.case, at, run.program, run.next, run.checkpoint()], f"{folder}/run.pt")
        together(_continue, 1, folder)
        run.others.append(torch.load(f"{folder}/result.pt"))
    run.model.train(run.program.training)


def _continue(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    case, at, program, next_, states = torch.load(f"{folder}/run.pt", weights_only=False)
    with _quiet(), mock.patch.multiple(sleeping, PERIOD=5, LOOKS=2, LONGEST=3, NEGLIGIBLE=0.1):
        run = Run(case, case.seed + 2)
        run.program = program
        run.rebuild(case.seed + 2)
        run.load(states, ["model", "optimizer", "schedule"])
        run.next = next_
        later = tuple(event for event in case.events if event.at > at)
        run.case = replace(case, events=later)
        torch.save(run.play(at, visits=False).result(), f"{folder}/result.pt")


CHANGES: dict[str, Callable[[Run, random.Random, int], None]] = {
    "clip": clip,
    "accumulate": accumulate,
    "not finite": not_finite,
    "scale": scale,
    "freeze": freeze,
    "add parameters": add_parameters,
    "train in evaluation mode": train_in_evaluation_mode,
    "edit": edit,
    "go back": go_back,
}
VISITS: dict[str, Callable[[Run, random.Random, int], None]] = {
    "look": look,
    "resume": resume,
    "duplicate": duplicate,
    "load what does not fit": load_what_does_not_fit,
    "cast": cast,
    "closure": closure,
    "collect": collect,
    "second process": second_process,
}
EVENTS = CHANGES | VISITS
OFTEN = dict.fromkeys(EVENTS, 1.0) | {"look": 2.0, "resume": 3.0, "second process": 0.02}


def case_of(seed: int, skip: set[str] | None = None) -> Case:
    return draw(seed, OFTEN, EVENTS.keys() - (skip or set()))


# Failures.


def failure(case: Case) -> str | None:
    """Return why a case fails, with the place of an error in the library, or None."""
    try:
        check(case)
    except BrokenError as error:
        return f"not kept: {error}"
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "support" not in f.filename]
        place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
        return f"{type(error).__name__}{place}: {error}"
    return None


def shrink(case: Case) -> Case:
    """Return the simplest case found that still fails: events and settings are left out one at a time."""
    simple = {"dtype": "float32", "network": "mlp", "schedule": "none", "groups": "one", "optimizer": "SGD"}
    kind = (failure(case) or "")[:12]
    while True:
        fewer = [replace(case, events=case.events[:i] + case.events[i + 1 :]) for i in range(len(case.events))]
        fewer += [replace(case, **{k: v}) for k, v in simple.items() if k != "optimizer" and getattr(case, k) != v]
        fewer += [replace(case, options={k: v for k, v in case.options.items() if k != key}) for key in case.options]
        first = next((each for each in fewer if (failure(each) or "").startswith(kind)), None)
        if first is None:
            return case
        case = first


def script(case: Case) -> str:
    """Return a case in words."""
    events = [f"    before step {e.at}: {e.name} ({e.number})" for e in case.events]
    model = f"{case.copies} copies, {case.likelihood}" if case.copies else f"plain, {case.likelihood}"
    head = f"  {case.network} in {case.dtype}, {model}; {case.optimizer} {case.options}"
    return "\n".join([head, f"    groups {case.groups}, schedule {case.schedule}, {case.steps} steps", *events])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--shrink", action="store_true", help="simplify what fails")
    parser.add_argument("--skip", action="append", default=[], help="leave out an event")
    words = parser.parse_args()
    torch.set_num_threads(1)
    failed: Counter[str] = Counter()
    for seed in range(words.seed, words.seed + words.cases):
        case = case_of(seed, set(words.skip))
        why = failure(case)
        if why is not None:
            failed[why[:60]] += 1
            if words.shrink:
                case = shrink(case)
                why = failure(case)
            print(f"seed {seed}: {why}\n{script(case)}", flush=True)
    print(f"{words.cases} cases, {sum(failed.values())} failed")
    for why, count in failed.most_common():
        print(f"{count:5} {why}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
