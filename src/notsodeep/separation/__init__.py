"""Where a DEQ is worth its cost: targets, networks by construction, and the bounds of the theorems. Ref: [wu2024]."""

from notsodeep.models.relu_deq import ReluDEQ
from notsodeep.separation.bounds import (
    max_pieces_deq,
    max_pieces_fnn,
    min_weight_fnn,
    min_weight_steep_fnn,
    steep_deq_size,
)
from notsodeep.separation.constructions import SteepDEQ, sawtooth_deq, steep_deq, steep_fnn
from notsodeep.separation.diagonal import (
    DiagonalDEQ,
    flow_limit,
    gotu_bound,
    gotu_limit,
    gradient_descent,
    gradient_flow,
)
from notsodeep.separation.pieces import count_pieces
from notsodeep.separation.targets import (
    BOOLEAN_TARGETS,
    BooleanTarget,
    Chirps,
    Sawtooth,
    Steep,
    Target,
    sawtooth,
    steep,
)

__all__ = [
    "BOOLEAN_TARGETS",
    "BooleanTarget",
    "Chirps",
    "DiagonalDEQ",
    "ReluDEQ",
    "Sawtooth",
    "Steep",
    "SteepDEQ",
    "Target",
    "count_pieces",
    "flow_limit",
    "gotu_bound",
    "gotu_limit",
    "gradient_descent",
    "gradient_flow",
    "max_pieces_deq",
    "max_pieces_fnn",
    "min_weight_fnn",
    "min_weight_steep_fnn",
    "sawtooth",
    "sawtooth_deq",
    "steep",
    "steep_deq",
    "steep_deq_size",
    "steep_fnn",
]
