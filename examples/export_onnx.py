"""Train, export to ONNX, and run the file with onnxruntime.

Needs `pip install 'alrao[onnx,sklearn]'`. Usage:
python examples/export_onnx.py [--steps 300] [--file digits.onnx]
"""

import argparse
import tempfile
from pathlib import Path

import onnxruntime
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import alrao


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--file", type=Path, default=Path(tempfile.mkdtemp()) / "digits.onnx")
    args = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels)

    model = alrao.Alrao(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = alrao.Auto(model)  # no learning rate
    for _ in range(args.steps):
        batch = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()

    plain = model.eval().collapse(mixture=True)  # log-probabilities; without mixture=True: one copy's logits
    any_batch = {0: torch.export.Dim("batch")}
    torch.onnx.export(
        plain, (x[:2],), args.file,
        input_names=["x"], output_names=["log_probabilities"], dynamic_shapes=(any_batch,), verbose=False,
    )  # fmt: skip

    session = onnxruntime.InferenceSession(args.file)
    (out,) = session.run(None, {"x": x.numpy()})
    difference = (torch.from_numpy(out) - model(x)).abs().max().item()
    accuracy = (torch.from_numpy(out).argmax(1) == y).float().mean().item()
    print(f"Alrao: accuracy {accuracy:.1%} in onnxruntime; largest difference from torch {difference:.1e}")


if __name__ == "__main__":
    main()
