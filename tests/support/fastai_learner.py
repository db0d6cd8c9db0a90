"""Run in a process of its own, for fastai changes torch.Tensor for all that comes after it.

Usage: python tests/support/fastai_learner.py folder page
"""

import functools
import os
import re
import sys
import warnings
from pathlib import Path

from vision import torchvision  # noqa: F401  before fastai imports it

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what torch and pandas have deprecated
    from fastai.callback.training import GradientClip
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper

import torch
import torch.nn.functional as F
from torch import nn

import alrao


def run(page):
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", Path(page).read_text("utf-8"), re.M | re.S):
        exec(compile(block, page, "exec"), names)
    rows, plain = names["x"], names["plain"]
    assert (plain(rows).argmax(1) == rows[:, :3].argmax(1)).double().mean() > 0.9


def made(converted):
    torch.manual_seed(0)
    x = torch.randn(48, 4)
    rows = list(zip(x, x[:, :3].argmax(1), strict=True))
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    model = alrao.Alrao(net) if converted else net
    return Learner(
        DataLoaders(DataLoader(rows, bs=12), DataLoader(rows, bs=48)), model,
        loss_func=F.cross_entropy, opt_func=functools.partial(OptimWrapper, opt=alrao.Auto), lr=1.0,
        splitter=lambda _: [list(net[0].parameters()), list(net[2].parameters())], cbs=GradientClip(1.0),
    )  # fmt: skip


def main(converted):
    learner = made(converted)
    with learner.no_bar(), learner.no_logging():
        learner.fit(2)
        learner.freeze()  # which clears the state
        first = next(learner.model.parameters())
        before = first.detach().clone()
        learner.fit(1)
        assert torch.equal(first, before)
        learner.unfreeze()
        learner.fit(100)
        optimizer = learner.opt.opt
        assert (optimizer.model is learner.model) is converted
        assert len(optimizer.param_groups) == 2
        if not converted:
            optimizer.eval()
        assert learner.validate()[0] < 0.6
        for p, state in optimizer.state.items():
            beta = state.get("beta", 0.5)
            average = (state["y"] - (1 - beta) * state["z"]) / beta
            torch.testing.assert_close(p.detach(), average, rtol=1e-3, atol=1e-5)
        learner.save("both")
        again = made(converted)
        again.load("both")
        for each in (learner, again):
            with each.no_bar(), each.no_logging():
                each.opt.opt.train()
                each.fit(2)
    assert all(map(torch.equal, learner.model.parameters(), again.model.parameters()))


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "numpy.core is deprecated", DeprecationWarning)  # fastai's load
    folder, page = sys.argv[1:]
    os.chdir(folder)
    torch.set_num_threads(1)
    run(page)
    main(converted=False)
    main(converted=True)
