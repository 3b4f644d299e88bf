"""What a visitor takes home: the designed network as ONNX or as source, and the figure."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import torch

from notsodeep.app.study import Refused, Study
from notsodeep.errors import NotSoDeepError
from notsodeep.figures.design import design_figure
from notsodeep.figures.style import style
from notsodeep.models.explicit import ENN

WIDTH = 256
_SEED = 0


def network_file(study: Study, kind: str) -> bytes:
    """A network of the designed activations, `WIDTH` wide, with fresh weights: "onnx", or "py", text that needs torch alone."""
    classes = 1 if study.data.y is None else int(study.data.y.max()) + 1
    enn = ENN(
        study.explicit,
        in_features=study.data.x.shape[1],
        width=WIDTH,
        out_features=max(classes, 1),
        generator=torch.Generator().manual_seed(_SEED),
    )
    try:
        if kind == "py":
            return enn.to_source().encode()
        with tempfile.TemporaryDirectory() as folder:
            return enn.to_onnx(Path(folder) / "network.onnx").read_bytes()
    except (NotSoDeepError, ImportError) as error:
        raise Refused("download", str(error)) from error


def figure_file(study: Study) -> bytes:
    """The spectra and the activations as on the page, drawn for paper: a PNG."""
    spectra = {
        "deq": study.spectra["deq"],
        "explicit": study.spectra["designed"],
        "undesigned": study.spectra["undesigned"],
    }
    memory = io.BytesIO()
    with style():
        design_figure(study.as_design(), spectra, study.gap).savefig(memory, format="png", dpi=150)
    return memory.getvalue()
