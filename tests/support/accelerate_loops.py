"""A model, its data, and a training loop by Accelerate."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import alrao
from support.hf_models import COPIES


def made(seed=0):
    torch.manual_seed(seed)
    model = alrao.Alrao(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double(), COPIES)
    return model, alrao.SGD(model, lr=(1e-2, 1.0), momentum=0.9)


def data(batch=8):
    x = torch.randn(48, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch)


def accelerated(accelerator, model, optimizer, loader, epochs=2, clip=None):
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if clip is not None and accelerator.sync_gradients:
                    accelerator.unwrap_model(model).clip_grad_norm_(clip)
                optimizer.step()
                optimizer.zero_grad()
