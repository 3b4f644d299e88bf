"""scikit-learn estimators of DEQs, of their explicit twins and of their kernels; `estimators.gp` has the GPyTorch kernel."""

from notsodeep.estimators.kernel_ridge import ImplicitKernelClassifier, ImplicitKernelRidge
from notsodeep.estimators.networks import (
    DEQClassifier,
    DEQFeatures,
    DEQRegressor,
    ExplicitClassifier,
    ExplicitFeatures,
    ExplicitRegressor,
)

ESTIMATORS = (
    DEQClassifier,
    DEQRegressor,
    ExplicitClassifier,
    ExplicitRegressor,
    ImplicitKernelClassifier,
    ImplicitKernelRidge,
    DEQFeatures,
    ExplicitFeatures,
)

__all__ = [*(kind.__name__ for kind in ESTIMATORS), "ESTIMATORS"]
