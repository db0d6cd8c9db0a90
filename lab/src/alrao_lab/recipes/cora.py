"""Cora for programs that read it in another form: the graph and the split of Kipf and Welling."""

from __future__ import annotations

import torch
from torch import Tensor

from ..settings import Settings
from ..tasks.graphs import Cora


def load_data() -> tuple[Tensor, ...]:
    """Return the normalised graph, the features, the labels, and the nodes of each part, as pygcn does."""
    problem = _problem()
    nodes = [problem.parts[name].inputs for name in ("train", "valid", "test")]
    return problem.graph.coalesce(), problem.features.to_dense(), problem.labels, *nodes


def load_cora(device: str | torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the features, the labels and the normalised graph, as the example of pytorch/examples does."""
    problem = _problem()
    return problem.features.to(device), problem.labels.to(device), problem.graph.to(device)


def _problem() -> Cora:
    return Cora().load(Settings(task="cora"), torch.device("cpu"))
