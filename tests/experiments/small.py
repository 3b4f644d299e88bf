"""Every experiment, so small that it takes seconds and needs no file."""

from dataclasses import replace

from notsodeep.experiments.comparison import Sizes
from notsodeep.experiments.registry import EXPERIMENTS

_SIZES = Sizes(mixture_n=80, mixture_p=100, images=60, mixture_seeds=2, image_seeds=0)

CONFIGS = {
    "L1": replace(EXPERIMENTS["L1"].quick, activations=("tanh", "relu"), sizes=(60, 120, 240), seeds=2),
    "L2": _SIZES,
    "L3": _SIZES,
    "L4": replace(_SIZES, var_a=0.2),
    "L5": replace(
        EXPERIMENTS["L5"].quick,
        data=("digits",),
        widths=(32, 256),
        train=600,
        test=100,
        epochs=30,
        infinite_samples=200,
        trained_width=32,
        trained_epochs=1,
    ),
    "L6": replace(EXPERIMENTS["L6"].quick, data="digits", widths=(32, 64), devices=("cpu",), activations=("relu",)),
}
