"""Data of the workbench as tests read it: image folders as problems, batches as lists, refusals."""

import pytest
import torch

from alrao_lab.errors import LabError
from alrao_lab.settings import Settings
from alrao_lab.tasks import get_task

CPU = torch.device("cpu")
SMALL = {"model": "mobilenet_v3_small", "image_size": 32, "batch": 8, "workers": 0}


def load(task, data, **settings):
    data = None if data is None else str(data)
    return get_task(task).load(Settings(task=task, data=data, **{**SMALL, **settings}), CPU)


def check_refusal(action, *args, **kwargs):
    """Calling it gives an error of one line: its message."""
    with pytest.raises(LabError) as caught:
        action(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def check_refused(task, data, *words, **settings):
    """Loading it gives an error whose message has the words, in one line."""
    message = check_refusal(load, task, data, **settings)
    for word in words:
        assert word in message


def sizes(problem):
    return {name: len(part) for name, part in problem.parts.items()}


def paths(part):
    return [part.path(number) for number in range(len(part))]


def equal(first, second):
    first, second = list(first), list(second)
    return len(first) == len(second) and all(
        torch.equal(a, b)
        for one, two in zip(first, second, strict=True)
        for a, b in zip(one, two, strict=True)
    )


def listed(batches):
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in batches]
