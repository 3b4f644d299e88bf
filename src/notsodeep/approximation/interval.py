"""Student's interval, for the mean of a few numbers."""

from scipy.special import stdtrit  # scipy.stats takes most of a second to import

LEVEL = 0.95


def student(degrees: int) -> float:
    """t with P(|T| ≤ t) = 95 % for Student's T with this many degrees of freedom."""
    return float(stdtrit(degrees, 0.5 + LEVEL / 2.0))
