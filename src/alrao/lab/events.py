"""TensorBoard event files of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import LabError, optional

FOLDER = "tensorboard"


def event_files(path: Path) -> list[Path]:
    """Return the event files of a run."""
    return list((path / FOLDER).glob("events.out.tfevents.*"))


class EventFiles:
    """Writes the measures of each epoch, and the posterior, to a run's directory.

    The lines of the epochs hold everything to write, so that a resumed run writes its files again: they are
    then complete, without duplicates.
    """

    def __init__(self, path: Path, lines: list[dict[str, Any]]) -> None:
        module = optional("torch.utils.tensorboard", "tensorboard", "--tensorboard", "tensorboard")
        for old in event_files(path):
            old.unlink(missing_ok=True)
        try:
            self._writer = module.SummaryWriter(str(path / FOLDER))
        except OSError as error:
            raise LabError(f"{path / FOLDER} could not be written: {error.strerror or error}") from error
        for line in lines:
            self.epoch(line)

    def epoch(self, line: dict[str, Any]) -> None:
        """Write the line of an epoch."""
        for part in ("train", "valid", "test"):
            for name, value in line[part].items():
                self._add(f"{name}/{part}", value, line["step"])
        for step, weights in line.get("posterior", ()):
            for copy, weight in enumerate(weights):
                self._add(f"posterior/copy {copy}", weight, step)
        self._writer.flush()

    def _add(self, tag: str, value: float | None, step: int) -> None:
        if value is not None:  # stored for a number that is not finite
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()
