"""The fixed-point problems that jaxopt and optimistix publish in their tests, written anew from their mathematics.

Sizes, parameters and tolerances are theirs; where they draw random numbers, so do we, of the same distribution (their generator
is another). Sources: google/jaxopt, tests/fixed_point_iteration_test.py, anderson_test.py, anderson_wrapper_test.py and
broyden_test.py; patrick-kidger/optimistix, tests/helpers.py, test_fixed_point.py and test_root_find.py.
"""

import math

import torch
from torch.utils import _pytree as pytree

F64 = torch.float64


def rtol_and_atol(tol: float) -> dict:
    """optimistix stops at rtol = atol."""
    return {"tol": tol, "atol": tol}


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# jaxopt


def rotation(dtype):
    """Rotations by seven angles about c: an isometry, which plain steps circle for ever. (f, start, c)."""
    angles = math.pi / torch.tensor([2, 3, 4, 5, 6, 1.27, 1.73], dtype=dtype)
    matrix = torch.block_diag(
        *(torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])]) for a in angles)
    )
    centre = torch.arange(1, 15, dtype=dtype)
    return lambda x: matrix @ (x - centre) + centre, torch.rand(14, generator=draws(0), dtype=dtype), centre


def affine(n: int, dtype=F64):
    """(M, b) with M symmetric and λ_max(M) just below ½."""
    matrix = 2.0 * torch.rand(n, n, generator=draws(0), dtype=dtype) - 1.0
    matrix = matrix + matrix.T
    matrix = matrix / (2.0 * torch.linalg.eigvalsh(matrix)[-1].abs() + 1e-4)
    return matrix, torch.rand(n, generator=draws(1), dtype=dtype)


def soft(w, threshold):
    return w.sign() * (w.abs() - threshold).clamp(min=0.0)


def regression(samples: int, features: int):
    from sklearn.datasets import make_regression

    return tuple(torch.from_numpy(part) for part in make_regression(samples, features, random_state=0))


def least_squares(w, data):
    inputs, targets = data
    return 0.5 * ((inputs @ w - targets) ** 2).mean()


def lasso_step(data):
    """(w, λ) ↦ one proximal gradient step of ‖Xw − y‖²/2n + λ‖w‖₁, its length 1/L."""
    inputs, targets = data
    length = len(targets) / torch.linalg.matrix_norm(inputs, 2) ** 2
    return lambda w, lam: soft(w - length * inputs.T @ (inputs @ w - targets) / len(targets), length * lam)


def lasso_sweep(data, lam):
    """One sweep over the coordinates of the same objective, each with the step 1/‖X_i‖² (jaxopt's: without the 1/n)."""
    inputs, targets = data

    def sweep(w):
        for k in range(len(w)):
            length = 1.0 / inputs[:, k].square().sum()
            slope = inputs[:, k] @ (inputs @ w - targets) / len(targets)
            w = torch.where(torch.arange(len(w)) == k, soft(w - length * slope, length * lam), w)
        return w

    return sweep


def logistic(samples: int, features: int, l2: float = 100.0):
    """Multi-class logistic regression with intercept and ridge: ((W, b) ↦ objective, start)."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        samples, features, n_classes=3, n_informative=3, n_redundant=min(2, features - 3), random_state=0
    )
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)

    def objective(parameters):
        weight, bias = parameters
        return torch.nn.functional.cross_entropy(inputs @ weight + bias, labels) + 0.5 * l2 * weight.square().sum()

    return objective, (torch.zeros(features, 3, dtype=F64), torch.zeros(3, dtype=F64))


# optimistix


def _flat(tree):
    leaves, spec = pytree.tree_flatten(tree)
    shapes = [leaf.shape for leaf in leaves]

    def back(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        return pytree.tree_unflatten([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)], spec)

    return torch.cat([leaf.reshape(-1) for leaf in leaves]), back


def elementwise(phi):
    return lambda tree, const: pytree.tree_map(lambda leaf: phi(const * leaf), tree)


def network(tree, weight1, bias1, weight2, bias2):
    y, back = _flat(tree)
    h = weight1 @ y + bias1
    softplus = torch.log1p(torch.exp(h)) if not h.is_complex() else torch.log(1.0 + torch.exp(h))
    return back(0.1 * (weight2 @ softplus + bias2))


def heat(y, const):
    """One Crank–Nicolson step of length 1 of dy/dt = (1 − y) Δy, from y₀ = x², on 100 points.

    As it is published: the Laplacian there is computed and then not returned, so that Δy is y itself.
    """
    y0 = torch.linspace(-1.0, 1.0, 100, dtype=F64).to(y.dtype) ** 2
    return const * (y0 + 0.5 * ((1.0 - y) * y + (1.0 - y0) * y0))


def midpoint(form: str, rhs, dt: float):
    """The implicit midpoint rule from 0 in the space of y, of f or of k = dt·f: its fixed point is 0 where rhs(0) = 0."""

    def step(tree, *parameters):
        y, back = _flat(tree)
        if form == "y":
            return back(dt * rhs(0.5 * y, *parameters))
        return back(rhs(dt * y, *parameters) if form == "f" else dt * rhs(y, *parameters))

    return step


def linear(y, matrix):
    return matrix @ y if matrix.ndim == 2 else matrix * y


def robertson(y, k1, k2, k3):
    first = -k1 * y[0] + k3 * y[1] * y[2]
    third = k2 * y[1] ** 2
    return torch.stack([first, -first - third, third])


def _ones(dtype=F64):
    return {"a": torch.full((3, 2, 4), 0.5, dtype=dtype)}, torch.full((4,), 0.5, dtype=dtype)


def _network_weights():
    draw = draws(42)
    uniform = lambda fan_in, *shape: (2.0 * torch.rand(*shape, generator=draw, dtype=F64) - 1.0) / math.sqrt(fan_in)  # noqa: E731
    return uniform(28, 8, 28), uniform(28, 8), uniform(8, 28, 8), uniform(8, 28)


ONE = (torch.tensor(1.0, dtype=F64),)
MATRIX = (torch.randn(28, 28, generator=draws(19), dtype=F64),)
RATES = tuple(torch.tensor(rate, dtype=F64) for rate in (0.04, 3e7, 1e4))
THREE = (torch.ones(2, dtype=F64), {"b": torch.tensor(1.0, dtype=F64)})

OPTIMISTIX = {
    "cos": (elementwise(torch.cos), _ones(), ONE),
    "exponential": (elementwise(lambda x: torch.exp(-x)), _ones(), ONE),
    "network": (network, _ones(), _network_weights()),
    "heat": (heat, torch.ones(100, dtype=F64), ONE),
    **{f"midpoint {form}": (midpoint(form, linear, 1 / 16), _ones(), MATRIX) for form in "yfk"},
    **{f"robertson {form}": (midpoint(form, robertson, 1e-8), THREE, RATES) for form in "yfk"},
}
"""name: (f(state, *parameters), start, parameters)."""

OPTIMISTIX_SCALAR = {
    "trivial": (lambda y, const: y - (y - const), 1.0),  # the root of y − 1
    "cos": (lambda y, const: torch.cos(const * y), 1.0),
    "exponential": (lambda y, const: torch.exp(-const * y), 1.0),
    "midpoint y": (midpoint("y", linear, 1 / 16), 0.5),
    "midpoint f": (midpoint("f", linear, 1 / 16), 0.625),
    "midpoint k": (midpoint("k", linear, 1 / 16), -0.137),
}


def five_equations(bound: float):
    """g(y) = (foo·bar, y_a, y_c², tanh y_d, y_e + 1), with roots y_b = 1 and −1, as steps that keep y_b on the bound's side.

    Each equation moves the unknown that it is about; the sign of the first is that of its slope, 2 or −2, at the root.
    """

    def step(y):
        a, ((b, c), (d, e)) = y[0], y[1]
        foo, bar = a + b + c + d + e, a - b + c - d + e
        b = b + bound * 0.5 * foo * bar
        b = b.clamp(min=0.0) if bound > 0 else b.clamp(max=0.0)
        rest = torch.stack([torch.stack([b, c - c**2]), torch.stack([d - torch.tanh(d), torch.full_like(e, -1.0)])])
        return torch.zeros_like(a), rest

    start = (torch.tensor(0.1, dtype=F64), torch.tensor([[1.1 * bound, 0.1], [0.1, -1.1]], dtype=F64))
    root = (torch.tensor(0.0, dtype=F64), torch.tensor([[bound, 0.0], [0.0, -1.0]], dtype=F64))
    return step, start, root
