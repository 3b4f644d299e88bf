"""Where a DEQ is worth its cost: targets, networks by construction, and the bounds of the theorems. Ref: [wu2024]."""

from typing import TYPE_CHECKING

from notsodeep._lazy import lazy

if TYPE_CHECKING:
    from notsodeep.models.relu_deq import ReluDEQ as ReluDEQ
    from notsodeep.separation.bounds import (
        max_pieces_deq as max_pieces_deq,
        max_pieces_fnn as max_pieces_fnn,
        min_weight_fnn as min_weight_fnn,
        min_weight_steep_fnn as min_weight_steep_fnn,
        steep_deq_size as steep_deq_size,
    )
    from notsodeep.separation.constructions import SteepDEQ as SteepDEQ, sawtooth_deq as sawtooth_deq, steep_fnn as steep_fnn
    from notsodeep.separation.diagonal import (
        DiagonalDEQ as DiagonalDEQ,
        flow_limit as flow_limit,
        gotu_bound as gotu_bound,
        gotu_limit as gotu_limit,
        gradient_descent as gradient_descent,
        gradient_flow as gradient_flow,
    )
    from notsodeep.separation.pieces import count_pieces as count_pieces
    from notsodeep.separation.targets import (
        BOOLEAN_TARGETS as BOOLEAN_TARGETS,
        BooleanTarget as BooleanTarget,
        Chirps as Chirps,
        Sawtooth as Sawtooth,
        Steep as Steep,
        Target as Target,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
