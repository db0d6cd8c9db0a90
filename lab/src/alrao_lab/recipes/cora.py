"""Cora for programs that read it in another form: the graph and the split of Kipf and Welling."""

from __future__ import annotations

import torch
from torch import Tensor

from ..settings import Settings
from ..tasks.graphs import Cora


def load_data() -> tuple[Tensor, ...]:
    """Return the normalised graph, the features, the labels, and the nodes of each part, as pygcn does."""
    problem = Cora().load(Settings(task="cora"), torch.device("cpu"))
    features = problem.features.to_dense()
    labels = torch.zeros(len(features), dtype=torch.long)
    for part in problem.parts.values():
        labels[part.inputs] = part.targets
    nodes = [problem.parts[name].inputs for name in ("train", "valid", "test")]
    return problem.graph.coalesce(), features, labels, *nodes
