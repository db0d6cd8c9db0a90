"""Runs on a Ray cluster: the same results as on one machine, whatever dies; and what cannot be."""

import platform
import re
import sys
import threading
import time

import pytest
from lab_support.runs import outcome, settings

from alrao_lab.cli.app import cli
from alrao_lab.errors import LabError
from alrao_lab.runset import Comparison
from alrao_lab.spread import Processes, Ray, _run_on_node, _versions, pick_spread

SMALL = {"train_size": 100, "epochs": 1, "threads": 1}


def compared(root, methods, seeds=1, **changes):
    wanted = settings(**{**SMALL, **changes})
    return Comparison(wanted, methods.split(","), seeds=seeds, grid_seeds=1, roots=[root])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"backend": "rai"}, "unknown value of --backend 'rai': did you mean ray?"),
        ({"gpus": 0.25}, r"--gpus 0.25 is for --backend ray: add it, or use --device cuda"),
        ({"backend": "ray", "gpus": 1.5}, r"a part of one GPU, such as 0.25, or a whole number, got 1.5"),
        ({"backend": "ray", "gpus": -1.0}, "or a whole number, got -1"),
        ({"backend": "ray", "gpus": float("nan")}, "or a whole number, got nan"),
    ],
)
def test_options_that_cannot_be(words, message):
    with pytest.raises(LabError, match=message):
        pick_spread(**words)


def test_options():
    assert pick_spread() == Processes()
    assert pick_spread("joblib", 3) == Processes(3)
    assert pick_spread("ray", None, 0.25) == Ray(None, 0.25)
    assert pick_spread("ray", 8, 2) == Ray(8, 2.0)


@pytest.mark.parametrize("command", ["compare digits", "triangle digits", "suite", "reproduce theorem"])
def test_commands_that_take_a_backend(command):
    with pytest.raises(LabError, match=r"--gpus 0.25 is for --backend ray"):
        cli.main([*command.split(), "--gpus", "0.25"], standalone_mode=False)


def test_ray_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"--backend ray needs the package ray, which is not installed: pip install 'alrao-lab\[ray\]'"
    with pytest.raises(LabError, match=message):
        compared(tmp_path, "adam").run(Ray())


def on_node(root, sign="sign", versions=None, **changes):
    (root / "sign").touch()
    wanted = settings(**{**SMALL, **changes})
    return _run_on_node(5, wanted, [root], 0.0, root / sign, versions or _versions())


def test_nodes_that_lack_something(tmp_path):
    node = platform.node()
    assert on_node(tmp_path, "unseen") == (
        5, f"the node {node} does not see the directory of runs {tmp_path}: give --out a directory on a "
        "file system that all nodes share",
    )  # fmt: skip
    _, error = on_node(tmp_path, versions="alrao 0.0.1 and torch 1.0")
    assert error == (
        f"the node {node} has {_versions()}, and this one alrao 0.0.1 and torch 1.0: install the same on all"
    )
    _, error = on_node(tmp_path, task="cifar10", data="/nowhere")
    assert error.startswith(f"on the node {node}: /nowhere, which --data names, does not exist; ")
    assert on_node(tmp_path) == (5, None)


# With a real cluster. Ray leaves files and sockets open when it shuts down.


@pytest.fixture
def cluster():
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    nodes = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    nodes.second = nodes.add_node(**size)

    def warm():
        """A worker of each node has imported the workbench before the test."""
        import alrao_lab.spread  # noqa: F401

        time.sleep(3)

    try:
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
        ray.get([ray.remote(warm).remote() for _ in range(2)])
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def owners(root):
    """The process that held each run last."""
    return {path: path.read_text() for path in root.rglob(".owner")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_a_node_dies(tmp_path, cluster, capsys):
    long = {"epochs": 12, "train_size": 800}
    here, there = (compared(tmp_path / name, "alrao,adam", seeds=2, **long) for name in ("here", "there"))
    here.run(Processes())
    done = threading.Thread(target=lambda: there.run(Ray()))
    done.start()
    end = time.monotonic() + 200
    while len({text.split()[1] for text in owners(tmp_path / "there").values()}) < 2:  # a run on each node
        assert time.monotonic() < end
        time.sleep(0.01)
    begun = owners(tmp_path / "there")
    cluster.remove_node(cluster.second, allow_graceful=False)
    done.join()
    assert there.failed == {}
    for a, b in zip(here.runs, there.runs, strict=True):
        assert without_config(a) == without_config(b)
    again = [path for path, owner in begun.items() if owners(tmp_path / "there")[path] != owner]
    assert len(again) == 1, "one run was started again"
    cli.main(
        f"compare digits --backend ray --methods adam --out {tmp_path}/there --epochs 1 --seeds 1".split(),
        standalone_mode=False,
    )
    assert re.search(r"Adam\W+\d+\.\d+", capsys.readouterr().out)
    with pytest.raises(LabError, match=r"--gpus 0.25 is more than any node of the Ray cluster has \(0\)"):
        compared(tmp_path, "adam").run(Ray(gpus=0.25))
    cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=80 * 2**20)  # as Ray counts them
    shared = compared(tmp_path / "shared", "adam", device="cpu")
    shared.run(Ray(gpus=0.25))
    assert shared.failed == {}
    with pytest.raises(LabError, match=r"--threads 64 is more than any node of the Ray cluster has \(1\)"):
        compared(tmp_path, "adam", threads=64).run(Ray())


def without_config(run):
    said = outcome(run)
    del said["config.json"]
    return said
