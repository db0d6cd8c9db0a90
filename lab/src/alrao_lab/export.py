"""Export a trained model with its preparation and labels: ONNX, torch.export, and a card of one page."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import optional
from .provenance import source_state
from .render.cells import data_notes, duration, measure_text
from .render.markdown import filled
from .resolve import label
from .store import replace_file
from .trained import Trained

FORMATS = {"onnx": "model.onnx", "torch": "model.pt2"}
INPUTS = {"table": "columns", "images": "pixels", "text": "symbols"}


def described(trained: Trained) -> dict[str, Any]:
    """Return what a program needs to know of the inputs and outputs, as JSON; both files contain it."""
    about: dict[str, Any] = {"input": trained.kind}
    if trained.kind == "table":
        about["columns"] = [
            {"name": column.name, **({"words": list(column.levels)} if column.levels else {})}
            for column in trained.encoding.columns
        ]
        about["target"] = trained.encoding.target.name
    else:
        about |= {
            name: trained.recipe[name] for name in ("shape", "level", "window") if name in trained.recipe
        }
    return {**about, "labels": trained.labels}


def absent() -> list[str]:
    """Return the packages of ONNX that are not installed."""
    return [name for name in ("onnxscript", "onnxruntime") if find_spec(name) is None]


def export(trained: Trained, folder: Path, formats: list[str]) -> dict[str, float]:
    """Write a model and its card into a folder.

    Returns:
        For each file the largest difference of its outputs from those of the model.
    """
    about, example = json.dumps(described(trained), ensure_ascii=False), trained.example()
    batch = {0: torch.export.Dim("rows")}
    wanted = trained.outputs(example)
    differences: dict[str, float] = {}
    for name in formats:
        path = folder / FORMATS[name]
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of the exporters, about themselves
            exported = torch.export.export(trained.module, (example,), dynamic_shapes=(batch,))
            if name == "torch":
                buffer = io.BytesIO()
                torch.export.save(exported, buffer, extra_files={"alrao.json": about})
                replace_file(path, buffer.getvalue())
                got = torch.export.load(path).module()(example)
            else:
                for package in ("onnxscript", "onnxruntime"):  # before anything is written
                    optional(package, "onnx", "export to ONNX")
                program: Any = torch.onnx.export(
                    trained.module,
                    (example,),
                    dynamo=True,
                    verbose=False,
                    input_names=[INPUTS[trained.kind]],
                    output_names=["predictions"],
                    dynamic_shapes=(batch,),
                )
                program.model.metadata_props["alrao"] = about
                replace_file(path, program.model_proto.SerializeToString())
                session = import_module("onnxruntime").InferenceSession(path)
                got = torch.from_numpy(
                    np.asarray(session.run(None, {INPUTS[trained.kind]: example.numpy()})[0])
                )
        differences[path.name] = float((got.detach() - wanted).abs().max())
    replace_file(folder / "README.md", card(trained, list(differences)).encode())
    return differences


def card(trained: Trained, names: list[str]) -> str:
    """Return the model card."""
    config, result = trained.directory.config or {}, trained.directory.result or {}
    data = config.get("data", {})
    figures = {
        part: ", ".join(measure_text(*item) for item in result[part].items()) for part in ("valid", "test")
    }
    return filled(
        __package__,
        "card.md.j2",
        trained=trained,
        data=data,
        about=described(trained),
        figures=figures,
        result=result,
        names=names,
        time=duration(result["seconds"]),
        method=label(trained.settings),
        versions=config.get("versions", {}),
        commit=config.get("commit") or source_state()[0] or "not recorded",
        started=str(config.get("started", ""))[:10],
        notes=data_notes(data),
    )
