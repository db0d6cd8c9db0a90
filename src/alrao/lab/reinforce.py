"""One run of deep Q-learning: epochs of steps, evaluation episodes, checkpoints, a result.

An epoch is a number of steps of the environment. After each the greedy policy plays evaluation episodes, on
which the best epoch is chosen; the agent of that epoch plays new episodes at the end.
"""

from __future__ import annotations

import json
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from math import inf, nan
from statistics import mean
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from torch import Tensor

from .agents import Agent, play
from .errors import LabError
from .events import EventFiles
from .movement import Movement
from .provenance import provenance
from .run import Moment, Watch, trace_posterior
from .seeds import seed_of
from .settings import Settings
from .store import RunDirectory
from .tasks.reinforcement import Control

__all__ = ["train"]

WATCHED = 50
"""Steps from one moment that is shown to the next."""


@dataclass
class _Progress:
    """What a run has done so far, all of it in the checkpoint."""

    epoch: int = 1
    seconds: float = 0.0
    best_epoch: int = 0
    best: float = -inf
    trace: list[Any] = field(default_factory=list)  # of the posterior, in this epoch
    returns: list[float] = field(default_factory=list)  # of episodes that ended in this epoch


class _Run(BaseCallback):
    """What happens around the agent's own loop: lines, checkpoints, the choice of the best epoch."""

    def __init__(
        self,
        agent: Agent,
        control: Control,
        settings: Settings,
        directory: RunDirectory,
        device: torch.device,
        watch: Watch | None,
    ) -> None:
        super().__init__()
        self.agent, self.control, self.settings = agent, control, settings
        self.directory, self.device, self.watch = directory, device, watch
        self.epochs = settings.epochs or 1
        self.progress = _Progress()
        self.best_weights: dict[str, Tensor] | None = None
        self.stopped = False
        saved = directory.load(device)
        if saved is not None:
            self._restore(saved)
        self.traced = agent._n_updates  # updates after which the posterior was last noted
        self.lines = directory.metrics(self.progress.epoch - 1)
        self.events = EventFiles(directory.path, self.lines) if settings.tensorboard else None
        self.began = time.perf_counter()

    def _restore(self, saved: dict[str, Any]) -> None:
        expected = self.control.recipe.environment
        if saved.get("environment") != expected:
            raise LabError(
                f"{self.directory.path / 'checkpoint.pt'} is of another environment "
                f"({saved.get('environment')}, not {expected}): delete it to start the run again"
            )
        try:
            self.agent.learner.load_state_dict(saved["learner"])
            self.agent.restore(saved["agent"])
            self.progress, self.best_weights = _Progress(**saved["progress"]), saved["best"]
            _set_random_state(saved["random"], self.agent)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise self.directory.foreign_checkpoint(error) from error

    def _save(self) -> None:
        self.directory.save(
            {
                "environment": self.control.recipe.environment,
                "learner": self.agent.learner.state_dict(),
                "agent": self.agent.state(),
                "progress": asdict(self.progress),
                "random": _random_state(self.agent),
                "best": self.best_weights,
            }
        )

    def _on_step(self) -> bool:
        """Note the episodes that ended; tell whether to go on."""
        for info in self.locals["infos"]:
            if "episode" in info:
                self.progress.returns.append(float(info["episode"]["r"]))
        if self.watch is not None and self.num_timesteps % WATCHED == 0:
            self._show(self.watch)
        return not self.stopped and self.agent.diverged is None

    def _show(self, watch: Watch) -> None:
        progress, last = self.progress, self.lines[-1] if self.lines else None
        losses = self.agent.losses
        loss = mean(losses[-100:]) if losses else nan
        shown = f"loss {loss:.4g}" if losses else "random actions"
        if progress.returns:
            shown = f"return {mean(progress.returns[-10:]):.1f}  {shown}"
        elif last is not None and last["train"]["return"] is not None:
            shown = f"return {last['train']['return']:.1f}  {shown}"
        done = self.num_timesteps - (progress.epoch - 1) * self.control.steps
        learner = self.agent.learner
        watch(Moment(progress.epoch, self.epochs, done, self.control.steps, loss, last, learner, shown))

    def _on_rollout_start(self) -> None:
        """Between two updates: at an epoch's end, evaluate and save."""
        if self.agent._n_updates > self.traced:
            self.traced = self.agent._n_updates
            trace_posterior(self.progress.trace, self.traced, self.agent.learner)
        if self.agent.num_timesteps >= self.progress.epoch * self.control.steps:
            self._end_epoch()

    def _on_training_end(self) -> None:
        if not self.stopped and self.agent.diverged is None and self.progress.epoch <= self.epochs:
            self._end_epoch()
        self.progress.seconds += time.perf_counter() - self.began
        if self.events is not None:
            self.events.close()

    def _end_epoch(self) -> None:
        agent, progress = self.agent, self.progress
        seeds = [seed_of("valid", i) for i in range(self.control.episodes["valid"])]
        with agent.learner.evaluating(()) as model:
            valid = mean(play(model, self.control.recipe, seeds, self.device))
            if valid > progress.best:
                progress.best, progress.best_epoch = valid, progress.epoch
                self.best_weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        now = time.perf_counter()
        progress.seconds += now - self.began
        self.began = now
        self.lines.append(self._line(valid))
        self.progress = replace(progress, epoch=progress.epoch + 1, trace=[], returns=[])
        agent.losses = []
        self.directory.write_metrics(self.lines)
        self._save()
        if self.events is not None:
            self.events.epoch(self.lines[-1])
        self.stopped = self.progress.epoch - 1 - self.progress.best_epoch >= self.settings.patience

    def _line(self, valid: float) -> dict[str, Any]:
        progress, losses = self.progress, self.agent.losses
        line: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": self.agent.num_timesteps,
            "seconds": round(progress.seconds, 3),
            "train": {
                "loss": mean(losses) if losses else None,
                "return": mean(progress.returns) if progress.returns else None,
            },
            "valid": {"return": valid},
            "test": {"return": None},  # played once, at the end
        }
        if progress.trace:
            line["posterior"] = progress.trace
        return line

    def test(self) -> list[float]:
        """The returns of the best epoch's agent in episodes that nothing was chosen on."""
        if self.best_weights is None:
            return []
        began = time.perf_counter()
        seeds = [seed_of(self.settings.seed, "test", i) for i in range(self.control.episodes["test"])]
        with self.agent.learner.evaluating(()) as model:
            best = deepcopy(model)
            best.load_state_dict(self.best_weights)
            returns = play(best, self.control.recipe, seeds, self.device)
        self.progress.seconds += time.perf_counter() - began
        return returns

    def result(self) -> dict[str, Any]:
        """What came out."""
        returns, progress, agent = self.test(), self.progress, self.agent
        best = self.lines[progress.best_epoch - 1] if progress.best_epoch else None
        return {
            "status": "finished" if agent.diverged is None and best is not None else "diverged",
            "diverged_at": agent.diverged,
            "measures": self.control.measures,
            "higher_is_better": True,
            "epochs": len(self.lines),
            "steps": agent.num_timesteps,
            "updates": agent._n_updates,
            "seconds": round(progress.seconds, 3),
            "best_epoch": progress.best_epoch or None,
            "train": best["train"] if best else None,
            "valid": best["valid"] if best else None,
            "test": {"return": mean(returns)} if returns else None,
            "test_returns": [round(value, 3) for value in returns],
            "parameters": sum(p.numel() for p in agent.learner.model.parameters()),
            "copy_rates": agent.learner.rates,
        }


def train(
    control: Control, settings: Settings, directory: RunDirectory, device: torch.device, watch: Watch | None
) -> None:
    """Train an agent to the end, from the checkpoint if there is one, and write the result."""
    config = directory.config
    if config is None:
        config = {"settings": asdict(settings), "data": control.about, **provenance(device)}
        directory.write_config(config)
    torch.set_num_threads(directory.threads(config))

    torch.manual_seed(seed_of(settings.seed, "network"))
    agent = Agent(control, settings, device)
    total = (settings.epochs or 1) * control.steps
    agent.learner.follow(
        settings.schedule, max(1, (total - control.recipe.warmup) // control.recipe.train_every)
    )
    movement = Movement(agent.learner)
    set_random_seed(seed_of(settings.seed, "exploration") % 2**32)
    agent.action_space.seed(seed_of(settings.seed, "actions"))
    run = _Run(agent, control, settings, directory, device, watch)
    if agent.num_timesteps < total and not run.stopped:
        agent.learn(total - agent.num_timesteps, callback=run, reset_num_timesteps=False)
    directory.write_features(movement.layers())
    directory.write_result(run.result())
    directory.save({"environment": control.recipe.environment, "best": run.best_weights})  # no replay


def _random_state(agent: Agent) -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = cast(Any, np.random.get_state())  # noqa: NPY002, what the agent uses
    return {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "actions": json.dumps(agent.action_space.np_random.bit_generator.state),
    }


def _set_random_state(state: dict[str, Any], agent: Agent) -> None:
    torch.set_rng_state(state["torch"].cpu())
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
    agent.action_space.np_random.bit_generator.state = json.loads(state["actions"])
