"""Run directories made up for the tests of the report: no training, known numbers."""

import dataclasses
import json

import plotly.graph_objects as go

from alrao_lab.settings import Settings

SGD_RATES = ("1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10")
SGD_LOSSES = (2.3, 2.29, 2.2, 1.1, 0.2, 0.15, None)  # the last diverged


def defaults(method):
    alrao = method.startswith("alrao")
    interval = "1e-06:1" if method == "alrao-adam" else "1e-05:10"
    return {"model": "mlp", "epochs": 4, "batch": 32} | (
        {"lr": interval, "copies": 10} if alrao else {"copies": None}
    )


def make_run(
    root, method, seed=0, loss=0.3, *, epochs=4, finished=True, diverged=None, features=None, **settings
):
    """Write a run whose test loss falls from 2.3 to ``loss`` over its epochs; the directory.

    ``diverged`` is the epoch in which it does; the line of that epoch holds no numbers.
    """
    config = dataclasses.asdict(Settings(seed=seed)) | defaults(method) | {"method": method} | settings
    name = f"{method.replace(':', '_')}-{config['lr'] or ''}-{seed}".replace(":", "_").replace("/", "_")
    path = root / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"settings": config, "data": {"train": 1000}}))
    lines = []
    for epoch in range(1, (diverged or epochs) + 1):
        value = 2.3 + (loss - 2.3) * epoch / epochs + 0.01 * seed if loss is not None else 3.0
        gone = epoch == diverged
        line = {"epoch": epoch, "step": 32 * epoch, "seconds": 1.0 * epoch}
        line["train"] = {"loss": None if gone else 0.5 * value}
        for part in ("valid", "test"):
            line[part] = (
                {"loss": None, "accuracy": None} if gone else {"loss": value, "accuracy": 1 - value / 3}
            )
        if method.startswith("alrao"):
            line["posterior"] = [
                [step, [0.55 if j == (7 if step < 64 else 5) else 0.05 for j in range(10)]]
                for step in range(32 * epoch - 31, 32 * epoch + 1, 8)
            ]
        lines.append(line)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        best = lines[-1] if not diverged else None
        rates = [1e-5 * 1e6 ** (j / 9) for j in range(10)] if method.startswith("alrao") else None
        result = {
            "status": "diverged" if diverged else "finished",
            "diverged_at": 32 * diverged if diverged else None,
            "measures": ["loss", "accuracy"], "epochs": len(lines), "steps": 32 * len(lines),
            "seconds": 1.0 * len(lines), "best_epoch": len(lines) if best else None,
            **{part: best[part] if best else None for part in ("train", "valid", "test")},
            "parameters": 100, "copy_rates": rates,
        }  # fmt: skip
        (path / "result.json").write_text(json.dumps(result))
    if features is not None:
        (path / "features.json").write_text(json.dumps({"layers": features}))
    return path


FEATURES = [
    {
        "name": "net.1.weight",
        "rates": [1e-5, 1e-3, 0.1, 1, 10],
        "start": [1, 1, 2, 1, 1],
        "moved": [1e-6, 1e-3, 0.2, 5, 100],
    },
    {"name": "net.3.weight", "rates": [1e-4, 1], "start": [1, 1], "moved": [1e-4, None], "dead": 1},
]


def full_experiment(root):
    """Every figure that the report knows."""
    for seed in (0, 1):
        make_run(root, "alrao", seed, 0.2, features=FEATURES if seed == 0 else None)
        make_run(root, "adam", seed, 0.25)
        make_run(root, "alrao-adam", seed, 0.4)
        make_run(root, "prodigy", seed, 0.22)
    for rate, loss in zip(SGD_RATES, SGD_LOSSES, strict=True):
        make_run(root, f"sgd@{rate}", 0, loss, diverged=2 if loss is None else None)
    make_run(root, "sgd@1", 1, 0.15)
    make_run(root, "adam@0.01", 0, 0.35)
    make_run(root, "adam@0.1", 0, 1.8)
    for fraction in ("0", "0.25", "1"):
        make_run(root, f"frozen@0.1:{fraction}", 0, 2.0 - 1.7 * float(fraction) ** 0.1)
    for low, high, loss in (
        ("0.001", "10", 0.3),
        ("0.1", "10", 0.25),
        ("0.001", "0.1", 0.8),
        ("1", "10", None),
    ):
        make_run(root, "alrao", 0, loss, lr=f"{low}:{high}", diverged=1 if loss is None else None)
    return root


def drawn(figure):
    """The traces of a figure, after plotly has checked every name and value in it."""
    return go.Figure(data=figure.plot.data, layout=figure.plot.layout).data
