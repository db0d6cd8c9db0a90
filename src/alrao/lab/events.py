"""TensorBoard event files of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import missing

__all__ = ["EventFiles"]


class EventFiles:
    """Writes the lines of the epochs as scalars, and the posterior's trace.

    Args:
        path: the run's directory.
        lines: of the epochs before, when a run goes on: what an earlier process wrote past them is void.
    """

    def __init__(self, path: Path, lines: list[dict[str, Any]]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing("tensorboard", "tensorboard", "--tensorboard") from None
        purge = lines[-1]["step"] + 1 if lines else 0
        self._writer = SummaryWriter(str(path / "tensorboard"), purge_step=purge)

    def epoch(self, line: dict[str, Any]) -> None:
        """Write the line of an epoch."""
        for part in ("train", "valid", "test"):
            for name, value in line[part].items():
                self._writer.add_scalar(f"{name}/{part}", value, line["step"])
        for step, weights in line.get("posterior", ()):
            for copy, weight in enumerate(weights):
                self._writer.add_scalar(f"posterior/copy {copy}", weight, step)
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()
