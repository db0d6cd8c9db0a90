"""Compare Auto with SGD at seven learning rates and Adam on scikit-learn's digits.

All methods use the same network, loop and number of steps; nothing is tuned for Auto. `make demo` does the
same with the workbench. Needs `pip install rich 'alrao[sklearn]'`. Usage:
python examples/quickstart.py [--epochs 30] [--seeds 3]
"""

import argparse
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn

import alrao

RATES = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0]


def split_digits():
    """Return images and labels of a training, a validation and a test set."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return [(x[part], y[part]) for part in order.split([1000, 397, 400])]


def network():
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )  # fmt: skip


def method(name):
    """Return a model and its optimizer."""
    net = network()
    if name == "Auto":
        model = alrao.Alrao(net)
        return model, alrao.Auto(model)  # no learning rate to choose
    if name == "Adam":
        return net, torch.optim.Adam(net.parameters())
    return net, torch.optim.SGD(net.parameters(), lr=float(name.removeprefix("SGD ")))


def train(name, seed, epochs, data, progress, task):
    """Train once; return validation loss, test loss and test accuracy of the best epoch, and the model."""
    torch.manual_seed(seed)
    (x, y), validation, test = data
    model, optimizer = method(name)
    best = (float("inf"), float("inf"), 0.0)
    for _ in range(epochs):
        model.train()
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        model.eval()  # Auto's averaged weights
        with torch.no_grad():
            losses = [F.cross_entropy(model(inputs), labels).item() for inputs, labels in (validation, test)]
            accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
        best = min(best, (*losses, accuracy))
        progress.advance(task)
    return best, model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = split_digits()
    names = [*(f"SGD {rate:g}" for rate in RATES), "Adam", "Auto"]
    results = {name: [] for name in names}
    with Progress(transient=True) as progress:
        task = progress.add_task("training", total=len(names) * args.seeds * args.epochs)
        for name in names:
            for seed in range(args.seeds):
                progress.update(task, description=f"{name}, seed {seed}")
                result, model = train(name, seed, args.epochs, data, progress, task)
                results[name].append(result)

    def spread(values, scale=1.0, digits=3):
        values = [scale * value for value in values]
        deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{mean(values):.{digits}f}{deviation}"

    chosen = min(names[: len(RATES)], key=lambda name: mean(r[0] for r in results[name]))
    table = Table(title=f"digits, MLP 64-128-128-10, {args.epochs} epochs, {args.seeds} seeds, best epoch")
    for column in ("method", "test loss", "test accuracy, %", "runs to tune"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in names:
        cells = [spread([r[1] for r in results[name]]), spread([r[2] for r in results[name]], 100, 1)]
        label = f"{name} (best on validation)" if name == chosen else name
        tuning = str(len(RATES)) if name.startswith("SGD") else "1"
        style = "bold green" if name == "Auto" else "bold" if name == chosen else None
        table.add_row(label, *cells, tuning, style=style)
    console = Console()
    console.print(table)
    console.print("The posterior over the copies of the head of the last Alrao model:")
    console.print(str(model).splitlines()[1].strip(), highlight=False)


if __name__ == "__main__":
    main()
