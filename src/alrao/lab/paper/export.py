"""Figures and tables as files: CSV always, SVG through headless Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ..errors import LabError, missing
from ..report.figure import Figure, themed
from ..store import replace_file

__all__ = ["file_name", "write_csv", "write_images"]

WIDTH = 1000


def file_name(*words: str) -> str:
    """Return a name that every file system allows."""
    return re.sub(r"[^\w.-]+", "-", "-".join(word for word in words if word)).strip("-.")


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table."""
    content = table.to_csv(index=False, lineterminator="\n").encode()
    replace_file(path, lambda file: file.write(content))


def write_images(figures: dict[Path, Figure]) -> None:
    """Write figures as SVG files, in their light colours.

    Raises:
        LabError: a package or the browser is missing; the message says which.
    """
    if not figures:
        return
    try:
        import kaleido  # type: ignore[import-untyped]
    except ImportError:
        raise missing("kaleido", "figures", "figures as SVG files") from None
    try:
        kaleido.start_sync_server(mathjax=False, silence_warnings=True)
        try:
            for path, figure in figures.items():
                plot = themed(figure)
                picture = go.Figure(data=plot.data, layout=plot.layout)
                size = {"width": WIDTH, "height": figure.plot.wide["height"], "format": "svg"}
                content = kaleido.calc_fig_sync(picture.to_plotly_json(), opts=size)
                replace_file(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
        finally:
            kaleido.stop_sync_server(silence_warnings=True)
    except LabError:
        raise
    except Exception as error:  # of many kinds: the browser is missing, does not start, ends early
        reason = " ".join(str(error).split())[:200] or "no reason given"
        raise LabError(
            "figures as SVG files need Chromium or Chrome, which could not be used "
            f"({type(error).__name__}: {reason}): install it, for example with `apt-get install chromium`; "
            "tables and the report were written"
        ) from error
