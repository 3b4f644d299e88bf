"""L7: how far explicit networks are from a DEQ while all weights are trained."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from notsodeep.figures.style import DEQ_LINE, EXPLICIT, FLOOR, RESCALED, UNDESIGNED
from notsodeep.papers.figures import drawing
from notsodeep.papers.figures.accuracy import ACTIVATIONS
from notsodeep.papers.figures.drawing import Drawing, Look, draw_means, in_order, legend_below, panels, plain_log, title
from notsodeep.papers.ling2024.l7_training import comparable
from notsodeep.papers.records import Record, where

_LOOKS = {
    "deq_again": Look("two draws of the DEQ", FLOOR, "-", "", 8.0),
    "limit": Look("DEQ and its limit of infinite width", DEQ_LINE, "-.", "o", 1.5, 5.0),
    "plain": Look("plain with its best gains", UNDESIGNED, "--", "s", 1.8, 5.0),
    "conjugate": Look("twin, conjugate kernel alone", RESCALED, ":", "^", 2.2, 6.0),
    "both": Look("twin, both kernels", EXPLICIT, "-", "D", 1.8, 5.0),
}
_CAPTION = (
    "All weights trained by full-batch gradient descent on two classes of images: what training has added to the test outputs "
    "after so many steps, its relative distance from what it has added to the DEQ's. Left at infinite width, by exact tangent "
    "kernels; right at a finite one, with means and 95 % intervals where there are several seeds. The broad grey line is the "
    "noise floor, another draw of the DEQ: a network at that line cannot be told from the DEQ."
)


def training_drawings(records: Sequence[Record]) -> list[Drawing]:
    own = comparable(records)
    activations = in_order((str(record.config["activation"]) for record in own), ACTIVATIONS)
    kinds = in_order((str(record.config["kind"]) for record in own), ("infinite", "width"))
    figure, axes = panels(len(activations), len(kinds), 5.2 if len(kinds) > 1 else 7.0, 3.4, sharex=True, sharey="row")
    for line, activation in zip(axes, activations, strict=True):
        for panel, kind in zip(line, kinds, strict=True):
            some = where(own, activation=activation, kind=kind)
            panel.set_visible(bool(some))
            if some:
                _draw(panel, some)
        line[0].set_ylabel("distance from the DEQ")
        line[0].set_yscale("log")
        plain_log(line[0].yaxis)
    for panel in axes[-1]:
        panel.set_xlabel("steps of gradient descent")
    there = {name for record in own for name in record.values["apart"]}
    legend_below(figure, [look.handle() for name, look in _LOOKS.items() if name in there], columns=3)
    return [Drawing("L7-training", _CAPTION, figure)]


def _draw(axes: Axes, records: Sequence[Record]) -> None:
    steps = records[0].values["steps"]
    for name in (name for name in _LOOKS if name in records[0].values["apart"]):
        points = {step: [r.values["apart"][name][place] for r in records] for place, step in enumerate(steps)}
        draw_means(axes, points, _LOOKS[name])
    width = records[0].config.get("width")
    drawing.sample_axis(axes, steps)
    axes.set_title(f"{title(records[0].config['activation'])}, {f'width {width}' if width else 'infinite width'}")
