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
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import torch
from torch import nn

import alrao
from alrao.runtime import sleeping
from support.lifecycle_cases import draw
from support.processes import together

EXPECTED = (
    ".*are tied to",
    "the output layer .* of the collapsed network has its own weights",
    "the single copy of the head gets the middle",
    ".*at the end of Auto's search",  # a schedule under Auto
    ".*, a factor on the rate that Auto has found",  # the same, later
    "10 steps in a row were made in evaluation mode",
    ".*are trained for the first time after the search has ended",
    "Detected call of `lr_scheduler.step",  # torch: a scaler skipped the first step
    "Seems like `optimizer.step",  # torch: a copy of an optimizer that has a schedule
)
"""Warnings that a case may cause. Every other one is a failure."""


class BrokenError(AssertionError):
    """A promise that a case did not keep."""


def require(kept, promise):
    if not kept:
        raise BrokenError(promise)


@dataclass
class Program:
    """What the user's program knows beside the model and its optimizer; it is in a checkpoint too."""

    training: bool = True
    frozen: set[str] = field(default_factory=set)
    grown: bool = False
    edits: dict[str, str] = field(default_factory=dict)
    kept: dict[str, torch.Tensor] | None = None
    losses: list[float] = field(default_factory=list)
    next: dict = field(default_factory=dict)
    """What events have set for the next step."""


class Run:
    """A training of a case, by an optimizer of alrao or, to compare with, of torch."""

    def __init__(self, case, seed, of=alrao):
        self.case, self.of, self.program = case, of, Program()
        self.model, self.optimizer, self.schedule = case.build(seed, of)
        self.others = []
        """Results of other processes that continued from here."""

    @property
    def named(self):
        return dict(self.model.named_parameters())

    def play(self, *, visits, start=0):
        """Train from a step on, with the events of the case."""
        for at in range(start, self.case.steps):
            self.at = at
            for i, event in enumerate(self.case.events):
                if event.at == at and (visits or event.name in CHANGES):
                    self.later = self.case.events[i + 1 :]
                    EVENTS[event.name](self, random.Random(event.number))
                    self.restore_mode()
            self.step(at)
        return self

    def restore_mode(self):
        if self.model.training != self.program.training:  # a program calls train() only where it must
            self.model.train(self.program.training)

    def step(self, at):
        case, model, optimizer = self.case, self.model, self.optimizer
        chosen, self.program.next = self.program.next, {}
        x, y = case.batch(at)
        if "input" in chosen:
            x[0, 4:] = chosen["input"]  # after what words are made of
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled="scale" in chosen)
        parts = chosen.get("parts", 1)

        def closure():
            torch.manual_seed(at)
            (model if case.groups == "later" else optimizer).zero_grad()
            total = 0.0
            for inputs, targets in zip(x.chunk(parts), y.chunk(parts), strict=True):
                loss = case.loss(model(inputs), targets) * chosen.get("times", 1.0) / parts
                scaler.scale(loss).backward()
                total += loss.detach()
            scaler.unscale_(optimizer)
            if chosen.get("clip") == "own":
                model.clip_grad_norm_(0.5)
            elif "clip" in chosen:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            return total

        if "closure" in chosen and "scale" not in chosen:
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

    def checkpoint(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def rebuild(self, seed):
        """Build everything again, as a program does that is started again."""
        self.model, self.optimizer, self.schedule = self.case.build(seed, self.of)
        for name in self.program.frozen:
            self.named[name].requires_grad_(False)
        if self.program.grown:
            self.grow()

    def load(self, states, *order):
        for name in (*order, "schedule"):
            if name in states:
                getattr(self, name).load_state_dict(states[name])

    def grow(self):
        known = {p for group in self.optimizer.param_groups for p in group["params"]}
        self.optimizer.add_param_group({"params": [p for p in self.named.values() if p not in known]})

    # What is compared, and what must hold.

    def output(self):
        """Return what the model returns for a clean batch, in its mode."""
        with torch.no_grad():
            return torch.Tensor(self.model(self.case.batch(self.case.steps)[0]))  # not of our own type

    def result(self):
        """Return all losses, the weights in both modes, and the output in evaluation mode."""
        result = {f"loss {i}": torch.tensor(loss) for i, loss in enumerate(self.program.losses)}
        for mode in ("train", "eval"):
            getattr(self.model, mode)()
            result |= {f"{key} in {mode}()": v.clone() for key, v in self.model.state_dict().items()}
        result["output"] = self.output()
        return result

    def check_end(self):
        """Check the weights: they are finite, and edits in place hold in both modes."""
        losses = []
        for mode in (True, False):
            self.model.train(mode)
            for name, p in [*self.named.items(), *self.model.named_buffers()]:
                slowest = p[0] if self.case.copies and name in ("output.weight", "output.bias") else p
                require(slowest.isfinite().all() or "averaging" in name, f"{name} is finite in mode {mode}")
                small = "running" not in name or self.case.dtype == "float64" or p.abs().max() < 1e15
                require(small, f"{name} has forgotten a batch that was not finite")
            # A program that trains in evaluation mode edits what it sees: the averaged weights.
            for name, edit in self.program.edits.items() if self.program.training or not mode else ():
                now = self.named[name].detach()
                off = (now - EDITS[edit](now.clone())).abs().max().item()
                require(off < 0.02, f"{edit} holds for {name} in mode {mode}, off by {off:.3g}")
            out = self.output()
            require(out.isfinite().all(), f"the output is finite in mode {mode}")
            losses.append(self.case.loss(out, self.case.batch(self.case.steps)[1]).item())
        if self.program.edits and self.case.network not in ("cnn", "pixels"):  # BatchNorm's modes differ
            require(losses[1] < 2 * losses[0] + 1, f"the losses in both modes are alike: {losses}")


def difference(one, other, close=0.0):
    """Return where two results differ first, or None."""
    for name, value in one.items():
        if not torch.allclose(value, other[name], rtol=close, atol=close, equal_nan=True):
            return f"{name}, by {(value.double() - other[name].double()).abs().max().item():.3g}"
    return None


def kept(case, names):
    """Return what visits must not change: under Auto, statistics are of the rows since the last look."""
    if case.optimizer != "Auto" or case.network not in ("cnn", "pixels"):
        return names
    if any(event.name == "switch_mode" for event in case.events):
        return []  # steps in evaluation mode use them
    return [
        name for name in names if name != "output" and not name.endswith(("mean in eval()", "var in eval()"))
    ]


def check(case):
    """Raise what breaks in a case."""
    with conditions():
        check_start(case)
        plain = Run(case, case.seed).play(visits=False)
        expected = plain.result()
        plain.check_end()
        happened = {event.name for event in case.events}
        if happened & VISITS.keys():
            visited = Run(case, case.seed).play(visits=True)
            for result in (visited.result(), *visited.others):
                where = difference({name: expected[name] for name in kept(case, expected)}, result)
                require(where is None, f"visits change nothing: they changed {where}")
        if isinstance(case.options.get("lr"), float) and not case.copies and "not_finite" not in happened:
            plain = case
            if case.dtype == "bfloat16":  # torch's foreach rounds its factors to the type of the weights
                plain = replace(case, options={**case.options, "foreach": None})
            result = Run(plain, case.seed, torch.optim).play(visits=False).result()
            if case.schedule != "none":  # then factor times rate is rounded otherwise
                result = {name: value for name, value in result.items() if "loss" in name}
            where = difference(result, expected, 0.0 if case.schedule == "none" else 1e-4)
            require(where is None, f"a single rate is torch's optimizer: it differs in {where}")


def check_start(case):
    """Check that a converted network returns what the network returned."""
    if case.copies:
        x, net = case.batch(0)[0], case.net(case.seed).eval()
        with torch.no_grad():
            expected = net(x)
            model = alrao.Alrao(net, case.copies, likelihood=case.likelihood, keep_output=True)
            out = torch.Tensor(model(x)).to(expected)
        if case.likelihood == "categorical":
            expected, out = expected.log_softmax(1), out.log_softmax(1)
        close = 0.05 if case.dtype == "bfloat16" else 1e-5
        require(torch.allclose(out, expected, close, close), "the output is the network's")


@contextmanager
def conditions():
    """Let warnings be errors, and copies fall asleep within few steps."""
    short = mock.patch.multiple(sleeping, CYCLE=5, LOOKS=2, MAX_INTERVAL=3, NEGLIGIBLE=0.1)
    with short, warnings.catch_warnings():
        warnings.simplefilter("error")
        for message in EXPECTED:
            warnings.filterwarnings("ignore", message)
        yield


# Events that change the training: they happen in both runs.

CHANGES, VISITS = {}, {}


def change(event):
    CHANGES[event.__name__] = event
    return event


@change
def clip(run, r):
    run.program.next["clip"] = r.choice(["own", "torch's"]) if run.case.copies else "torch's"


@change
def accumulate(run, r):
    run.program.next["parts"] = r.choice([2, 4])


@change
def not_finite(run, r):
    run.program.next["input" if r.random() < 0.7 else "times"] = r.choice([torch.nan, torch.inf, 1e30])
    if r.random() < 0.3:
        clip(run, r)


@change
def scale(run, r):
    if run.case.dtype != "bfloat16":
        run.program.next["scale"] = True


@change
def freeze(run, r):
    """Freeze a parameter, or train it again."""
    name = r.choice([name for name in run.named if not name.startswith("output.")])
    run.program.frozen ^= {name}
    run.named[name].requires_grad_(name not in run.program.frozen).grad = None


@change
def add_parameters(run, r):
    if run.case.groups == "later" and run.schedule is None and not run.program.grown:
        run.grow()
        run.program.grown = True


@change
def switch_mode(run, r):
    run.program.training = not run.program.training


@change
def edit(run, r):
    """Change a matrix in place, now and after every later step."""
    body = [n for n, p in run.named.items() if p.ndim > 1 and n.startswith("body.")]
    name, kind = r.choice(body), r.choice(list(EDITS))
    if run.program.training:
        run.program.edits[name] = kind
        EDITS[kind](run.named[name])


@torch.no_grad()
def mask(p):
    return p.mul_((torch.arange(p.numel()) % 3 > 0).view_as(p))


@torch.no_grad()
def clamp(p):
    return p.clamp_(-0.05, 0.05)


@torch.no_grad()
def renormalise(p):
    return p.div_(p.flatten(1).norm(dim=1).view([-1] + [1] * (p.ndim - 1)) + 1e-3)


EDITS = {"mask": mask, "clamp": clamp, "renormalise": renormalise}


@change
def go_back(run, r):
    """Load what an earlier step had in evaluation mode, without the optimizer's state."""
    if run.case.network == "max_norm":
        return  # torch changes such weights in evaluation mode, and what is kept with them
    run.model.train(run.program.training)  # weights that were loaded just before are recognised here
    if run.program.kept is not None:
        run.model.load_state_dict(run.program.kept)
    run.program.kept = copy.deepcopy(run.model.eval().state_dict())


# Visits: they must not change the training, to the bit.


def visit(event):
    VISITS[event.__name__] = event
    return event


@visit
def look(run, r):
    """Use the model in evaluation mode."""
    x, y = run.case.batch(run.at)
    run.model.eval()
    with r.choice([torch.no_grad, torch.inference_mode])():
        # torch's embedding scales a row again whose norm is 1 + 1e-7; only Auto undoes that.
        if run.case.network != "max_norm" or run.case.optimizer == "Auto":
            run.case.loss(run.model(x), y)
    if r.random() < 0.3:
        run.checkpoint()
    if r.random() < 0.3 and run.case.copies:
        run.model.collapse()
    if r.random() < 0.3:
        run.model.train()
        run.model.eval()
    if r.random() < 0.2 and run.case.optimizer == "Auto":
        run.optimizer.train()
        run.optimizer.eval()


@visit
def resume(run, r):
    """Save in some mode; build everything again, or train on; then load, in some mode and order."""
    run.model.train(r.random() < 0.6)
    states = r.choice([copy.deepcopy, through_file])(run.checkpoint())
    if r.random() < 0.7:
        run.rebuild(run.case.seed + 1)
    else:
        run.restore_mode()
        before = copy.deepcopy(run.program)
        for stray in range(r.randrange(3)):
            run.program.next = {}
            run.step(1000 + stray)
        run.program = before
    run.model.train(r.random() < 0.6)
    run.load(states, *r.sample(["model", "optimizer"], 2))


def through_file(states, **options):
    file = io.BytesIO()
    torch.save(states, file)
    file.seek(0)
    return torch.load(file, **options)


@visit
def duplicate(run, r):
    """Copy or pickle everything, and continue with either."""
    run.model.train(r.random() < 0.6)
    parts = (run.model, run.optimizer, run.schedule)
    how = r.randrange(3)
    if how == 0:
        parts = copy.deepcopy(parts)
    else:
        parts = pickle.loads(pickle.dumps(parts)) if how == 1 else through_file(parts, weights_only=False)
    if r.random() < 0.5:
        run.model, run.optimizer, run.schedule = parts
    del parts
    gc.collect()


@visit
def bad_load(run, r):
    """Load a state that must be refused."""
    run.model.train(r.random() < 0.6)
    bad, part, how = copy.deepcopy(run.checkpoint()), "optimizer", r.randrange(5)
    groups = bad["optimizer"]["param_groups"]
    if how == 0:
        groups.append(copy.deepcopy(groups[0]))
    elif how == 1:
        groups[0]["params"].pop()
    elif how == 2:
        bad["optimizer"] = torch.optim.SGD(run.case.net(0).parameters(), 0.1).state_dict()
    elif how == 3:
        bad["optimizer"]["state"][0] = {"u": torch.zeros(5, 7, 3, 2, 2)}
    else:
        part = "model"
        bad["model"] = {name: value + 1 for name, value in bad["model"].items()} if run.case.copies else None
        if run.case.copies:
            bad["model"]["output.weight"] = torch.zeros(13, 2)
    try:
        getattr(run, part).load_state_dict(bad[part])
    except (ValueError, RuntimeError, TypeError):
        return
    require(False, f"a state of the {part} that does not fit is refused ({how})")


@visit
def cast(run, r):
    """Cast the model to a wider type and back."""
    own, wide = getattr(torch, run.case.dtype), r.choice([torch.float32, torch.float64])
    if torch.promote_types(own, wide) == wide:
        run.model.train(r.random() < 0.6)
        run.model.to(wide)
        run.model.train(r.random() < 0.6)
        run.model.to(own)


@visit
def closure(run, r):
    run.program.next["closure"] = True


@visit
def collect(run, r):
    """Leave another run of the same case to the garbage collector, in a cycle."""
    other = Run(run.case, 0)
    other.itself = other
    other.step(0)
    del other
    gc.collect()


@visit
def second_process(run, r):
    """Let another process continue from a file, to the end."""
    run.model.train(r.random() < 0.6)
    with tempfile.TemporaryDirectory() as folder:
        rest = replace(run.case, events=run.later)
        torch.save([rest, run.at, run.program, run.checkpoint()], f"{folder}/run.pt")
        together(go_on, 1, folder)
        run.others.append(torch.load(f"{folder}/result.pt"))


def go_on(rank, folder):
    torch.set_num_threads(1)
    case, at, program, states = torch.load(f"{folder}/run.pt", weights_only=False)
    with conditions():
        run = Run(case, case.seed + 2)
        run.program = program
        run.rebuild(case.seed + 2)
        run.load(states, "model", "optimizer")
        run.restore_mode()
        torch.save(run.play(visits=False, start=at).result(), f"{folder}/result.pt")


EVENTS = CHANGES | VISITS
OFTEN = dict.fromkeys(EVENTS, 1.0) | {"look": 2.0, "resume": 3.0, "second_process": 0.02}


def case_of(seed, skip=()):
    """Return the case of a seed, without some of its events."""
    case = draw(seed, OFTEN)
    return replace(case, events=tuple(event for event in case.events if event.name not in skip))


# Failures.


def failure(case):
    """Return why a case fails, with the place of an error, or None."""
    try:
        check(case)
    except BrokenError as error:
        return f"not kept: {error}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno}: {error}"
    return None


def shrink(case):
    """Return a simpler case that still fails: events and settings are left out one at a time."""
    simple = {"dtype": "float32", "network": "mlp", "schedule": "none", "groups": "one"}
    kind = failure(case)[:12]
    while True:
        simpler = [{"events": case.events[:i] + case.events[i + 1 :]} for i in range(len(case.events))]
        simpler += [{key: value} for key, value in simple.items() if getattr(case, key) != value]
        simpler += [{"options": {k: v for k, v in case.options.items() if k != key}} for key in case.options]
        tries = (replace(case, **change) for change in simpler)
        found = next((each for each in tries if (failure(each) or "").startswith(kind)), None)
        if found is None:
            return case
        case = found


def script(case):
    """Return a case in words."""
    model = f"{case.copies} copies, {case.likelihood}" if case.copies else f"plain, {case.likelihood}"
    lines = [
        f"  {case.network} in {case.dtype}, {model}; {case.optimizer} {case.options}",
        f"    groups {case.groups}, schedule {case.schedule}, {case.steps} steps",
    ]
    return "\n".join(lines + [f"    before step {e.at}: {e.name} ({e.number})" for e in case.events])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--shrink", action="store_true", help="simplify what fails")
    parser.add_argument("--skip", nargs="+", default=[], choices=EVENTS, help="events to leave out")
    words = parser.parse_args()
    torch.set_num_threads(1)
    failed = Counter()
    for seed in range(words.seed, words.seed + words.cases):
        case = case_of(seed, words.skip)
        why = failure(case)
        if why is not None:
            failed[why.partition(",")[0][:80]] += 1
            case = shrink(case) if words.shrink else case
            print(f"seed {seed}: {failure(case) if words.shrink else why}\n{script(case)}", flush=True)
    print(f"{words.cases} cases, {failed.total()} failed")
    for why, count in failed.most_common():
        print(f"{count:5} {why}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
