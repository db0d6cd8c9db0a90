"""Batches as lists, and the message of a refusal: shared by the tests of texts."""

import pytest

from alrao.lab.errors import LabError


def listed(batches):
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in batches]


def check_refusal(action, *args, **kwargs):
    with pytest.raises(LabError) as caught:
        action(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message
