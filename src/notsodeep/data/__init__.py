"""Data: Gaussian mixtures, their statistics, and loaders."""

from notsodeep.data.mixture import GaussianMixture
from notsodeep.data.sources import load
from notsodeep.data.statistics import MixtureStatistics, tau0

__all__ = ["GaussianMixture", "MixtureStatistics", "load", "tau0"]
