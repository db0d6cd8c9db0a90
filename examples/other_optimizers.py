"""Use other optimizers of torch with one rate per feature: NAdam, RMSprop, Muon.

Needs `pip install 'alrao[sklearn]'`. Usage: python examples/other_optimizers.py [--epochs 10]
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import alrao


def muon(model):
    """Give the matrices of the body to Muon, and everything else to AdamW."""
    matrices = [p for p in model.body_parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if not any(p is q for q in matrices)]
    groups = [{"params": matrices, "optimizer": torch.optim.Muon}, {"params": rest}]
    return alrao.PerFeature(torch.optim.AdamW, model, params=groups)


OPTIMIZERS = {
    "NAdam": lambda model: alrao.PerFeature(torch.optim.NAdam, model, lr=(1e-5, 1e-1), betas=(0.9, 0.99)),
    "RMSprop": lambda model: alrao.PerFeature(torch.optim.RMSprop, model, lr=(1e-5, 1e-1)),
}
if hasattr(torch.optim, "Muon"):  # since torch 2.9
    OPTIMIZERS["Muon and AdamW"] = muon


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels)
    train, test = torch.randperm(len(x)).split([1400, 397])
    for name, make in OPTIMIZERS.items():
        model = alrao.Alrao(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
        optimizer = make(model)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
        for _ in range(args.epochs):
            for rows in train[torch.randperm(len(train))].split(32):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
            scheduler.step()
        with torch.no_grad():
            accuracy = (model(x[test]).argmax(1) == y[test]).float().mean()
        print(f"Alrao on {name}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
