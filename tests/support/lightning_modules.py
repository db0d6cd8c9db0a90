"""A Lightning module, data and a quiet trainer: shared by tests and the processes that they start."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alrao
from support.vision import torchvision  # noqa: F401  before Lightning imports it

pytest.importorskip("lightning", reason="needs alrao[lightning]")

import lightning.pytorch as pl

ROWS = 48


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def table():
    x = torch.randn(ROWS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, x[:, :3].argmax(1))


def loader(batch=16):
    return DataLoader(table(), batch)


class Module(pl.LightningModule):
    """A classifier as users write it."""

    def __init__(self, copies=4, optimizer=alrao.SGD, scheduled=False, **options):
        super().__init__()
        self.model = alrao.Alrao(network(), copies, keep_output=copies == 1)
        self.kind, self.scheduled, self.options = optimizer, scheduled, options

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = self.kind(self.model, **self.options)
        if not self.scheduled:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def trainer(epochs=2, *, kind=pl.Trainer, **options):
    quiet = dict.fromkeys(
        ["enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"], False
    )
    return kind(**{"max_epochs": epochs, "accelerator": "cpu", "devices": 1, **quiet, **options})


def seeded(make, *args, **kwargs):
    torch.manual_seed(7)
    return make(*args, **kwargs)
