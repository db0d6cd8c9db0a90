"""Cora, a graph of papers that cite each other."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import LabError, optional
from ..settings import Settings
from ..zoo.modern import GraphConvolutions
from .files import data_path, readable, short_digest
from .task import Budget, Classification, Data, InMemory, Part

FILES = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
WANTED = "put Planetoid's files ind.cora.* into a directory cora and name the one above with --data"
VALID = 500
"""Papers for validation, after those of the training, as Planetoid has them."""


class _Unpickler(pickle.Unpickler):
    """Reads arrays of numpy and matrices of scipy, and nothing else."""

    known = ("numpy", "scipy.sparse")
    plain = ("list", "defaultdict")

    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith(self.known) and name not in self.plain:
            raise LabError(f"a file of Cora holds a {module}.{name}, which it never does: fetch it again")
        return super().find_class(module, name)


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in FILES:
        path = folder / f"ind.cora.{name}"
        if not path.exists():
            raise LabError(f"there is no {path.name} in {folder}: {WANTED}")
        with readable(path), path.open("rb") as file:
            if name == "test.index":
                found[name] = np.loadtxt(file, dtype=np.int64)
            else:
                found[name] = _Unpickler(file, encoding="latin1").load()
    return found


def _normalised(neighbours: dict[int, list[int]], nodes: int) -> Tensor:
    """The adjacency with loops, divided by the roots of both degrees."""
    pairs = {(i, j) for i, many in neighbours.items() for j in many}
    pairs |= {(j, i) for i, j in pairs} | {(i, i) for i in range(nodes)}
    index = torch.tensor(sorted(pairs)).T
    degree = torch.bincount(index[0], minlength=nodes).double()
    values = (degree[index[0]] * degree[index[1]]).rsqrt().float()
    return torch.sparse_coo_tensor(index, values, (nodes, nodes), check_invariants=True)


class Cora(Classification, InMemory):
    """Cora, the subject of a paper by its words and its citations, 140 known (--data)."""

    models = ("gcn",)
    mini = Budget(epochs=20, batch=140, seeds=3)
    paper = Budget(epochs=200, batch=140, seeds=10)  # not in the paper
    options = frozenset({"width"})

    def read(self, settings: Settings) -> Data:
        sparse = optional("scipy.sparse", "lab", "reading Cora", "scipy")
        place = data_path(settings.data, WANTED)
        found = _read(place / "cora" if (place / "cora").is_dir() else place)
        test = found["test.index"]
        order = np.concatenate([np.arange(len(found["ally"])), test])
        rows = sparse.vstack([found["allx"], found["tx"]]).tocsr()
        labels = np.concatenate([found["ally"], found["ty"]]).argmax(1)
        rows, labels = rows[np.argsort(order)], labels[np.argsort(order)]
        rows = sparse.diags(1 / np.maximum(1, np.asarray(rows.sum(1)).ravel())) @ rows
        coo = rows.tocoo()
        index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        self.features = torch.sparse_coo_tensor(
            index, torch.from_numpy(coo.data).float(), coo.shape, check_invariants=True
        )
        self.graph = _normalised(found["graph"], len(labels))
        known = len(found["y"])
        nodes = {"train": np.arange(known), "valid": np.arange(known, known + VALID), "test": np.sort(test)}
        self.labels = torch.from_numpy(labels).long()
        parts = {name: Part(torch.from_numpy(which), self.labels[which]) for name, which in nodes.items()}
        identity = short_digest(coo.data.tobytes(), labels.tolist(), str(sorted(found["graph"].items())))
        return parts, identity, {"source": "Planetoid", "classes": int(labels.max()) + 1}

    def network(self) -> nn.Module:
        return GraphConvolutions(self.features, self.graph, self.about["classes"], self.settings.width)
