"""Lightning trains plain networks under Auto as a plain loop does, with validation in between."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.lightning_modules import loader, network, pl, trainer
from torch import nn

import alrao
from alrao.integrations.lightning import AlraoCallback, MisconfigurationException

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]


def loss_of(net, x):
    return F.l1_loss(net(x), x[:, :3].sin())


class Module(pl.LightningModule):
    """As users write it: no forward, the optimizer trains the module itself."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.averaged = []

    def training_step(self, batch, index):
        return loss_of(self.net, batch[0])

    def validation_step(self, batch, index):
        self.averaged = [p.detach().clone() for p in self.parameters()]

    def configure_optimizers(self):
        torch.manual_seed(1)
        return alrao.Auto(self, steps=14)


class Manual(Module):
    """Gradients, step, and only then zero_grad: as in Lightning's page on GANs."""

    def __init__(self, net):
        super().__init__(net)
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        self.manual_backward(loss_of(self.net, batch[0]))
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("kind", "callbacks"), [(Module, []), (Manual, [AlraoCallback()])])
def test_validation_sees_the_average_and_changes_no_training(kind, callbacks):
    net = network()
    twin = copy.deepcopy(net)
    module = kind(net)
    options = {"callbacks": callbacks, "num_sanity_val_steps": 0}
    fitted = trainer(4, **options)
    fitted.fit(module, loader(), loader())
    torch.manual_seed(1)
    optimizer = alrao.Auto(nn.ModuleList([twin]), steps=14)
    for _ in range(4):
        for x, _ in loader():
            optimizer.zero_grad()
            loss_of(twin, x).backward()
            optimizer.step()
    module.train()  # Lightning has restored the mode without a call
    assert all(map(torch.equal, net.parameters(), twin.parameters()))
    optimizer.eval()
    for seen, p in zip(module.averaged, twin.parameters(), strict=True):
        torch.testing.assert_close(seen, p.detach())
    if callbacks:
        rate = fitted.optimizers[0].param_groups[0]["d"]
        assert fitted.callback_metrics["alrao/lr"].item() == pytest.approx(rate)


def test_without_the_callback_manual_optimization_warns():
    with pytest.warns(UserWarning, match=r"without a call of train\(\).*AlraoCallback"):
        trainer(3, num_sanity_val_steps=0).fit(Manual(network()), loader(), loader())


def test_the_callback_refuses_a_module_without_anything_of_alrao():
    class Other(Module):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(MisconfigurationException, match="an Alrao model or an optimizer of alrao"):
        trainer(1, callbacks=[AlraoCallback()]).fit(Other(network()), loader(), loader())
