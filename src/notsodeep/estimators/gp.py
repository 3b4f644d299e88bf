"""A Gaussian process with the kernel of an infinitely wide DEQ, in GPyTorch (extra ``[gp]``)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep.activations import ActivationLike
from notsodeep.arguments import norm, positive
from notsodeep.errors import BadInput, NotContractive, NumericsWarning
from notsodeep.kernels.exact.kernels import exact_kernel
from notsodeep.kernels.exact.solver import equation_of_norms
from notsodeep.kernels.names import OF_OUTPUTS, as_kernel
from notsodeep.theory.architecture import Implicit
from notsodeep.theory.statistics import squared_norms

try:
    from gpytorch.constraints import Interval, Positive
    from gpytorch.kernels import Kernel
except ImportError as error:
    raise ImportError("notsodeep.estimators.gp needs GPyTorch: pip install 'notsodeep[gp]'.") from error

_STEP = 1e-4
_SMALLEST = 1e-4


def _under_constraint(raw: str, doc: str) -> Any:
    """The property whose value a constraint makes of the parameter `raw`."""

    def value(kernel: DEQKernel) -> Tensor:
        return getattr(kernel, f"{raw}_constraint").transform(getattr(kernel, raw))  # type: ignore[no-any-return]

    return property(value, lambda kernel, value: kernel._set(raw, value), doc=doc)


class DEQKernel(Kernel):  # type: ignore[misc]
    """k(x, x') = G* or Θ* of a DEQ, with σ_a² and σ_b² as parameters that a marginal likelihood can choose.

    The values are those of `conjugate_kernel` and `tangent_kernel`, exact to round-off. Derivatives in σ_a² and σ_b² are
    central differences of them, with an error of about 1e-8. Inputs get no gradient.

    Args:
        activation: φ: a name, an `Activation`, or any torch callable; it is centred at `tau0`.
        var_a: The initial σ_a², above 1e-4 and below `largest_var_a`, between which it stays.
        var_b: The initial σ_b²; 1 − σ_a² by default.
        kernel: "conjugate" or "tangent".
        tau0: The root mean square norm of the inputs.
        largest_var_a: The bound of σ_a²; by default 1/(4L²), below which a network of any large width contracts.
        active_dims: The features that the kernel uses, as in GPyTorch.

    Raises:
        BadInput: If σ_a² is out of bounds, or no kernel exists at `largest_var_a`.
    """

    has_lengthscale = False
    var_a = _under_constraint("raw_var_a", "σ_a², (1,).")
    var_b = _under_constraint("raw_var_b", "σ_b², (1,).")

    def __init__(
        self,
        activation: ActivationLike = "relu",
        var_a: float = 0.1,
        var_b: float | None = None,
        *,
        kernel: str = "conjugate",
        tau0: float = 1.0,
        largest_var_a: float | None = None,
        active_dims: Any = None,
    ) -> None:
        super().__init__(active_dims=active_dims)
        net = Implicit(activation, var_a, var_b)
        as_kernel(kernel, OF_OUTPUTS)
        self.largest_var_a = _largest(net, largest_var_a, tau0)
        self.phi, self.kernel, self.tau0 = net.phi, kernel, norm(tau0)
        for name, value, constraint in (
            ("raw_var_a", net.var_a, Interval(_SMALLEST, self.largest_var_a)),
            ("raw_var_b", net.var_b, Positive()),
        ):
            self.register_parameter(name, nn.Parameter(torch.zeros(1)))
            self.register_constraint(name, constraint)
            self._set(name, value)

    def _set(self, name: str, value: float) -> None:
        value = positive(value, name.removeprefix("raw_"))
        if name == "raw_var_a" and not _SMALLEST < value < self.largest_var_a:
            raise BadInput(
                f"var_a = {value:g} must lie between {_SMALLEST:g} and {self.largest_var_a:.4g}; choose it lower, or build the "
                "kernel with a larger largest_var_a."
            )
        constraint = getattr(self, f"{name}_constraint")
        raw = getattr(self, name)
        self.initialize(**{name: constraint.inverse_transform(torch.as_tensor(float(value)).to(raw).expand_as(raw))})

    def implicit(self) -> Implicit:
        """The network with the current parameters."""
        return Implicit(self.phi, self.var_a.item(), self.var_b.item())

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        """The kernel (…, n1, n2) of x1 (…, n1, p) and x2 (…, n2, p), or with `diag` its diagonal (…, n)."""
        if x1.requires_grad or x2.requires_grad:
            raise BadInput("DEQKernel has derivatives in σ_a² and σ_b², not in its inputs; detach them.")
        if x1.ndim > 2 or x2.ndim > 2:
            batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
            left, right = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (x1, x2))
            each = [self.forward(a, b, diag) for a, b in zip(left, right, strict=True)]
            return torch.stack(each).reshape(*batch, *each[0].shape)
        found: Tensor = _Values.apply(self.var_a, self.var_b, x1, x2, self, diag)
        return found

    def values(self, var_a: float, var_b: float, x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
        """The kernel of two sets of samples for given variances."""
        net = Implicit(self.phi, var_a, var_b)
        same = x1.shape == x2.shape and torch.equal(x1, x2)
        if diag and same:
            exact = equation_of_norms(net, squared_norms(x1), self.tau0).diagonal(slice(None))
            diagonal: Tensor = getattr(exact, self.kernel).to(x1)
            return diagonal
        dense: Tensor = exact_kernel(net, x1, None if same else x2, self.kernel, self.tau0)
        return dense.diagonal() if diag else dense


def _largest(net: Implicit, given: float | None, tau0: float) -> float:
    """The bound of var_a: 1/(4L²), or the given one if the kernel exists there."""
    if given is None:
        if net.contraction_bound <= _SMALLEST:
            raise BadInput(f"{net.phi} has no var_a sure to be admissible (L = {net.phi.lipschitz:g}); give largest_var_a.")
        return min(net.contraction_bound, 1e6)
    largest = positive(given, "largest_var_a")
    try:
        Implicit(net.phi, largest, net.var_b).deviation(tau0)
    except NotContractive as error:
        raise BadInput(f"largest_var_a = {largest:g} is not admissible. {error}") from error
    return largest


class _Values(torch.autograd.Function):
    """The kernel as a differentiable function of σ_a² and σ_b²."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, var_a: Tensor, var_b: Tensor, x1: Tensor, x2: Tensor, kernel: DEQKernel, diag: bool
    ) -> Tensor:
        ctx.at, ctx.like, ctx.inputs = (var_a.item(), var_b.item()), var_a, (x1, x2)
        ctx.kernel, ctx.diag = kernel, diag
        return kernel.values(var_a.item(), var_b.item(), x1, x2, diag)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """⟨grad, ∂K/∂θ⟩ with ∂K/∂θ ≈ (K(θ + h) − K(θ − h))/2h, h relative to θ."""
        slopes: list[Tensor | None] = []
        for which in range(2):
            if not ctx.needs_input_grad[which]:
                slopes.append(None)
                continue
            h = _STEP * ctx.at[which]
            ahead, behind = ([theta + side * h * (k == which) for k, theta in enumerate(ctx.at)] for side in (1, -1))
            wide = [x.double() for x in ctx.inputs]
            with warnings.catch_warnings():  # of a σ_a² slightly above the one asked for
                warnings.simplefilter("ignore", NumericsWarning)
                change = ctx.kernel.values(*ahead, *wide, ctx.diag) - ctx.kernel.values(*behind, *wide, ctx.diag)
            slopes.append(ctx.like.new_full((1,), float((change * grad.double()).sum()) / (2.0 * h)))
        return (*slopes, None, None, None, None)
