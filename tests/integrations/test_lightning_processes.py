"""Lightning trains Alrao models on two processes, whole or in shards, as on one."""

import pytest
import torch
from support import lightning_ranks, lightning_shards
from support.lightning_modules import Module, loader, trainer
from support.processes import as_by_torchrun

import alrao

pytestmark = [
    pytest.mark.slow,
    # Lightning's own use of torch's trees.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    # On machines with more cores than these tests need.
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]


def test_two_processes_are_one(tmp_path):
    as_by_torchrun(lightning_ranks.main, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in first["model"].items():
        assert torch.equal(value, second["model"][name]), name
    for one, two in zip(first["rates"], second["rates"], strict=True):
        assert torch.equal(one, two)
    torch.manual_seed(7)
    alone = Module(lr=(1e-2, 1.0), momentum=0.5)
    torch.manual_seed(100)  # as the first rank
    trainer(3).fit(alone, loader(16))
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(first["model"][name], value, rtol=1e-5, atol=1e-6)


def test_two_shards_are_one_process(tmp_path):
    as_by_torchrun(lightning_shards.main, 2, tmp_path)
    found = torch.load(tmp_path / "0.pt", weights_only=True)
    kinds = {"sgd": (alrao.SGD, {"lr": (1e-2, 1.0), "momentum": 0.5}), "auto": (alrao.Auto, {"steps": 9})}
    for name, (kind, options) in kinds.items():
        torch.manual_seed(7)
        alone = Module(optimizer=kind, **options)
        torch.manual_seed(9)
        trainer(3).fit(alone, loader(16))
        for key, value in alone.model.state_dict().items():
            torch.testing.assert_close(found[name][key], value, rtol=1e-5, atol=1e-6)
