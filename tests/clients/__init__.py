"""Implicit layers that people train, each in a file of its own: what the library is for, in small."""

from .deblurring import DEBLURRING
from .graph_network import GRAPH_NETWORK
from .mdeq_layer import MDEQ_LAYER
from .monotone_convolution import MONOTONE_CONVOLUTION, MONOTONE_CONVOLUTION_HARD
from .monotone_dense import MONOTONE_DENSE, MONOTONE_DENSE_HARD
from .resnet_layer import RESNET_LAYER
from .transformer_layer import TRANSFORMER_LAYER

CLIENTS = (
    RESNET_LAYER,
    MDEQ_LAYER,
    MONOTONE_DENSE,
    MONOTONE_DENSE_HARD,
    MONOTONE_CONVOLUTION,
    MONOTONE_CONVOLUTION_HARD,
    GRAPH_NETWORK,
    TRANSFORMER_LAYER,
    DEBLURRING,
)
