"""The figures of the experiments: drawn from all records and from any part of them."""

import io
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from notsodeep.experiments.paper_values import ACCURACY, LARGEST_WIDTH, SMALLEST_WIDTH
from notsodeep.experiments.record import Record
from notsodeep.figures.reproduce import Drawing, drawings
from notsodeep.figures.spectra import aligned, outside
from notsodeep.figures.style import DEQ, NETWORKS, gather, number, positive, power_of_two, save, style
from tests.figures.made_up import everything, spectrum

ALL = everything()
NAMES = {
    "L1": ["L1-kernel-gap"],
    "L2": ["L2-spectra", "L2-vectors"],
    "L3": ["L3-spectra", "L3-vectors", "L3-activations"],
    "L4": ["L4-spectra", "L4-vectors", "L4-activations"],
    "L5": ["L5-accuracy", "L5-ridge", "L5-apart", "L5-trained"],
    "L6": ["L6-cost", "L6-work", "L6-accuracy-cost"],
}
MOST_BYTES = 400_000


pytestmark = pytest.mark.filterwarnings("error")


@cache
def whole(experiment):
    return draw(experiment, ALL)


def draw(experiment, records):
    return {drawing.name: drawing for drawing in drawings(experiment, records)}


def size(drawing: Drawing):
    """Of the SVG, at the resolution of the files."""
    stream = io.BytesIO()
    with style():
        drawing.figure.savefig(stream, format="svg", dpi=150)
    return len(stream.getvalue())


@pytest.mark.parametrize("experiment", ["L1", "L3", "L5", "L6"])  # L2's and L4's are L3's with fewer rivals
def test_figures_are_small(experiment):
    for name, drawing in whole(experiment).items():
        assert 5_000 < size(drawing) < MOST_BYTES, name


def test_names_and_captions():
    for experiment, names in NAMES.items():
        assert list(whole(experiment)) == names
        assert all(60 < len(drawing.caption) < 800 for drawing in whole(experiment).values())


def test_saved_in_two_formats(tmp_path):
    png, svg = save(whole("L4")["L4-activations"].figure, tmp_path, "L4-activations")
    assert (png.name, svg.name) == ("L4-activations.png", "L4-activations.svg")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert svg.read_text().startswith("<?xml")


@settings(max_examples=6)
@given(st.sampled_from(sorted(NAMES)), st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_part_of_the_records_draws(experiment, count, chance: random.Random):
    some = {name: chance.sample(records, min(count, len(records))) for name, records in ALL.items()}
    found = draw(experiment, some)
    assert set(found) <= set(NAMES[experiment])
    assert found


@pytest.mark.parametrize("experiment", ["L1", "L2", "L5", "L6"])
def test_one_record_draws(experiment):
    alone = draw(experiment, {experiment: ALL[experiment][:1]})
    assert set(alone) <= set(NAMES[experiment])
    assert all(size(drawing) > 5_000 for drawing in alone.values())


def test_nothing_gives_nothing():
    assert drawings("L1", {}) == []
    assert drawings("L7", {"L7": ALL["L1"]}) == []
    assert (
        drawings("L5", {"L5": [Record("L5", {"kind": "infinite", "data": "mnist", "activation": "tanh"}, {}, 1.0)]})
        == []
    )


def test_no_text_is_smaller_than_ten_points():
    for experiment in NAMES:
        for name, drawing in whole(experiment).items():
            sizes = [
                text.get_fontsize()
                for text in drawing.figure.findobj(lambda a: hasattr(a, "get_fontsize"))
                if text.get_text()
            ]
            assert min(sizes) >= 10, name


def test_curves_differ_in_more_than_hue():
    looks = [look for name, look in NETWORKS.items() if name != "deq_again"]
    assert len({look.marker for look in looks}) == len(looks)
    assert len({(look.dash, look.width) for look in looks}) == len(looks)


def test_gaps_are_drawn_with_their_slopes():
    axes = whole("L1")["L1-kernel-gap"].figure.axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.partition(":")[0] for label in labels] == ["tanh", "ReLU", "leaky ReLU 0.01", "ELU", "swish"]
    assert all("−0.5" in label and "−0.9" in label for label in labels)


def test_eigenvectors_are_turned_to_the_reference():
    vector = np.array([0.6, -0.8])
    assert np.array_equal(aligned(-vector, vector), vector)
    assert np.array_equal(aligned(vector, vector), vector)
    axes = whole("L2")["L2-vectors"].figure.axes[0]
    deq, rival = (np.asarray(dots.get_offsets())[:, 1] for dots in axes.collections)
    assert deq @ rival > 0.99 * np.linalg.norm(deq) * np.linalg.norm(rival)


def test_eigenvalues_apart_from_the_bulk():
    bulk = np.linspace(1.0, 0.2, 500)
    assert outside(np.concatenate([[60.0, 31.0, 9.0], bulk])) == 3
    assert outside(bulk) == 1
    assert outside(np.array([1.0])) == 1
    assert outside(np.geomspace(1e6, 1e-6, 40)) == 12


def test_spectra_mark_every_eigenvalue_apart():
    record = spectrum("L4", "gmm")
    figure = draw("L4", {"L4": [record]})["L4-spectra"].figure
    kernel = record.values["kernels"]["conjugate"]
    lines = figure.subfigs[0].axes[1].collections
    shown = [sorted((segment[0][0] for segment in lines[i].get_segments()), reverse=True) for i in (0, 1)]
    assert shown[0] == kernel["eigenvalues"][:3]
    assert shown[1] == kernel["rivals"]["designed"]["eigenvalues"][:3]


def test_spectra_name_the_gaps():
    axes = whole("L3")["L3-spectra"].figure.subfigs[0].axes[0]
    labels = [label.get_text().splitlines()[0] for label in axes.get_yticklabels()]
    assert labels == ["designed", "one layer", "plain", "plain rescaled"]
    assert axes.get_yticklabels()[2].get_text().endswith("(0.7)")


def test_rank_deficient_and_tiny_kernels_draw():
    record = spectrum("L3", "gmm", n=5)
    for kernel in record.values["kernels"].values():
        kernel["rivals"]["plain"]["eigenvalues"] = [3.0, 1.0, 0.0, 0.0, -1e-17]
    found = draw("L3", {"L3": [record]})
    assert list(found) == NAMES["L3"]
    assert all(size(drawing) > 5_000 for drawing in found.values())


def test_records_without_spectra_are_passed_over():
    bare = spectrum("L2", "gmm", n=70)
    for kernel in bare.values["kernels"].values():
        for part in (kernel, *kernel["rivals"].values()):
            del part["eigenvalues"], part["vectors"]
    assert drawings("L2", {"L2": [bare]}) == []
    figure = draw("L2", {"L2": [bare, spectrum("L2", "gmm", n=50)]})["L2-spectra"].figure
    assert "n = 50" in figure.subfigs[0].get_suptitle()


def test_samples_of_norm_one_have_rows_of_their_own():
    plain = spectrum("L2", "gmm", n=50)
    unit = Record("L2", {**plain.config, "unit_norm": True}, plain.values, 1.0)
    found = draw("L2", {"L2": [unit, plain]})
    titles = [part.get_suptitle() for part in found["L2-spectra"].figure.subfigs]
    assert ["norm 1" in text for text in titles] == [False, False, True, True]
    assert len(found["L2-vectors"].figure.axes) == 4


def test_quick_and_full_runs_do_not_mix():
    full = [r for r in ALL["L5"] if r.config["kind"] == "width" and r.config["data"] == "mnist"]
    quick = [Record("L5", {**r.config, "train": 500}, {"accuracy": {"sgd": {"deq": 0.1}}}, 1.0) for r in full[:3]]
    axes = draw("L5", {"L5": [*quick, *full]})["L5-accuracy"].figure.axes[0]
    assert min(axes.lines[0].get_ydata()) > 0.5


def test_the_larger_of_two_is_shown():
    figure = draw("L2", {"L2": [spectrum("L2", "gmm", n=50), spectrum("L2", "gmm", n=90)]})["L2-spectra"].figure
    assert "n = 90" in figure.subfigs[0].get_suptitle()


def test_the_papers_accuracies_stand_at_their_widths():
    figure = whole("L5")["L5-accuracy"].figure
    for axes, key in zip(
        figure.axes,
        [(d, a) for a in ("tanh", "relu") for d in ("mnist", "fashion-mnist", "cifar10-vgg19")],
        strict=True,
    ):
        marks = {line.get_gid(): line for line in axes.lines if str(line.get_gid()).startswith("paper-")}
        assert set(marks) == {"paper-deq", "paper-matched", "paper-plain"}
        for net, found in ACCURACY[key].items():
            assert list(marks[f"paper-{net}"].get_xdata()) == [SMALLEST_WIDTH, LARGEST_WIDTH]
            assert tuple(marks[f"paper-{net}"].get_ydata()) == found
        low, high = axes.get_ylim()
        assert low < min(v for pair in ACCURACY[key].values() for v in pair) < high


def test_cifar_is_not_compared_in_level():
    records = {"L5": [r for r in ALL["L5"] if r.config["data"] == "mnist"]}
    assert "CIFAR" in whole("L5")["L5-accuracy"].caption
    assert "CIFAR" not in draw("L5", records)["L5-accuracy"].caption


def test_means_are_drawn_over_seeds():
    own = [
        r
        for r in ALL["L5"]
        if r.config["kind"] == "width" and (r.config["data"], r.config["activation"]) == ("mnist", "tanh")
    ]
    line = whole("L5")["L5-accuracy"].figure.axes[0].lines[0]
    assert to_hex(line.get_color()) == DEQ
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert y == pytest.approx(np.mean([r.values["accuracy"]["sgd"]["deq"] for r in own if r.config["width"] == x]))


def test_costs_of_other_batches_do_not_mix():
    other = [Record(r.experiment, {**r.config, "training_batch": 7}, r.values, 1.0) for r in ALL["L6"][:5]]
    assert "training step of 128" in draw("L6", {"L6": [*other, *ALL["L6"]]})["L6-cost"].caption
    assert list(draw("L6", {"L6": ALL["L6"]})) == ["L6-cost", "L6-work"]


def test_numbers_are_found_or_none():
    values = {"a": {"b": 2, "c": None, "d": float("nan")}}
    assert number(values, "a", "b") == 2.0
    assert [number(values, *path) for path in (("a",), ("a", "c"), ("a", "d"), ("a", "b", "e"), ("z",))] == [None] * 5
    points = gather(ALL["L6"][:4], lambda r: -r.config["width"], lambda r: r.values["deq"]["evaluations"])
    assert list(points) == sorted(points)
    assert positive({1.0: [0.0, 2.0], 2.0: [0.0]}) == {1.0: [0.0, 2.0]}
    assert [power_of_two(m) for m in (32, 4096, 100)] == ["2⁵", "2¹²", "100"]
