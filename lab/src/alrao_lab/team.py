"""Processes that train one run together: each takes its rows of every batch. Accelerate does the rest.

The results are those of one process with the whole batch, to rounding: gradients and losses are means over
all rows, BatchNorm's statistics are those of all rows. The first process holds the run and writes its files.
Dropout is drawn by each process on its own.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from .errors import LabError, optional
from .seeds import seed_of

Value = TypeVar("Value")


class Team:
    """The processes that train a run: this one, on a device, or all that torchrun started."""

    def __init__(self, device: torch.device, accelerator: Any = None) -> None:
        self.device, self.accelerator = device, accelerator
        self.size, self.rank = 1, 0
        if accelerator is not None:
            self.size, self.rank = accelerator.num_processes, accelerator.process_index
        self.clock = time.perf_counter
        """Seconds, the same in all processes."""

    @staticmethod
    def join(device: torch.device) -> Team:
        """Join the processes that torchrun started; each takes a GPU of its own if the device is one."""
        accelerate = optional("accelerate", "processes", "--processes")
        local, devices = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if device.type == "cuda" and local > devices:
            raise LabError(
                f"{local} processes need a GPU each, and there are {devices}: start fewer processes, "
                "or add --device cpu"
            )
        accelerator = accelerate.Accelerator(cpu=device.type != "cuda")
        team = Team(accelerator.device if device.type == "cuda" else torch.device("cpu"), accelerator)
        team.mean(0.0)  # sets the clock
        return team

    def first(self, value: Value) -> Value:
        """Return the value that the first process has."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, device=self.device)
        return values[0]

    def require_same(self, state: str) -> None:
        """Refuse to go on if the processes resume from different states."""
        if len(found := set(self._gather(state))) > 1:
            raise LabError(
                f"the processes found different checkpoints ({' and '.join(sorted(found))}): "
                "give --out a directory on a file system that all of them share"
            )

    def prepare(self, net: nn.Module) -> nn.Module:
        """Return a network whose BatchNorm layers see the rows of all processes."""
        for module in net.modules() if self.size > 1 else ():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                kind = type(module)
                module.__class__ = type(kind.__name__, (_OverAllRows, kind), {})
        return net

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model to train: its gradients are means over the processes."""
        return self.accelerator.prepare_model(model) if self.size > 1 else model

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return this process's rows of a batch, and the factor that makes a mean of theirs one of all."""
        rows = len(inputs)
        low, high = (rows * rank // self.size for rank in (self.rank, self.rank + 1))
        factor = (high - low) * self.size / rows
        if low == high:  # there are fewer rows than processes: a row that does not count
            low, high = 0, 1
        each = len(targets) // rows  # of a text, a row has many targets
        return inputs[low:high], targets[low * each : high * each], factor

    @contextmanager
    def own_random_numbers(self, *name: object) -> Iterator[None]:
        """Draw random numbers that the other processes do not draw, and leave the common ones alone."""
        if self.size == 1:
            yield
            return
        with torch.random.fork_rng([self.device.index] if self.device.type == "cuda" else []):
            torch.manual_seed(seed_of("process", self.rank, *name))
            yield

    def mean(self, value: float) -> float:
        """Return the mean over the processes, and set the clock."""
        if self.size == 1:
            return value
        both = torch.tensor([value, time.perf_counter()], dtype=torch.float64, device=self.device)
        value, now = self.accelerator.reduce(both, "mean").tolist()
        self.clock = lambda: now
        return value

    def add(self, sums: dict[str, float]) -> dict[str, float]:
        every = self._gather(sums)
        return {name: sum(each[name] for each in every) for name in sums}

    def join_carry(self, carry: Any) -> Any:
        """Return the state of all rows, given that of this process's."""
        if self.size == 1 or not carry:
            return carry
        every = self._gather(tuple(tensor.cpu() for tensor in carry))
        return tuple(torch.cat(parts, dim=1) for parts in zip(*every, strict=True))

    def split_carry(self, carry: Any) -> Any:
        """Return the state of this process's rows."""
        if self.size == 1 or not carry:
            return carry
        parts = (tensor.tensor_split(self.size, dim=1)[self.rank] for tensor in carry)
        return tuple(part.to(self.device).contiguous() for part in parts)

    def leave(self) -> None:
        if self.size > 1:
            self.accelerator.end_training()

    def _gather(self, value: Value) -> list[Value]:
        every: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(every, value)
        return every


class _Sum(torch.autograd.Function):
    """The sum over the processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient.contiguous())


class _OverAllRows(nn.modules.batchnorm._BatchNorm):
    """BatchNorm with the statistics of the rows of all processes; ``nn.SyncBatchNorm`` needs a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
        count = x.new_full((1,), x.numel() / x.shape[1])
        total = _Sum.apply(torch.cat([x.sum(axes), count]))
        mean, count = total[:-1] / total[-1], total[-1].detach()
        centred = x - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(axes)) / count
        own: Any = self  # every network of the workbench tracks statistics, scales and shifts
        own.num_batches_tracked += 1
        part = 1 / own.num_batches_tracked.item() if own.momentum is None else own.momentum
        own.running_mean.lerp_(mean.detach(), part)
        own.running_var.lerp_((variance * count / (count - 1)).detach(), part)
        y = centred * (variance + self.eps).rsqrt().view(shape)
        return torch.addcmul(self.bias.view(shape), y, self.weight.view(shape))


def launched(processes: int | None) -> int:
    """Return how many processes ``torchrun`` started; 1 if this one was started in another way."""
    count = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if count > 1 and processes not in (None, count):
        raise LabError(f"--processes {processes}, but torchrun started {count}: leave --processes out")
    return count


def launch(processes: int) -> None:
    """Start the command that this process was started with in several processes, and wait for them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # the processes report their errors themselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        1, 1, processes, run_id="alrao", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
    )
    try:
        elastic_launch(config, sys.executable)("-m", "alrao_lab.cli", *sys.argv[1:])
    except SignalException as signalled:
        raise SystemExit(128 + signalled.sigval) from None
    except ChildFailedError as failed:
        code = failed.get_first_failure()[1].exitcode
        if code < 0:
            raise LabError(
                f"a training process was ended by signal {-code}, perhaps for lack of memory: "
                "run the same command to resume"
            ) from None
        raise SystemExit(code) from None
