"""The driver: stopping, traces, best-so-far, kinds of failure, states of several tensors."""

from collections import OrderedDict

import pytest
import torch

import notsodeep as nsd

from .maps import contraction, tanh_map

Z0 = torch.ones(3, 4, dtype=torch.float64)
FIRST = torch.tensor([[True], [False], [False]])
INPLACE = [lambda z: z.mul_(0.5).add_(1.0), torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 4))]


def solve(f, z0=Z0, solver=nsd.Picard(), **options):  # noqa: B008
    return nsd.fixed_point(f, z0, solver, throw=False, **options)


def test_a_solution_tells_how_it_was_found():
    rates = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)
    found = solve(lambda z: rates * z + 1.0, tol=1e-6, max_steps=300)
    torch.testing.assert_close(found.value, (1.0 / (1.0 - rates)).expand(3, 4), rtol=1e-4, atol=0.0)
    assert found.steps[0] < found.steps[1] < found.steps[2] == len(found.residuals)
    assert found.residuals.shape == (found.evaluations - found.extra, 3)
    for sample, steps in enumerate(found.steps.tolist()):
        assert found.residuals[steps - 1, sample] <= 1e-6 < found.residuals[steps - 2, sample]
    torch.testing.assert_close(found.residual, found.residuals.amin(0))


def test_relative_and_absolute_stopping():
    relative = solve(lambda z: 0.5 * z + 1000.0, tol=1e-3)
    absolute = solve(lambda z: 0.5 * z + 1000.0, tol=1e-3, relative=False)
    size = (0.5 * absolute.value + 1000.0 - absolute.value).norm(dim=1)
    assert float(size.max()) <= 1e-3
    assert relative.evaluations < absolute.evaluations
    assert float((0.5 * relative.value + 1000.0 - relative.value).norm(dim=1).max()) > 1e-3


def test_a_fixed_point_at_zero_is_found():
    found = solve(lambda z: 0.5 * z)
    assert found.reason is nsd.fixed_points.Reason.converged
    assert float(found.value.abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("f", "options", "reason"),
    [
        (lambda z: 2.0 * z + 1.0, {}, "diverged"),
        (lambda z: 1.02 * z + 1.0, {}, "diverged"),
        (lambda z: 2.0 * z**3, {}, "diverged"),
        (lambda z: 1.0 - z, {}, "stalled"),
        (lambda z: 3.7 * z * (1.0 - z), {"z0": 0.3 * Z0}, "stalled"),  # chaos, bounded
        (lambda z: torch.full_like(z, torch.nan), {}, "nan"),
        (lambda z: torch.where(z > 1.5, torch.inf, 0.5 * z + 1.0), {}, "nan"),
        (lambda z: 0.99 * z + 1.0, {"max_steps": 50}, "max_steps"),
    ],
)
def test_failures_are_told_apart(f, options, reason):
    found = solve(f, **options)
    assert found.reason == reason
    assert not bool(found.converged.any())
    with pytest.raises(nsd.NotConverged) as error:
        nsd.fixed_point(f, options.pop("z0", Z0), nsd.Picard(), **options)
    assert error.value.reason == reason
    assert error.value.residual.shape == (3,)
    assert error.value.residuals.shape == found.residuals.shape
    assert {"diverged": "run away", "stalled": "stopped shrinking", "nan": "NaN", "max_steps": "max_steps"}[reason] in str(
        error.value
    )


def test_noise_below_the_tolerance_stalls_with_the_dtype_in_the_remedy():
    draw = torch.Generator().manual_seed(0)
    found = solve(lambda z: 0.5 * z + 1.0 + 1e-4 * torch.rand(3, 4, generator=draw), tol=1e-8, max_steps=500)
    assert found.reason is nsd.fixed_points.Reason.stalled
    assert float(found.residual.max()) < 1e-3
    with pytest.raises(nsd.NotConverged, match="raise tol"):
        found.raise_unless_converged()


def test_running_out_of_steps_says_how_many_are_needed():
    with pytest.raises(nsd.NotConverged, match="Set max_steps to about") as error:
        nsd.fixed_point(lambda z: 0.9 * z + 1.0, 10.5 * Z0, nsd.Picard(), max_steps=30)
    needed = int(str(error.value).split("about ")[1].split(",")[0])
    assert solve(lambda z: 0.9 * z + 1.0, 10.5 * Z0, max_steps=needed).reason is nsd.fixed_points.Reason.converged


@pytest.mark.parametrize("solver", [nsd.Picard(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0), nsd.Anderson()])
@pytest.mark.parametrize("late", [False, True])
def test_a_nan_in_one_sample_does_not_spoil_the_others(solver, late):
    weight, x = contraction(3, 4)
    clean = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), solver)
    calls = []

    def f(z):
        calls.append(0)
        image = tanh_map(weight, x)(z)
        return torch.where(FIRST & (len(calls) > 3), torch.nan, image) if late else torch.where(FIRST, torch.nan, image)

    found = nsd.fixed_point(f, torch.zeros_like(x), solver, throw=False)
    assert found.converged.tolist() == [False, True, True]
    assert found.reason is nsd.fixed_points.Reason.nan
    torch.testing.assert_close(found.value[1:], clean.value[1:], rtol=1e-8, atol=1e-9)
    assert bool(torch.isfinite(found.value).all())  # the first sample keeps its best iterate
    with pytest.raises(nsd.NotConverged, match="sample 0"):
        found.raise_unless_converged()


def test_a_sample_that_diverges_does_not_spoil_the_others():
    found = solve(lambda z: torch.where(FIRST, 3.0 * z**3, 0.5 * z + 1.0))
    assert found.converged.tolist() == [False, True, True]
    assert found.reason is nsd.fixed_points.Reason.diverged
    assert bool(torch.isfinite(found.value).all())


def test_the_best_iterate_is_kept_when_things_get_worse():
    # Residuals fall to a minimum, then grow: the answer is the iterate at the minimum.
    found = solve(lambda z: z + torch.where(z < 5.0, 0.5 * (5.01 - z), 0.02 * z), max_steps=40)
    trace = found.residuals[:, 0]
    assert float(found.residual[0]) == float(trace.min()) < float(trace[-1])


def test_states_may_be_nested():
    weight, x = contraction(5, 6)
    merged = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), tol=1e-12).value

    def f(state):
        z = torch.cat([state["left"], state["rest"][0].flatten(1)], dim=1)
        image = torch.tanh(z @ weight.T + x)
        return {"left": image[:, :2], "rest": (image[:, 2:].reshape(5, 2, 2),)}

    start = {"left": torch.zeros(5, 2, dtype=torch.float64), "rest": (torch.zeros(5, 2, 2, dtype=torch.float64),)}
    found = nsd.fixed_point(f, start, tol=1e-12)
    assert found.residuals.shape[1] == 5
    torch.testing.assert_close(found.value["left"], merged[:, :2])
    torch.testing.assert_close(found.value["rest"][0].flatten(1), merged[:, 2:])


def test_gradients_pass_through_nested_states():
    weight, x = (t.requires_grad_() for t in contraction(3, 4))

    def run(weight, x):
        def f(state):
            a, b = state
            image = torch.tanh(torch.cat([a, b], dim=1) @ weight.T + x)
            return image[:, :1], image[:, 1:]

        found = nsd.fixed_point(f, (torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)), tol=1e-13)
        return torch.cat(found.value, dim=1)

    assert torch.autograd.gradcheck(run, (weight, x))


@pytest.mark.parametrize("shape", [(), (4,)])
def test_a_vector_or_a_number_is_one_sample(shape):
    found = nsd.fixed_point(lambda z: torch.cos(z), torch.zeros(shape, dtype=torch.float64))
    assert found.value.shape == shape
    assert found.converged.shape == (1,)
    torch.testing.assert_close(found.value, torch.full(shape, 0.7390851332151607, dtype=torch.float64), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("f", "z0", "says"),
    [
        (lambda z: z[:, :2], Z0, r"\(3, 4\).*\(3, 2\)"),
        (lambda z: (z, z), Z0, "a tuple of 2 tensors"),
        (lambda _: None, Z0, "NoneType"),
        (lambda z: z, torch.zeros(3, 4, dtype=torch.long), "int64"),
        (lambda z: z, [1.0, 2.0], "float"),
        (lambda z: z, (), "nothing"),
        (lambda z: z, torch.zeros(0, 4), "empty"),
        (lambda z: z, torch.zeros(3, 4).to(torch.float8_e4m3fn), "float8_e4m3fn.*computes nothing"),
        (lambda z: z, torch.zeros(3, 4).to_sparse(), r"layout sparse_coo.*to_dense\(\)"),
        (lambda z: z, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "layout nested.*to_padded_tensor"),
        (lambda z: z, torch.zeros(3, 4, device="meta"), "device meta.*hold no numbers"),
        (lambda z: {"b": z["a"]}, {"a": Z0}, r"a dict of 1 tensor \('a'\), f returned a dict of 1 tensor \('b'\)"),
        (lambda: Z0, Z0, "f is called with the state alone, and does not take that: .*takes 0 positional"),
        (lambda z, x: z + x, Z0, r"does not take that: .*missing 1 .*lambda z: f\(z, x\)"),
        (torch.nn.Bilinear(4, 4, 4).double(), Z0, "does not take that: .*missing 1"),
    ],
)
def test_states_that_do_not_fit_are_refused(f, z0, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(f, z0)


@pytest.mark.parametrize(
    "options",
    [{"tol": 0.0}, {"max_steps": 0}, {"max_steps": 2.5}, {"precision": "mixed"}, {"adjoint": "ift"}, {"solver": "picard"}],
)
def test_options_are_checked(options):
    with pytest.raises(nsd.BadInput):
        nsd.fixed_point(lambda z: 0.5 * z + 1.0, Z0, **options)


@pytest.mark.parametrize(
    "inplace", [lambda z: z.mul_(0.5).add_(1.0), torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 4))]
)
def test_a_map_that_works_in_place_is_refused(inplace):
    z0 = torch.zeros(3, 4)
    with pytest.raises(nsd.BadInput, match="in place"), torch.no_grad():
        nsd.fixed_point(inplace, z0)
    assert float(z0.abs().sum()) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_relative_means_relative(dtype, size):
    found = solve(lambda z: 0.5 * z + size, torch.zeros(3, 4, dtype=dtype))
    wanted = torch.full((3, 4), 2.0, dtype=torch.float64)
    torch.testing.assert_close(found.value.double() / size, wanted, rtol=2 * found.tol, atol=0.0)


def test_samples_within_tolerance_on_different_steps_are_checked_together():
    # Near 0 each row grows again after its residual was within tolerance; they get there on different steps.
    rate = torch.tensor([[0.5], [0.5], [0.3]], dtype=torch.float64)
    f = lambda z: torch.where(z.abs() < 1e-3, 3.0 * z, rate * z)  # noqa: E731
    start = torch.tensor([[1.0], [0.3], [0.9]], dtype=torch.float64)
    found = nsd.fixed_point(f, start, nsd.Picard(), tol=2e-3, relative=False, throw=False)
    assert len(set(found.steps.tolist())) > 1
    torch.testing.assert_close((f(found.value) - found.value).norm(dim=1), found.residual)
    assert bool((found.residual <= found.tol).all())


def test_tensors_keep_their_own_dtypes():
    start = (torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.float64))
    found = nsd.fixed_point(lambda s: (0.5 * s[0] + 1.0, 0.5 * s[1] + 1.0 / 3.0), start)
    assert [t.dtype for t in found.value] == [torch.float32, torch.float64]
    torch.testing.assert_close(found.value[1], torch.full((3, 1), 2.0 / 3.0, dtype=torch.float64), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("f", "args", "says"), [(3, None, "function"), (torch.cos, torch.ones(2), "tuple"), (torch.cos, (0.5,), "tuple")]
)
def test_arguments_are_checked(f, args, says):
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fixed_point(f, Z0, args=args)


def test_one_step_is_reported_as_one_step():
    with pytest.raises(nsd.NotConverged, match="ran out of steps") as error:
        nsd.fixed_point(lambda z: 0.5 * z + 1.0, Z0, max_steps=1)
    assert "nan" not in str(error.value)


def test_half_precision_states():
    for dtype in (torch.bfloat16, torch.float16):
        for solver in (nsd.Picard(), nsd.Anderson(engage=0.0), nsd.Broyden(engage=0.0)):
            weight, x = contraction(6, 8, dtype=torch.float32)
            exact = nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x)).value
            found = nsd.fixed_point(tanh_map(weight.to(dtype), x.to(dtype)), torch.zeros_like(x).to(dtype), solver)
            assert found.value.dtype == dtype
            assert float((found.value.float() - exact).norm() / exact.norm()) < 0.05


def test_mixed_precision_is_full_precision_on_a_cpu():
    weight, x = contraction(6, 8, dtype=torch.float32)
    results = [
        nsd.fixed_point(tanh_map(weight, x), torch.zeros_like(x), precision=p)
        for p in (nsd.fixed_points.FullPrecision(), nsd.fixed_points.MixedPrecision())
    ]
    assert torch.equal(results[0].value, results[1].value)
    assert results[1].low_precision_steps == 0


def test_a_type_error_inside_of_f_stays_one():
    def f(z):
        return z + (lambda: 1.0)(z)

    with pytest.raises(TypeError, match="takes 0 positional arguments") as caught:
        nsd.fixed_point(f, Z0)
    assert not isinstance(caught.value, nsd.BadInput)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_keys_may_come_in_another_order(kind):
    start = (kind(a=torch.zeros(2, 3), b=torch.zeros(2, 3)),)
    f = lambda s: (kind(b=0.3 * s[0]["b"] + 2.0, a=0.2 * s[0]["a"] + s[0]["b"]),)  # noqa: E731
    (found,) = nsd.fixed_point(f, start).value
    assert list(found) == ["a", "b"]
    torch.testing.assert_close(found["b"], torch.full((2, 3), 2.0 / 0.7), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(found["a"], found["b"] / 0.8, rtol=1e-4, atol=0.0)
