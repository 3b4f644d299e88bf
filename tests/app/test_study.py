"""What the explorer shows, against the library itself; and what it says where there is nothing to show."""

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Mixed
from notsodeep.app import study as explored, study as lengths
from notsodeep.app.answers import WIDTH, figure_file, network_file, python_of
from notsodeep.app.state import FAMILY_NAMES, NAMED, State, checked
from notsodeep.app.study import Refused, gaps_against_n, look_ahead, samples_of
from notsodeep.app.uploads import Shelf, read_upload
from notsodeep.data.sources import standardised
from notsodeep.errors import NotContractive
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.matching.design import FAMILIES, measure
from notsodeep.theory.admissible import boundaries
from notsodeep.theory.scalars import scalars

SMALL = {"n": 100, "p": 50}
SHELF = Shelf()
TABLE = np.random.default_rng(0).standard_normal((130, 12)) * np.linspace(1.0, 3.0, 12) + 5.0
HELD = read_upload("t.npy", (lambda stream: (np.save(stream, TABLE), stream.getvalue())[1])(io.BytesIO()))
TOKEN = SHELF.put(HELD)
STATES = {
    "relu": State(**SMALL),
    "tanh": State(activation="tanh", var_a=0.1, **SMALL),
    "ntk": State(activation="tanh", kernel="tangent", var_b=0.5, **SMALL),
    "both": State(activation="leaky_relu:0.1", kernel="both", **SMALL),
    "both, fitted": State(activation="tanh", kernel="both", family="fitted:2", **SMALL),
    "digits": State(activation="erf", data="digits", n=120),
    "hermite": State(activation="gelu", family="hermite", **SMALL),
    "expression": State(activation="x*tanh(x)", var_a=0.1, **SMALL),
    "unstable": State(activation="abs", var_a=1.2, var_b=1.0, **SMALL),
    "jump": State(activation="sign", **SMALL),
    "upload": State(data="upload", upload=TOKEN, n=100),
}


def study(state, shelf):
    return explored.study(state, samples_of(state, shelf))


@pytest.fixture(scope="module")
def studied():
    """Each of the states, studied once."""
    found = {}

    def get(name):
        if name not in found:
            found[name] = study(STATES[name], SHELF)
        return found[name]

    return get


def samples(name):
    """The data of a state, found without the explorer."""
    if name != "upload":
        return STATES[name].dataset().x
    rows = torch.randperm(len(TABLE), generator=torch.Generator().manual_seed(0))[: STATES[name].n]
    return standardised(torch.from_numpy(TABLE)[rows])


def gap(first, second):
    return float(torch.linalg.matrix_norm(first - second, 2) / torch.linalg.matrix_norm(first, 2))


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("name", STATES)
def test_numbers_are_the_library_s(studied, name):
    found, state, x = studied(name), STATES[name], samples(name)
    net = nsd.Implicit(state.activation, state.var_a, state.var_b)
    assert torch.equal(found.data.x, x)
    tau0 = float(x.square().sum(1).mean().sqrt())
    assert found.design.tau0 == pytest.approx(tau0, rel=1e-12)
    target = nsd.scalars(net, tau0)
    assert found.design.target.tau == pytest.approx(target.tau, rel=1e-10)
    kernel = nsd.conjugate_kernel if state.kernel == "conjugate" else nsd.tangent_kernel
    exact, designed, plain = kernel(net, x), kernel(found.design.explicit, x), kernel(found.plain, x)
    for key, matrix in {"deq": exact, "designed": designed, "undesigned": plain}.items():
        spectrum = torch.linalg.eigvalsh(matrix)
        torch.testing.assert_close(found.spectra[key], spectrum, rtol=1e-8, atol=1e-9 * float(spectrum[-1]))
    assert found.gap == pytest.approx(gap(exact, designed), rel=1e-4, abs=1e-9)
    assert found.plain_gap == pytest.approx(gap(exact, plain), rel=1e-4, abs=1e-9)
    if state.kernel == "both":
        conjugate = nsd.conjugate_kernel(net, x), nsd.conjugate_kernel(found.design.explicit, x)
        assert found.conjugate_gap == pytest.approx(gap(*conjugate), rel=1e-4)
        assert found.design.explicit.has_gains
        assert max(found.gap, found.conjugate_gap) < 0.2 * found.plain_gap
    else:
        assert found.conjugate_gap is None
    reached = nsd.scalars(found.design.explicit, tau0)
    assert len(found.design.comparisons) == 4
    for row in found.design.comparisons:
        assert row.target == pytest.approx(getattr(target, row.name), rel=1e-9)
        assert row.reached == pytest.approx(getattr(reached, row.name), rel=1e-9)


@pytest.mark.parametrize("name", ["tanh", "ntk"])
def test_gaps_are_those_that_the_library_measures(studied, name):
    """The explorer computes kernels and gaps at once, in threads: faster than `measure`, to the same gaps."""
    found, design = studied(name), studied(name).design

    def exact(net):
        return exact_kernel(net, found.data.x, None, STATES[name].kernel, design.tau0 if net is design.net else None)

    measured = measure(design.net, design.explicit, design.tau0, exact, len(found.data.x))
    assert found.gap == pytest.approx(measured.gap, rel=1e-4)
    assert found.plain_gap == pytest.approx(measured.plain_gap, rel=1e-4)
    assert found.scaled_gap >= (1.0 - 1e-4) * measured.plain_scaled_gap  # the factor of least squares, not the best one


@pytest.mark.parametrize("name", ["relu", "tanh", "ntk", "upload"])
def test_the_design_is_the_library_s(studied, name):
    found, state = studied(name), STATES[name]
    net = nsd.Implicit(state.activation, state.var_a, state.var_b)
    expected = nsd.design(net, tau0=found.design.tau0, family=state.family, match=state.kernel)
    assert found.design.family == expected.family
    u = torch.linspace(-3.0, 3.0, 50, dtype=torch.float64)
    for ours, theirs in zip(found.design.explicit.layers, expected.explicit.layers, strict=True):
        torch.testing.assert_close(ours(u), theirs(u), rtol=1e-6, atol=1e-6)
    assert found.design.residual < 1e-8
    assert found.gap < 0.5 * found.plain_gap


def test_an_upload_is_centred_and_scaled(studied):
    x = studied("upload").data.x
    assert x.shape == (100, 12)
    assert float(x.mean(0).abs().max()) < 1e-12
    assert studied("upload").design.tau0 == pytest.approx(1.0, abs=1e-12)
    assert "t.npy" in studied("upload").data.description


REFUSED = {
    "a hostile expression": ({"activation": "__import__('os').system('x')"}, "activation", "expression"),
    "an attribute": ({"activation": "x.__class__"}, "activation", "expression"),
    "a power tower": ({"activation": "x**9**9**9**9"}, "activation", "expression"),
    "no end of brackets": ({"activation": "(" * 1500 + "x" + ")" * 300}, "activation", ""),
    "a pole": ({"activation": "1/x"}, "activation", "not finite"),
    "a constant": ({"activation": "0*x"}, "activation", "varies"),
    "an unknown name": ({"activation": "rleu"}, "activation", "relu"),
    "past existence": ({"activation": "linear", "var_a": 1.0, "var_b": 1.0}, "var_a", "no equilibrium"),
    "past the tangent kernel": (
        {"activation": "abs", "var_a": 1.2, "var_b": 1.0, "kernel": "tangent"},
        "var_a",
        "tangent kernel",
    ),
    "waves": ({"activation": "abs(sin(600*x))"}, "activation", "varies too fast"),
    "underflow": ({"activation": "1e-200*x"}, "activation", "too small"),
    "a jump and its tangent kernel": ({"activation": "sign", "kernel": "tangent"}, "activation", "tangent kernel"),
    "no file yet": ({"data": "upload"}, "upload", "Choose"),
    "a file that is gone": ({"data": "upload", "upload": "x" * 32}, "upload", "upload it again"),
}


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shown_says_why(case):
    values, field, words = REFUSED[case]
    state, wrong = checked({**SMALL, **values})
    assert wrong == {}
    with pytest.raises(Refused) as refused:
        study(state, SHELF)
    assert refused.value.field == field
    assert words in refused.value.sentence
    assert 10 < len(refused.value.sentence) < 700


def test_more_digits_than_there_are():
    with pytest.raises(Refused, match="1797") as refused:
        study(State(data="digits", n=2000), SHELF)
    assert refused.value.field == "data"


def test_images_that_are_not_here(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Refused, match="mnist") as refused:
        study(State(data="mnist"), SHELF)
    assert refused.value.field == "data"


def test_too_many_kinks(monkeypatch):
    monkeypatch.setattr(explored, "_MOST_KINKS", 1)
    with pytest.raises(Refused, match="2 kinks are too many") as refused:
        study(State(activation="hard_tanh", **SMALL), SHELF)
    assert refused.value.field == "activation"


def test_a_forgotten_upload():
    shelf = Shelf(most=1)
    token = shelf.put(HELD)
    state = State(data="upload", upload=token, n=100)
    assert study(state, shelf).data.x.shape == (100, 12)
    shelf.put(HELD)
    with pytest.raises(Refused, match="no longer in memory") as refused:
        study(state, shelf)
    assert refused.value.field == "upload"


def test_a_note_where_networks_need_not_contract(studied):
    assert studied("relu").notes == {}
    found = study(State(activation="sigmoid", var_a=0.9, **SMALL), SHELF)
    assert found.notes == {}
    assert "≥ 0.25 = 1/(4L²)" in study(State(var_a=0.25, **SMALL), SHELF).notes["var_a"]
    assert "var_a" not in study(State(var_a=0.24, **SMALL), SHELF).notes


@pytest.mark.parametrize(("family", "most"), [("fitted", 3e-3), ("fitted:2", 1e-4)])
def test_a_fitted_family(family, most, capsys):
    state = State(activation="gelu", family=family, data="digits", n=240)
    found = study(state, SHELF)
    assert found.design.family == family
    assert found.gap < min(most, 0.7 * found.scaled_gap)
    space = {}
    exec(python_of(state, found=family), space)
    assert f"gap {found.gap:.2g}" in capsys.readouterr().out
    for ours, theirs in zip(found.design.explicit.layers, space["explicit"].layers, strict=True):
        u = torch.linspace(-3.0, 3.0, 50, dtype=torch.float64)
        torch.testing.assert_close(ours(u), theirs(u), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
def test_networks_of_several_kinds_and_with_gains(kernel, monkeypatch, tmp_path):
    """Everything that the page shows or gives away."""
    pytest.importorskip("dash_mantine_components")
    from notsodeep.app import answers

    mixed = nsd.Explicit([Mixed(["relu", "tanh", "gelu"]), Mixed(["x", "erf"])], gains=(0.5, 0.0, 2.0)).centred(1.0)
    monkeypatch.setattr(explored, "designed", lambda *_: ("fitted", mixed, ""))
    state = State(kernel=kernel, **SMALL)
    found = study(state, SHELF)
    assert nsd.relative_gap(
        *(exact_kernel(net, found.data.x, None, kernel) for net in (found.design.net, mixed))
    ) == pytest.approx(found.gap, rel=1e-4)
    names = [trace["name"] for trace in answers.activations(found)["data"]]
    assert names[1:] == [f"designed, layer {d}, kind {k}" for d, k in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))]
    assert "2 hidden layers, gains in training 0.5, 0, 2" in answers.summary(found)
    assert figure_file(found).startswith(b"\x89PNG")
    x = found.data.x[:7].to(torch.float32)
    torch.testing.assert_close(
        run_alone(network_file(found, "py"), x, tmp_path), enn(found, 2)(x).detach(), rtol=1e-4, atol=1e-5
    )
    assert [point.n for point in gaps_against_n(found)] == [100]


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "x*tanh(x)"])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_what_stands_for_a_state_while_a_slider_moves(family, activation, kernel):
    """Fewer samples and no long search, but the same DEQ; what it says of its own network is true."""
    state = State(activation=activation, family=family, kernel=kernel, var_a=0.15, n=600, p=100)
    found = study(state.moving, SHELF)
    assert len(found.data.x) == 300
    assert found.design.net == nsd.Implicit(activation, 0.15)
    exact, designed = (exact_kernel(net, found.data.x, None, kernel) for net in (found.design.net, found.design.explicit))
    assert nsd.relative_gap(exact, designed) == pytest.approx(found.gap, rel=1e-4, abs=1e-9)
    assert found.gap < 0.5
    assert ("until the slider rests" in found.notes.get("family", "")) == (
        family in FAMILIES and not found.design.family.startswith(family)
    )


def test_a_state_of_few_samples_keeps_them_while_a_slider_moves():
    assert State(n=150).moving.n == 150
    assert checked({"family": State(family="fitted").moving.family})[1]  # no link asks for a stand-in


def test_the_nearest_of_a_family_without_a_match(studied):
    found = study(State(family="quadratic", **SMALL), SHELF)
    assert found.design.family == "quadratic"
    residual = max(row.gap for row in found.design.comparisons)
    assert f"residual {residual:.1e}. leaky_relu has it." in found.notes["family"]
    assert studied("relu").gap < found.gap < 1.0
    assert all("x²" in str(layer) or "x^2" in str(layer) for layer in found.design.explicit.layers), found.design.explicit


def test_the_gap_falls_as_a_mixture_grows():
    found = study(State(n=400, p=400), SHELF)
    points = gaps_against_n(found)
    assert [(point.n, point.p) for point in points] == [(50, 50), (100, 100), (200, 200), (400, 400)]
    assert points[-1].gap == found.gap
    slope = np.polyfit(np.log([point.n for point in points]), np.log([point.gap for point in points]), 1)[0]
    assert slope < -0.3
    assert points[-1].gap < points[0].gap


def test_every_part_has_the_same_family():
    """Lengths of a Hermite series are not looked for again: the gaps of one curve are of one kind of network."""
    found = study(State(activation="elu", n=200, p=100), SHELF)
    assert found.design.family.startswith("hermite:")
    known = dict(lengths.LENGTHS)
    points = gaps_against_n(found)
    assert [point.n for point in points] == [100, 200]
    assert known == lengths.LENGTHS


@pytest.mark.parametrize("text", ["x", " x "])
def test_the_variable_alone_is_an_expression(text):
    """As somebody who types x*tanh(x) slowly has it on the way."""
    found = study(State(activation=text.strip(), var_a=0.1, **SMALL), SHELF)
    (row,) = boundaries(("x",), 0.8)
    assert row.contracts == pytest.approx(0.25)
    assert found.gap < 1e-6
    assert str(nsd.activation(text)) == "x"


def test_the_undesigned_kernel_times_its_best_factor(studied):
    found = studied("tanh")
    exact, plain = (
        nsd.conjugate_kernel(net, found.data.x, tau0=tau0)
        for net, tau0 in ((found.design.net, found.design.tau0), (found.plain, None))
    )
    best, _ = nsd.kernels.best_scaled_gap(exact, plain)
    assert best <= found.scaled_gap <= 1.2 * best
    assert found.scaled_gap < found.plain_gap


def test_looking_ahead_finds_the_lengths_of_the_neighbouring_tenths(monkeypatch):
    monkeypatch.setattr(lengths, "LENGTHS", {})
    found = study(State(activation="elu", var_a=0.25, **SMALL), SHELF)
    assert {state.var_a for state, _ in lengths.LENGTHS} == {0.2}
    look_ahead(found)
    assert {state.var_a for state, _ in lengths.LENGTHS} == {0.1, 0.2, 0.3}
    known = dict(lengths.LENGTHS)
    ahead = study(State(activation="elu", var_a=0.33, **SMALL), SHELF)
    assert known == lengths.LENGTHS
    assert ahead.design.family == next(family for (state, _), family in known.items() if state.var_a == 0.3)


def test_no_slider_but_that_of_the_tenths_and_features_asks_for_another_length(monkeypatch):
    monkeypatch.setattr(lengths, "LENGTHS", {})
    families = {
        study(State(activation="elu", **(SMALL | {name: value})), SHELF).design.family
        for name, value in (("var_b", 0.5), ("separation", 3.0), ("spread", 1.0), ("n", 150), ("var_a", 0.27))
    }
    assert len(families) == len(lengths.LENGTHS) == 1
    study(State(activation="elu", **(SMALL | {"p": 500})), SHELF)
    assert len(lengths.LENGTHS) == 2


@pytest.mark.parametrize(("activation", "var_a"), [("relu", 0.25), ("elu", 0.98), ("elu", 0.01)])
def test_looking_ahead_of_what_has_no_length_or_no_neighbour(activation, var_a, monkeypatch):
    found = study(State(activation=activation, var_a=var_a, **SMALL), SHELF)
    monkeypatch.setattr(lengths, "LENGTHS", {})
    look_ahead(found)
    assert all(0.01 <= state.var_a <= 1.5 for state, _ in lengths.LENGTHS)
    assert len(lengths.LENGTHS) <= 1


def test_parts_of_other_data(studied):
    points = gaps_against_n(studied("upload"))
    assert [(point.n, point.p) for point in points] == [(12, 12), (25, 12), (50, 12), (100, 12)]
    assert all(np.isfinite(point.gap) and point.gap >= 0.0 for point in points)


@pytest.mark.parametrize("drive", [0.3, 0.8, 2.3])
def test_boundaries_in_their_order(drive):
    found = boundaries(NAMED, drive)
    assert [row.name for row in found] == list(NAMED)
    for row in found:
        assert 0.0 < row.contracts <= row.stable <= row.exists, row


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("name", ["relu", "elu", "tanh", "softplus", "gaussian", "abs", "linear"])
def test_where_kernels_exist(name):
    drive = 0.8
    (row,) = boundaries((name,), drive)
    below = 0.995 * row.exists if row.exists < np.inf else 100.0
    assert np.isfinite(scalars(nsd.Implicit(name, below, drive), 1.0).tau)
    if row.exists < np.inf:
        with pytest.raises(NotContractive) as refused:
            scalars(nsd.Implicit(name, 1.01 * row.exists, drive), 1.0)
        assert refused.value.largest_var_a == pytest.approx(row.exists, rel=0.01)


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("name", ["relu", "tanh", "abs", "softplus"])
def test_where_kernels_are_stable(name):
    """σ_a² E[φ'²(τ*ξ)] = 1, by differences of the activation itself."""
    (row,) = boundaries((name,), 0.8)
    net = nsd.Implicit(name, row.stable, 0.8)
    tau = scalars(net, 1.0).tau
    u = torch.linspace(-9.0, 9.0, 200_001, dtype=torch.float64)
    weight = torch.exp(-(u**2) / 2) / torch.exp(-(u**2) / 2).sum()
    slope = (net.phi(tau * u + 1e-6) - net.phi(tau * u - 1e-6)) / 2e-6
    assert row.stable * float((weight * slope**2).sum()) == pytest.approx(1.0, rel=2e-3)


def test_boundaries_fall_as_the_drive_grows():
    for few, many in zip(boundaries(("softplus", "relu"), 0.3), boundaries(("softplus", "relu"), 1.0), strict=True):
        assert few.contracts == many.contracts
        assert few.exists > many.exists


def run_alone(source, x, folder):
    """What the program gives for x where notsodeep cannot be imported."""
    (folder / "network.py").write_bytes(source)
    np.save(folder / "x.npy", x.numpy())
    program = (
        "import sys; sys.modules['notsodeep'] = None; sys.path.insert(0, '.'); import numpy, torch, network; "
        "numpy.save('y.npy', network.load()(torch.from_numpy(numpy.load('x.npy'))).detach().numpy())"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=120)
    return torch.from_numpy(np.load(folder / "y.npy"))


def enn(found, classes):
    draw = torch.Generator().manual_seed(0)
    return nsd.ENN(found.design.explicit, found.data.x.shape[1], WIDTH, out_features=classes, generator=draw)


def test_the_network_as_a_program(studied, tmp_path):
    found = studied("hermite")
    x = found.data.x[:7].to(torch.float32)
    y = run_alone(network_file(found, "py"), x, tmp_path)
    assert y.shape == (7, 2)
    torch.testing.assert_close(y, enn(found, 2)(x).detach(), rtol=1e-4, atol=1e-5)


def test_the_network_as_onnx(studied):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = studied("digits")
    session = onnxruntime.InferenceSession(network_file(found, "onnx"), providers=["CPUExecutionProvider"])
    x = found.data.x[:7].to(torch.float32)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert y.shape == (7, 10)
    torch.testing.assert_close(torch.from_numpy(y), enn(found, 10)(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "ntk"])
def test_the_figure_is_a_png(studied, name):
    content = figure_file(studied(name))
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[k : k + 4], "big") for k in (16, 20))
    assert width > 600
    assert height > 200
    assert content.rstrip().endswith(b"IEND\xaeB`\x82")


@pytest.mark.filterwarnings("ignore::notsodeep.errors.NumericsWarning")
@pytest.mark.parametrize("name", ["relu", "ntk", "digits", "expression"])
def test_the_python_of_a_state_gives_its_numbers(studied, name, capsys):
    found, space = studied(name), {}
    exec(python_of(STATES[name], found=found.design.family), space)
    assert space["found"].measured.gap == pytest.approx(found.gap, rel=1e-4, abs=1e-9)
    assert f"{found.gap:.2e}" in capsys.readouterr().out


def test_the_python_of_a_nearest_member(capsys):
    state = State(family="hard_tanh", n=100, p=100)
    found = study(state, SHELF)
    exec(python_of(state, found=found.design.family, nearest="family" in found.notes), {})
    assert f"gap {found.gap:.2g}\n" in capsys.readouterr().out


def test_the_python_of_a_long_series(capsys):
    state = State(activation="silu", family="hermite", n=300, p=100)
    found, space = study(state, SHELF), {}
    exec(python_of(state, found=found.design.family), space)
    assert space["found"].measured.gap == pytest.approx(found.gap, rel=1e-4)
    assert found.design.family in capsys.readouterr().out


@pytest.mark.parametrize("labels", [False, True])
def test_the_python_of_an_upload(tmp_path, monkeypatch, labels):
    lines = [",".join(map(repr, row)) + labels * f",{'ab'[i % 2]}" for i, row in enumerate(TABLE.tolist())]
    head = ",".join(f"f{k}" for k in range(12)) + labels * ",label"
    (tmp_path / "t.csv").write_text("\n".join([head, *lines]) + "\n")
    shelf, held = Shelf(), read_upload("t.csv", (tmp_path / "t.csv").read_bytes())
    state = State(data="upload", upload=shelf.put(held), n=100)
    found, space = study(state, shelf), {}
    monkeypatch.chdir(tmp_path)
    exec(python_of(state, held), space)
    assert space["x"].shape == (100, 12)
    assert space["found"].measured.gap == pytest.approx(found.gap, rel=1e-4)


def numbers_of(figure):
    for trace, axis in itertools.product(figure["data"], "xy"):
        values = trace.get(axis)
        if values is not None and not isinstance(values[0], str):
            yield np.asarray(values, dtype=float)


@pytest.mark.parametrize("name", STATES)
def test_figures_are_there_and_finite(studied, name):
    pytest.importorskip("dash_mantine_components")
    from notsodeep.app import answers
    from notsodeep.figures.explorer import gap_figure

    found = studied(name)
    points = [(20, 0.5), (40, 0.3)]
    figures = [answers.spectra(found), answers.activations(found), answers.admissible(found), gap_figure(points)]
    assert [len(figure["data"]) for figure in figures] == [3, 1 + len(found.design.explicit.curves), 3, 2]
    for figure in figures:
        values = list(numbers_of(figure))
        assert values
        assert all(np.isfinite(value).all() and len(value) > 1 for value in values)
    counts = figures[0]["data"][0]["y"][::2]
    assert sum(count for count in counts if count >= 1) == len(found.data.x)
    assert STATES[name].activation in figures[2]["data"][0]["y"]
    rows = answers.table(found).to_plotly_json()["props"]["children"][1].children
    assert len(rows) >= 5
    assert f"{found.gap:.2g} away" in answers.summary(found)
