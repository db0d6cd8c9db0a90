"""The tasks pendulum and lunarlander: run directories, resuming to the bit, the protocol, refusals."""

import sys
from dataclasses import replace
from functools import partial
from statistics import mean

import pytest
import torch
from lab_support.runs import outcome

pytest.importorskip("stable_baselines3", reason="the extra alrao-lab[rl] is not installed")
pytest.importorskip("gymnasium", reason="the extra alrao-lab[rl] is not installed")

from alrao_lab import loop
from alrao_lab.errors import LabError
from alrao_lab.methods import learner
from alrao_lab.records import read
from alrao_lab.render.cells import cells
from alrao_lab.render.markdown import page
from alrao_lab.render.terminal import TrainingBar, comparison_table
from alrao_lab.resolve import resolve
from alrao_lab.rl.qlearning import Agent, Episodes, make_environment, play
from alrao_lab.rl.tasks import LunarLander, Pendulum, Recipe
from alrao_lab.run import run
from alrao_lab.runset import Comparison
from alrao_lab.seeds import seed_of
from alrao_lab.settings import Settings
from alrao_lab.store import RunDirectory
from alrao_lab.table import experiments
from alrao_lab.tasks.task import Budget

CPU = torch.device("cpu")
STEPS = 110  # epochs end in the middle of an episode


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few steps of warming up, few episodes of evaluation, a small network."""
    for task in (Pendulum, LunarLander):
        small = Budget(epochs=3, batch=16, seeds=2, train=STEPS, valid=2, test=3)
        monkeypatch.setattr(task, "budgets", {"mini": small, "paper": small})
        monkeypatch.setattr(task, "recipe", replace(task.recipe, warmup=50, hidden=8, replay=5000))


def settings(**changes):
    return Settings(**{"task": "pendulum", "device": "cpu", **changes})


class StoppedError(Exception):
    pass


def interrupted(root, epoch, step, **changes):
    """Run until a step of an epoch; True if that was before the end."""

    def watch(loop):
        if (loop.progress.epoch, loop.step) >= (epoch, step):
            raise StoppedError

    try:
        run(settings(**changes), [root], watch)
    except StoppedError:
        return True
    return False


# Running.


def test_result_and_metrics_of_a_run(tmp_path):
    seen = []

    def watch(loop):
        seen.append(loop.problem.status(loop.mean_loss))

    directory = run(settings(train_size=230), [tmp_path], watch)
    result, lines, config = directory.result, directory.metrics(), directory.config
    best = max(lines, key=lambda line: line["valid"]["return"])
    assert result["status"] == "finished"
    assert result["higher_is_better"] is True
    assert result["measures"] == ["return"]
    assert (result["best_epoch"], result["valid"]) == (best["epoch"], best["valid"])
    assert result["steps"] == 3 * 230
    assert result["updates"] == 3 * 230 - 50
    assert result["test"]["return"] == pytest.approx(mean(result["test_returns"]), abs=1e-2)
    assert len(result["test_returns"]) == 3
    assert [line["step"] for line in lines] == [230, 460, 690]
    assert all(-2000 < line["train"]["return"] < 0 for line in lines)  # unscaled
    assert config["data"]["recipe"]["environment"] == "Pendulum-v1"
    assert config["settings"]["tau"] == 0.1
    assert {"gymnasium", "stable-baselines3"} <= set(config["versions"])
    assert any("return" in status for status in seen)
    updates = [update for line in lines for update, _ in line["posterior"]]
    assert updates == sorted(set(updates))
    assert len(result["copy_rates"]) == 10
    assert directory.features()


def test_the_last_episodes_are_new_ones(tmp_path):
    directory = run(settings(epochs=1), [tmp_path])
    task, resolved = resolve(settings(epochs=1))
    control = task.load(resolved, CPU)
    agent = Agent(partial(learner, settings=resolved, problem=control), control.recipe, resolved, CPU)
    agent.learner.model.load_state_dict(directory.load(CPU)["best"])
    result = directory.result

    def returns(*name, count):
        return play(
            agent.learner.model.eval(), control.recipe, [seed_of(*name, i) for i in range(count)], CPU
        )

    assert mean(returns("valid", count=2)) == result["valid"]["return"]
    assert returns(0, "test", count=3) == pytest.approx(result["test_returns"], abs=1e-3)


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("pendulum", "alrao"),
        pytest.param("pendulum", "adam", marks=pytest.mark.slow),
        pytest.param("pendulum", "schedulefree", marks=pytest.mark.slow),
        pytest.param("lunarlander", "alrao", marks=pytest.mark.slow),
        pytest.param("lunarlander", "sgd@0.01", marks=pytest.mark.slow),
    ],
)
def test_a_run_resumes_to_the_same_bits(tmp_path, task, method):
    whole = run(settings(task=task, method=method), [tmp_path / "whole"])
    parts = tmp_path / "parts"
    assert interrupted(parts, 2, 90, task=task, method=method)
    assert RunDirectory(next(parts.rglob("config.json")).parent).load(CPU)["agent"]["actions"]
    assert interrupted(parts, 3, 40, task=task, method=method)
    assert outcome(run(settings(task=task, method=method), [parts])) == outcome(whole)


@pytest.mark.slow
def test_a_run_resumes_inside_an_epoch(tmp_path, monkeypatch):
    whole = run(settings(), [tmp_path / "whole"])
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    parts = tmp_path / "parts"
    for epoch, step in (
        (1, 20),
        (1, 71),
        (2, 105),
        (3, 2),
    ):  # while warming up; before and in an episode's end
        assert interrupted(parts, epoch, step)
        progress = RunDirectory(next(parts.rglob("config.json")).parent).load(CPU)["progress"]
        assert progress["total"] == (epoch - 1) * STEPS + step - 1
    assert outcome(run(settings(), [parts])) == outcome(whole)


def test_the_replay_buffer_is_in_the_checkpoint_until_the_end(tmp_path):
    assert interrupted(tmp_path, 2, 90)
    directory = RunDirectory(next(tmp_path.rglob("config.json")).parent)
    replay = directory.load(CPU)["agent"]["replay"]
    assert all(len(rows) == STEPS for rows in replay.values())
    size = (directory.path / "checkpoint.pt").stat().st_size
    assert size < 500_000  # what is filled of it
    run(settings(), [tmp_path])
    assert set(directory.load(CPU)) == {"best", "recipe"}


def test_seeds_differ_and_repeat(tmp_path):
    first, again, other = (
        run(settings(seed=seed, epochs=1), [tmp_path / name]) for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert outcome(first) == outcome(again)
    assert first.metrics()[0]["train"] != other.metrics()[0]["train"]


def test_a_run_that_diverges(tmp_path, monkeypatch):
    monkeypatch.setattr(Pendulum, "recipe", replace(Pendulum.recipe, reward_scale=100.0))
    result = run(settings(method="sgd@10"), [tmp_path]).read("result")
    assert result["status"] == "diverged"
    assert 50 < result["diverged_at"] <= STEPS
    assert result["test"] is None


def test_alrao_survives_what_sgd_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(Pendulum, "recipe", replace(Pendulum.recipe, reward_scale=100.0))
    assert run(settings(epochs=1), [tmp_path]).result["status"] == "finished"


def test_patience(tmp_path):
    lines = run(settings(patience=1, epochs=6), [tmp_path]).metrics()
    best = max(range(len(lines)), key=lambda i: lines[i]["valid"]["return"])
    assert len(lines) == 6 or best == len(lines) - 2


def test_a_schedule_and_clipping(tmp_path):
    result = run(
        settings(epochs=1, method="adam", schedule="linear", clip=0.1, momentum=0.5), [tmp_path]
    ).result
    assert result["status"] == "finished"


def test_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    directory = run(settings(epochs=1, tensorboard=True), [tmp_path])
    assert list((directory.path / "tensorboard").iterdir())


# Comparing.


def test_the_best_rate_is_the_one_of_the_highest_return(tmp_path):
    comparison = Comparison(settings(epochs=1), ["alrao", "sgd"], seeds=1, grid_seeds=1, roots=[tmp_path])
    comparison.run()
    (group,) = experiments(read(comparison.runs))
    best = group.grid["valid return"].idxmax()
    assert comparison.best_rate() == group.grid.loc[best, "spec"]
    assert comparison_table(group).row_count == 2 + len(group.grid)
    sgd, own = group.rows.loc[best], group.rows.loc["Alrao"]
    behind = sgd["test return"] - own["test return"]
    text = page([group])
    assert f"| {behind:+.1f} |" in text
    assert "−371 ± 36" in text
    assert cells(sgd, ["return"]) == [f"{sgd['test return']:.1f}"]


def test_lines_for_reading(tmp_path, capsys):
    from rich.console import Console

    with TrainingBar(Console()) as bar:
        run(settings(epochs=2), [tmp_path], bar)
    said = capsys.readouterr().out
    assert "epoch   1" in said
    assert "test return –" in said


# Episodes.


@pytest.mark.parametrize("task", [Pendulum, LunarLander])
def test_an_episode_is_its_number_and_its_actions(task):
    recipe = task.recipe
    one, other = (Episodes(make_environment(recipe), 7) for _ in range(2))
    for _ in range(3):
        one.reset(seed=123)
    path = [one.step(i % one.action_space.n) for i in range(40)]
    other.number = 2
    other.reset()
    repeated = [other.step(action) for action in one.actions]
    for (x, r, *_), (y, s, *_) in zip(path, repeated, strict=True):
        assert (x == y).all()
        assert r == s


def test_all_episodes_are_played():
    recipe = replace(Recipe("Pendulum-v1", levels=3))
    model = torch.nn.Linear(3, 3)
    seeds = list(range(12))  # more than at once
    returns = play(model, recipe, seeds, CPU)
    assert len(returns) == 12
    assert returns[11] == pytest.approx(play(model, recipe, [11], CPU)[0])


# Refusals.


def test_a_checkpoint_of_another_environment(tmp_path):
    stopped = []
    for task in ("pendulum", "lunarlander"):
        assert interrupted(tmp_path / task, 2, 90, task=task)
        stopped.append(RunDirectory(next((tmp_path / task).rglob("config.json")).parent))
    here, other = stopped
    for foreign in (other.load(CPU), {**here.load(CPU), "agent": {}}):
        here.save(foreign)
        with pytest.raises(LabError, match="not of this run"):
            run(settings(), [tmp_path / "pendulum"])


def test_wrong_settings():
    with pytest.raises(LabError, match="--tau does not apply to digits"):
        resolve(Settings(task="digits", tau=0.5))
    with pytest.raises(LabError, match="--tau must be positive"):
        resolve(settings(tau=0.0))
    with pytest.raises(LabError, match=r"--tau must be positive and at most 1, got 2\.0"):
        resolve(settings(tau=2.0))


def test_a_setting_more_leaves_other_runs_what_they_were():
    assert "tau" not in resolve(Settings(task="digits"))[1].key()


def test_another_recipe_is_another_run(monkeypatch):
    task, resolved = resolve(settings())
    before = task.load(resolved, CPU).identity
    monkeypatch.setattr(Pendulum, "recipe", replace(Pendulum.recipe, gamma=0.9))
    assert task.load(resolved, CPU).identity != before


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for module in ("alrao.integrations.sb3", "alrao_lab.rl.qlearning"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    task, resolved = resolve(settings())
    with pytest.raises(LabError, match=r"pendulum needs the package gymnasium.*alrao-lab\[rl\]"):
        task.load(resolved, CPU)
