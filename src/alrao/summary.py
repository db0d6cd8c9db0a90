"""A table of a network: layers, features, rates, parameters before and after conversion."""

from __future__ import annotations

from torch import nn

from .features import features_of
from .optim import AlraoOptimizer
from .posterior import posterior_bar
from .trainable import Trainable, find_alrao, joined, unwrapped


def summary(model: Trainable, optimizer: AlraoOptimizer | None = None) -> str:
    """Return a table of the model's layers, with features, rates and parameters, and its posterior.

    Args:
        model: an :class:`Alrao` model, a plain network, or anything else that the optimizers take.
        optimizer: its optimizer, for the rates; without it they are left out.
    """
    alrao = find_alrao(model)
    net = unwrapped(model) if isinstance(model, nn.Module) else joined(model)[0]
    net = net if alrao is None else alrao.net
    head = None if alrao is None else alrao.head
    trained = {p for group in optimizer.param_groups for p in group["params"]} if optimizer else set()
    names = {module: name for name, module in net.named_modules()}
    rows = [("layer", "type", "features", "rates", "parameters", "with Alrao")]
    before = after = features = 0
    for module, numbers in features_of(net):
        own = [module.get_parameter(name) for name in numbers]
        count = len({int(n) for number in numbers.values() for n in number.flatten().tolist()})
        size = sum(p.numel() for p in own)
        plain = size // head.copies if head is not None and module is head else size
        known = [optimizer.rates(p) for p in own if p in trained and p.numel()] if optimizer else []
        rates = "–"
        if known:
            low, high = min(float(r.min()) for r in known), max(float(r.max()) for r in known)
            rates = f"{low:.1e} … {high:.1e}"
        name = names.get(module) or "(net)"
        rows.append((name, type(module).__name__, str(count), rates, f"{plain:,}", f"{size:,}"))
        before, after, features = before + plain, after + size, features + count
    rows.append(("total", "", str(features), "", f"{before:,}", f"{after:,}"))
    columns = len(rows[0]) - (alrao is None)  # a plain network has the same parameters "with Alrao"
    widths = [max(len(row[i]) for row in rows) for i in range(columns)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] for row in rows)
    lines = ["  ".join(cells).rstrip() for cells in padded]
    rule = "-" * max(map(len, lines))
    last = "no copies: a plain network, with any loss"
    if alrao is not None:
        bar = f"|{posterior_bar(alrao.posterior)}|"
        if optimizer is not None:
            low, high = optimizer.copy_rates()[[0, -1]].tolist()
            bar = f"{low:.3g} {bar} {high:.3g}"
        last = f"posterior of the copies: {bar}"
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], last])
