"""Verdicts: a wide interval excuses nothing, and sharper is sharper."""

import pytest

from notsodeep.papers.claims import Claim, Verdict, about, at_most, holds


@pytest.mark.parametrize(
    ("ours", "spread", "verdict"),
    [
        (-0.58, 0.01, Verdict.reproduced),
        (-0.50, 0.00, Verdict.reproduced),
        (-0.49, 0.02, Verdict.reproduced),  # within its own spread
        (-0.49, 0.005, Verdict.not_reproduced),
        (-0.38, 0.36, Verdict.not_reproduced),  # a spread that would excuse anything
        (-0.80, 0.01, Verdict.sharper),
        (-0.80, 0.40, Verdict.reproduced),
        (float("nan"), 0.1, Verdict.not_reproduced),
    ],
)
def test_at_most(ours, spread, verdict):
    assert at_most(ours, -0.5, spread) is verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.12, "reproduced"), (0.149, "reproduced"), (0.151, "not reproduced"), (0.01, "sharper"), (0.08, "reproduced")],
)
def test_about(ours, verdict):
    assert about(ours, 0.12, 0.0) == verdict


def test_a_claim_is_plain_json():
    claim = Claim(id="L1.relu.conjugate", claim="it falls", ours="−0.58", spread="± 0.01", verdict=holds(True))
    assert claim.experiment == "L1"
    assert claim.to_dict()["verdict"] == "reproduced"
    assert set(claim.to_dict()) == {"id", "claim", "paper", "ours", "spread", "verdict", "command"}
