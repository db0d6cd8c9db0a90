"""The message of a refusal of the workbench: shared by test files."""

import pytest

from alrao.lab.errors import LabError


def check_refusal(action, *args, **kwargs):
    with pytest.raises(LabError) as caught:
        action(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message
