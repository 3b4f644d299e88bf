"""The few scalars through which the kernels of high-dimensional data depend on a network."""

from notsodeep.architecture import Explicit, Network
from notsodeep.errors import BadInput
from notsodeep.scalars.explicit import explicit_scalars
from notsodeep.scalars.implicit import implicit_scalars
from notsodeep.scalars.values import Coefficients, Scalars

__all__ = ["Coefficients", "Scalars", "scalars"]


def scalars(net: Network, tau0: float) -> Scalars:
    """τ, γ, α1..α4, β1..β3 and κ of a network on data of root-mean-square norm τ0."""
    if not isinstance(net, Network):
        raise BadInput(f"Expected an Implicit or an Explicit network, got {type(net).__name__}.")
    return explicit_scalars(net, tau0) if isinstance(net, Explicit) else implicit_scalars(net, tau0)
