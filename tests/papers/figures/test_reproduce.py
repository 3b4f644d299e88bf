"""The figures of the experiments: drawn from all records and from any part of them."""

import io
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.colors import to_hex

from notsodeep.figures.style import DEQ, save, style
from notsodeep.papers.figures.drawing import NETWORKS, number, positive, power_of_two
from notsodeep.papers.figures.kernels import aligned, outside
from notsodeep.papers.figures.reproduce import Drawing, drawings
from notsodeep.papers.ling2024.l5_claims import ACCURACY, LARGEST_WIDTH, SMALLEST_WIDTH
from notsodeep.papers.records import Record
from notsodeep.papers.statistics import over_seeds
from notsodeep.papers.wu2024.w1_w4_sawtooth import W1_PAPER as SAWTOOTH_LOSSES
from notsodeep.papers.wu2024.w3_weights import PAPER_FNN
from tests.papers.figures.made_up import contest, everything, features, largest_weights, spectrum

ALL = everything()
NAMES = {
    "L1": ["L1-kernel-gap"],
    "L2": ["L2-spectra", "L2-vectors"],
    "L3": ["L3-spectra", "L3-vectors", "L3-activations"],
    "L4": ["L4-spectra", "L4-vectors", "L4-activations"],
    "L5": ["L5-accuracy", "L5-ridge", "L5-apart", "L5-trained"],
    "L6": ["L6-cost", "L6-work", "L6-accuracy-cost"],
    "L7": ["L7-training"],
    "W1": ["W1-construction", "W1-trained"],
    "W2": ["W2-construction", "W2-trained"],
    "W3": ["W3-construction", "W3-weights"],
    "W4": ["W4-trained"],
    "W5": ["W5-trained"],
    "W6": ["W6-features"],
    "W7": ["W7-maps", "W7-breadth"],
}
MOST_BYTES = 500_000


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


@pytest.mark.parametrize(
    "experiment", ["L1", "L3", "L5", "L6", "L7", "W1", "W2", "W3", "W5", "W6"]
)  # L2's and L4's are L3's with fewer rivals
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


@pytest.mark.parametrize("experiment", ["L1", "L2", "L5", "L6", "L7", "W1", "W2", "W3", "W4", "W5", "W6", "W7"])
def test_one_record_draws(experiment):
    alone = draw(experiment, {experiment: ALL[experiment][:1]})
    assert set(alone) <= set(NAMES[experiment])
    assert all(size(drawing) > 5_000 for drawing in alone.values())


def test_nothing_gives_nothing():
    assert drawings("L1", {}) == []
    assert drawings("L9", {"L9": ALL["L1"]}) == []
    assert drawings("L5", {"L5": [Record("L5", {"kind": "infinite", "data": "mnist", "activation": "tanh"}, {}, 1.0)]}) == []


def test_no_text_is_smaller_than_ten_points():
    for experiment in NAMES:
        for name, drawing in whole(experiment).items():
            sizes = [
                text.get_fontsize() for text in drawing.figure.findobj(lambda a: hasattr(a, "get_fontsize")) if text.get_text()
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
    assert labels == ["designed", "one layer", "closest twin", "plain", "plain rescaled"]
    assert axes.get_yticklabels()[3].get_text().endswith("(0.7)")


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
        figure.axes, [(d, a) for a in ("tanh", "relu") for d in ("mnist", "fashion-mnist", "cifar10-vgg19")], strict=True
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
        r for r in ALL["L5"] if r.config["kind"] == "width" and (r.config["data"], r.config["activation"]) == ("mnist", "tanh")
    ]
    line = whole("L5")["L5-accuracy"].figure.axes[0].lines[0]
    assert to_hex(line.get_color()) == DEQ
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
        assert y == pytest.approx(np.mean([r.values["accuracy"]["sgd"]["deq"] for r in own if r.config["width"] == x]))


def test_costs_of_other_batches_do_not_mix():
    other = [Record(r.experiment, {**r.config, "training_batch": 7}, r.values, 1.0) for r in ALL["L6"][:5]]
    assert "training step of 128" in draw("L6", {"L6": [*other, *ALL["L6"]]})["L6-cost"].caption
    assert list(draw("L6", {"L6": ALL["L6"]})) == ["L6-cost", "L6-work"]


def test_training_is_drawn_at_infinite_width_and_at_a_finite_one():
    axes = whole("L7")["L7-training"].figure.axes
    assert [panel.get_title() for panel in axes] == [
        f"{a}, {w}" for a in ("tanh", "ReLU") for w in ("infinite width", "width 4096")
    ]
    runs = [r for r in ALL["L7"] if (r.config["activation"], r.config["kind"]) == ("relu", "width")]
    line = next(line for line in axes[3].lines if line.get_marker() == "D")
    assert list(line.get_xdata()) == [1, 3, 10, 30]
    assert list(line.get_ydata()) == pytest.approx(np.mean([r.values["apart"]["both"] for r in runs], axis=0).tolist())


def test_numbers_are_found_or_none():
    values = {"a": {"b": 2, "c": None, "d": float("nan")}}
    assert number(values, "a", "b") == 2.0
    assert [number(values, *path) for path in (("a",), ("a", "c"), ("a", "d"), ("a", "b", "e"), ("z",))] == [None] * 5
    points = over_seeds(ALL["L6"][:4], lambda r: -r.config["width"], lambda r: r.values["deq"]["evaluations"])
    assert list(points) == sorted(points)
    assert positive({1.0: [0.0, 2.0], 2.0: [0.0]}) == {1.0: [0.0, 2.0]}
    assert [power_of_two(m) for m in (32, 4096, 100)] == ["2⁵", "2¹²", "100"]


# The separation experiments.


def marks(axes, name):
    """What is drawn under a name, as (x, y) pairs; the ends of intervals bear their point's name, and are passed over."""
    found = [line for line in axes.lines if line.get_gid() == name and line.get_marker() != "_"]
    return [pair for line in found for pair in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def heights(axes, name):
    return [float(y) for _, y in marks(axes, name)]


def contests(experiment):
    return [record for record in ALL[experiment] if record.config.get("kind") == "trained"]


@pytest.mark.parametrize("experiment", ["W1", "W2", "W4", "W5"])
def test_every_trained_network_has_a_point_at_its_mean(experiment):
    figure = whole(experiment)[f"{experiment}-trained"].figure
    for kind in ("deq", "rivals", "paired"):
        parts = [
            part
            for record in contests(experiment)
            for part in ([record.values["deq"]] if kind == "deq" else record.values[kind].values())
        ]
        wanted = [np.mean([loss for loss in part["test"] if loss is not None]) for part in parts]
        assert sorted(y for axes in figure.axes for y in heights(axes, kind)) == pytest.approx(sorted(wanted))
        singles = sum(loss is not None for part in parts for loss in part["test"])
        assert sum(len(heights(axes, f"seeds-{kind}")) for axes in figure.axes) == singles


def test_the_best_constant_is_a_dashed_line():
    records = contests("W5")
    for axes, record in zip(whole("W5")["W5-trained"].figure.axes, records, strict=True):
        assert axes.get_title() == record.config["target"]
        (line,) = (line for line in axes.lines if line.get_gid() == "best-constant")
        assert line.get_linestyle() == "--"
        assert list(line.get_ydata()) == [record.values["best_constant"]] * 2
    legend = whole("W5")["W5-trained"].figure.legends[0]
    assert "best constant" in [text.get_text() for text in legend.get_texts()]


def test_networks_of_equal_flops_stand_beside_the_deq():
    (axes,) = whole("W4")["W4-trained"].figure.axes
    (band,) = axes.patches
    low, high = band.get_x(), band.get_x() + band.get_width()
    assert all(low < x < high for kind in ("deq", "paired") for x, _ in marks(axes, kind))
    assert all(x < low for x, _ in marks(axes, "rivals"))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels[0] == "L4W30  240 (1 diverged)"
    assert labels[3:5] == ["DEQ W10  9k", "L2W104  8.95k"]


def test_a_network_that_diverged_does_not_move_the_mean():
    record = contest("W4", "sawtooth:5", 10, 10, ())
    record.values["deq"]["test"] = [0.2, None, 0.4, None]
    record.values["paired"]["L4W8"]["test"] = [None] * 4
    drawing = draw("W4", {"W4": [record]})["W4-trained"]
    (axes,) = drawing.figure.axes
    assert heights(axes, "deq") == pytest.approx([0.3])
    assert len(heights(axes, "paired")) == 1
    assert [t.get_text().endswith("(4 diverged)") for t in axes.get_xticklabels()] == [False, False, True]
    assert "6 networks diverged" in drawing.caption


def test_the_papers_losses_stand_where_it_trained_as_long():
    figure = whole("W1")["W1-trained"].figure
    for axes in figure.axes:
        found = heights(axes, "paper-deq") + heights(axes, "paper-rivals")
        m = {"2¹": 1, "2⁵": 5}[axes.get_title().split()[0]]
        assert found == ([] if "10000" in axes.get_title() else list(SAWTOOTH_LOSSES[m].values()))
    assert len(figure.axes) == 4


def test_rivals_of_a_dimension_are_drawn_once():
    figure = whole("W2")["W2-trained"].figure
    assert [axes.get_title() for axes in figure.axes] == ["d = 10", "d = 20"]
    assert [len(heights(axes, "deq")) for axes in figure.axes] == [2, 2]
    assert [len(heights(axes, "rivals")) for axes in figure.axes] == [2, 2]


def test_contests_of_other_settings_do_not_mix():
    old = contest("W5", "f1", 10, 20, ("L9W9",), samples=7)
    alone = contest("W5", "f1", 10, 20, ("unheard of",), seeds=1)
    (axes,) = draw("W5", {"W5": [old, alone]})["W5-trained"].figure.axes
    assert heights(axes, "deq") == alone.values["deq"]["test"]
    assert axes.get_xticklabels()[0].get_text().startswith("unheard of")


def test_pieces_are_counted_against_the_bounds():
    curves, axes = whole("W1")["W1-construction"].figure.axes
    assert marks(axes, "counted") == [(m, 2**m) for m in range(1, 9)]
    assert heights(axes, "bound") == [2**m for m in range(1, 9)]
    assert marks(axes, "bound-2") == [(m, m**2) for m in (2, 4, 6, 8)]
    assert heights(curves, "curve-1") == [0.0, 1.0, 0.0]
    assert heights(curves, "curve-3") == pytest.approx([1.3, 2.3] * 4 + [1.3])


def test_errors_of_the_steep_construction_by_size():
    (axes,) = whole("W2")["W2-construction"].figure.axes
    assert marks(axes, "error-20") == [(N, 0.47 / N) for N in (4, 10, 20)]
    assert marks(axes, "paper") == [(4, 0.0996), (10, 0.045), (20, 0.024)]


def test_weights_at_equal_loss_are_those_that_reached_it():
    drawing = whole("W3")["W3-weights"]
    (axes,) = drawing.figure.axes
    for network in ("deq", "fnn"):
        own = [r.values["weight_at_level"] for r in largest_weights() if r.config["network"] == network]
        wanted = [np.mean([w for w in weights if w is not None]) for weights in own]
        assert heights(axes, network) == pytest.approx(wanted)
        assert heights(axes, f"{network}-end") == pytest.approx([1.0125] * 3)
    assert marks(axes, "paper-fnn") == [(d, PAPER_FNN[d]) for d in (6, 12, 20)]
    assert heights(axes, "bound") == pytest.approx([2.0, 4.0, 2 ** (10 / 3)])
    assert "1 that never reached it is left out" in drawing.caption
    assert "L3W50 is wider" in drawing.caption


def test_weights_of_networks_without_training():
    (axes,) = whole("W3")["W3-construction"].figure.axes
    assert marks(axes, "built-deq") == [(d, 1.0) for d in (6, 12, 20)]
    assert marks(axes, "built-fnn") == [(d, 2.0 ** (d / 3) / 20.0) for d in (6, 12, 20)]
    assert heights(axes, "least") == pytest.approx([2.0 ** (d / 3) / 22.0 for d in (6, 12, 20)])


def test_records_of_trained_networks_alone_draw_as_before():
    trained = [record for record in ALL["W3"] if "kind" not in record.config]
    assert list(draw("W3", {"W3": trained})) == ["W3-weights"]


def test_features_are_shown_over_their_largest_and_their_average():
    *maps, axes, bar = whole("W6")["W6-features"].figure.axes
    assert [panel.get_title() for panel in maps] == ["diagonal DEQ", "DEQ", "feed-forward"]
    assert [panel.images[0].get_array().shape for panel in maps] == [(10, 32), (20, 32), (20, 32)]
    assert all(panel.images[0].get_array().max() == 1.0 for panel in maps)
    assert bar.get_xlim() == (0.0, 1.0)
    sizes = np.array(ALL["W6"][1].values["magnitudes"])
    assert heights(axes, "deq") == pytest.approx((sizes / sizes.mean(1, keepdims=True)).mean(0))
    assert len(heights(axes, "seed-deq")) == 3 * 20
    alone = draw("W6", {"W6": features(seeds=1)})["W6-features"].figure.axes[-2]
    assert not marks(alone, "seed-deq")
    lost = features()
    lost[1].values["magnitudes"][0] = [None] * 20
    lost[1].values["spread_out"][0] = None
    axes = draw("W6", {"W6": lost})["W6-features"].figure.axes[-2]
    kept = np.array(lost[1].values["magnitudes"][1:])
    assert heights(axes, "deq") == pytest.approx((kept / kept.mean(1, keepdims=True)).mean(0))
