"""Numbers that the papers print, or that are read off their plots (± .003)."""

from __future__ import annotations

LARGEST_WIDTH, SMALLEST_WIDTH = 2**12, 2**5

ACCURACY: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("mnist", "tanh"): {"matched": (0.760, 0.917), "deq": (0.757, 0.918), "plain": (0.775, 0.905)},
    ("mnist", "relu"): {"matched": (0.652, 0.936), "deq": (0.717, 0.939), "plain": (0.576, 0.916)},
    ("fashion-mnist", "tanh"): {"matched": (0.757, 0.837), "deq": (0.742, 0.837), "plain": (0.762, 0.822)},
    ("fashion-mnist", "relu"): {"matched": (0.697, 0.842), "deq": (0.735, 0.846), "plain": (0.658, 0.822)},
    ("cifar10-vgg19", "tanh"): {"matched": (0.759, 0.846), "deq": (0.745, 0.845), "plain": (0.755, 0.845)},
    ("cifar10-vgg19", "relu"): {"matched": (0.623, 0.835), "deq": (0.677, 0.840), "plain": (0.501, 0.760)},
}
"""Test accuracy [ling2024] of each network at widths 2⁵ and 2¹², readout trained. CIFAR-10's features are theirs, not ours."""
