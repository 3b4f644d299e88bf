"""Every experiment, so small that it takes seconds and needs no file."""

from dataclasses import replace

from notsodeep.papers.ling2024.comparison import Sizes
from notsodeep.papers.registry import EXPERIMENTS

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
    "L7": replace(
        EXPERIMENTS["L7"].quick,
        data="digits",
        activations=("relu",),
        width=64,
        seeds=2,
        train=40,
        test=40,
        design=120,
        steps=30,
    ),
    "W1": replace(EXPERIMENTS["W1"].quick, constructed=(1, 4), trained=(1, 3), steps=(20, 100), samples=100, batch=32, seeds=2),
    "W2": replace(EXPERIMENTS["W2"].quick, constructed=(4,), dimensions=(6,), widths=(8, 10), samples=200, seeds=3),
    "W3": replace(
        EXPERIMENTS["W3"].quick,
        built=(4, 6, 8),
        dimensions=(4, 6),
        resolved=(3,),
        width=8,
        rival="L3W8",
        samples=200,
        steps=200,
        level=0.02,
        resolved_steps=400,
    ),
    "W4": replace(EXPERIMENTS["W4"].quick, rivals=("L3W8",), samples=100, steps=50, seeds=2),
    "W5": replace(EXPERIMENTS["W5"].quick, targets=("f1", "f4"), rivals=("L3W8",), width=8, steps=100, seeds=2),
    "W6": replace(EXPERIMENTS["W6"].quick, width=8, rival="L3W8", steps=100, seeds=3),
    "W7": replace(EXPERIMENTS["W7"].quick, data="made-up", train=128, test=40, maps=12, channels=(4, 8), epochs=1),
}
