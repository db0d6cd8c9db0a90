"""Count what makes the host wait for a device, and what it launches there: shared by test files."""

from collections import Counter
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

T = torch.Tensor
CALLS = {
    T.item, T.tolist, T.numpy, T.cpu, T.__bool__, T.__float__, T.__int__, T.__index__, T.nonzero, T.equal,
    torch.nonzero, torch.equal, torch.is_nonzero, torch.tensor, torch.as_tensor, torch.from_numpy,
    T.is_meta.__get__,
}  # fmt: skip
"""Reads, tensors made of Python numbers, and the question whether a tensor has any numbers."""

OPERATIONS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "lift_fresh",
    "_unique",
    "is_nonzero",
    "equal",
)


class _Calls(TorchFunctionMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in CALLS:
            self.found[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in OPERATIONS:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


VIEWS = (
    "view", "permute", "t", "transpose", "unsqueeze", "squeeze", "expand", "slice", "select", "detach",
    "alias", "as_strided", "split", "split_with_sizes", "unbind", "_reshape_alias", "view_as_real",
)  # fmt: skip
"""Operations that launch nothing on a device."""


class Launches(TorchDispatchMode):
    """Counts the operations inside, by their names, without views."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name not in VIEWS:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def reads():
    """Count the reads inside, by their names."""
    found = Counter()
    with _Calls(found), _Operations(found):
        yield found
