"""Data sets: loading, splitting and standardising; Gaussian mixtures and their statistics."""

from notsodeep.data.image_sets import images
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.data.sources import Dataset, Split, load, load_split
from notsodeep.data.standardiser import Standardiser
from notsodeep.theory.mixture import GaussianMixture
from notsodeep.theory.statistics import MixtureStatistics, tau0

__all__ = [
    "Dataset",
    "GaussianMixture",
    "MixtureStatistics",
    "Preprocessing",
    "Split",
    "Standardiser",
    "images",
    "load",
    "load_split",
    "tau0",
]
