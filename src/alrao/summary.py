"""A table of the converted network: layers, features, rates, parameters before and after."""

from __future__ import annotations

from torch import nn

from .averaging import posterior_bar
from .features import features_of
from .optim import AlraoOptimizer
from .trainable import unwrap

__all__ = ["summary"]


def summary(model: nn.Module, optimizer: AlraoOptimizer | None = None) -> str:
    """Return a table of the model's layers, with features, rates and parameters, and its posterior.

    Args:
        model: an :class:`Alrao` model.
        optimizer: its optimizer, for the rates; without it they are left out.
    """
    alrao = unwrap(model)
    trained = {p for group in optimizer.param_groups for p in group["params"]} if optimizer else set()
    names = {module: name for name, module in alrao.net.named_modules()}
    rows = [("layer", "type", "features", "rates", "parameters", "with Alrao")]
    before = after = features = 0
    for module, numbers in features_of(alrao.net):
        own = [module.get_parameter(name) for name in numbers]
        count = len({int(n) for number in numbers.values() for n in number.flatten().tolist()})
        size = sum(p.numel() for p in own)
        plain = size // alrao.head.copies if module is alrao.head else size
        known = [optimizer.rates(p) for p in own if p in trained and p.numel()] if optimizer else []
        rates = "–"
        if known:
            low, high = min(float(r.min()) for r in known), max(float(r.max()) for r in known)
            rates = f"{low:.1e} … {high:.1e}"
        rows.append(
            (
                names.get(module, "") or "(net)",
                type(module).__name__,
                str(count),
                rates,
                f"{plain:,}",
                f"{size:,}",
            )
        )
        before, after, features = before + plain, after + size, features + count
    rows.append(("total", "", str(features), "", f"{before:,}", f"{after:,}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    rule = "-" * max(map(len, lines))
    bar = f"|{posterior_bar(alrao.posterior)}|"
    if optimizer is not None:
        low, high = optimizer.copy_rates()[[0, -1]].tolist()
        bar = f"{low:.3g} {bar} {high:.3g}"
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], f"posterior of the copies: {bar}"])
