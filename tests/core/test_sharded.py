"""Several processes train as one does: DDP and FSDP2, every optimizer, every likelihood."""

import pytest
import torch
import torch.distributed as dist
from support.processes import DEADLINE, together, torchrun
from support.shard_cases import SPECIAL, contract, resumed, special
from support.shard_runs import CHECKPOINTS, CRITERIA, OPTIMIZERS, WAYS, all_cases, case, finish
from support.tools import ROOT

pytestmark = [
    pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo"),
    pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this torch needs a GPU"
    ),
    pytest.mark.timeout(300),  # thousands of messages, each of which waits for a processor
]

FAST = [(name, "categorical", "whole") for name in OPTIMIZERS]
FAST += [("auto", "categorical", way) for way in ("layers", "resharded", "kept")]
FAST += [("adam", "categorical", "ddp")]
FAST += [("momentum", likelihood, way) for likelihood in CRITERIA for way in ("layers", "copies")]
FAST += [("auto", "categorical", "copies"), ("per-feature", "gaussian", "copies")]


def assert_same(found, expected):
    # The evidence is summed in float32; all else is in float64.
    assert found.keys() == expected.keys()
    for moment, of_moment in expected.items():
        assert found[moment].keys() == of_moment.keys()
        for name, value in of_moment.items():
            torch.testing.assert_close(
                found[moment][name], value, rtol=1e-5, atol=1e-6, equal_nan=True, msg=f"{moment}: {name}"
            )


@pytest.fixture(scope="module")
def expected():
    """What one process ends with."""
    known = {}

    def of(name, likelihood):
        if (name, likelihood) not in known:
            known[name, likelihood] = case(name, likelihood)
        return known[name, likelihood]

    return of


def run(world, folder, what, *args, deadline=DEADLINE):
    together(what, world, world, folder, *args, deadline=deadline)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(folder):
    """What two processes end with."""
    return run(2, folder, contract, FAST, deadline=240)


@pytest.mark.parametrize(("name", "likelihood", "way"), FAST)
def test_two_processes_are_one(two, expected, name, likelihood, way):
    assert_same(two[name, likelihood, way], expected(name, likelihood))


@pytest.mark.parametrize(("name", "at", "training"), CHECKPOINTS)
@pytest.mark.usefixtures("two")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_checkpoint_of_two_processes_is_resumed_in_one(folder, expected, name, at, training):
    assert_same(finish(folder, name, at, training), expected(name, "categorical"))


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_checkpoint_of_two_processes_is_resumed_in_four(folder, two, expected, tmp_path):
    for (name, *_), ended in run(4, tmp_path, resumed, folder, deadline=400).items():
        assert_same(ended, expected(name, "categorical"))


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("world", [2, 4])
def test_the_whole_contract(tmp_path, expected, world):
    cases = all_cases(WAYS) if world == 2 else [*FAST, ("auto", "gaussian", "whole")]
    found = run(world, tmp_path, contract, cases, deadline=400)
    for name, likelihood, way in cases:
        assert_same(found[name, likelihood, way], expected(name, likelihood))
    for what, way in SPECIAL:
        assert_same(found[what, way], special(what))


def test_the_search_of_a_plain_network_moves():
    assert special("plain")["search"]["distance"] > 2e-6


def test_the_posteriors_are_not_uniform(expected):
    for likelihood in CRITERIA:
        a = expected("momentum", likelihood)["train"]["output.averaging._state"][:3]
        assert a.max() - a.min() > 1e-3


@pytest.mark.parametrize(("what", "way"), SPECIAL)
def test_special_runs_are_those_of_one_process(two, what, way):
    assert_same(two[what, way], special(what))


def test_copies_on_several_devices_exchange_nothing_of_the_size_of_the_classes(two):
    assert two["exchanged"] == 8 * 4  # rows times the larger of the head's inputs and the copies


def test_a_mixed_precision_policy(two):
    assert two["policy"]["last"] < two["policy"]["first"] - 0.1
    assert two["policy"]["dtype"] == two["policy"]["out"] == "torch.float32"


@pytest.mark.parametrize(
    ("what", "texts"),
    [
        ("copies", ["heads of 2 and 3 copies", "copies=…"]),
        ("sharded_copies", ["heads of 2 and 3 copies", "copies=…"]),
        ("seeds", ["weights of processes 0 and 1 differ", "torch.manual_seed"]),
        ("heads", ["weights of processes 0 and 1 differ", "torch.manual_seed"]),
        ("rates", ["different learning rates", "after torch.distributed is initialised"]),
        ("flattened", ["not the model's", "DeepSpeed", "fully_shard"]),
        ("older", ["FullyShardedDataParallel", "fully_shard"]),
        ("inside", ["FullyShardedDataParallel", "fully_shard"]),
        ("muon", ["Adafactor", "NAdam"]),
        ("part", ["2 processes", "spread over 1", "torch.distributed.checkpoint"]),
        ("smaller", ["2 processes", "spread over 1", "torch.distributed.checkpoint"]),
        ("collapse", ["full_state_dict=True"]),
    ],
)
def test_bad_input(two, what, texts):
    for text in texts:
        assert text in two["bad_input"][what]


@pytest.mark.slow
def test_the_code_on_the_page_runs_in_two_processes(tmp_path):
    code, written = torchrun("run_page.py", tmp_path, ROOT / "docs/how-to/scale.md")
    assert code == 0, written[-3000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first == second
