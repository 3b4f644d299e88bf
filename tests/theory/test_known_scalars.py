"""The known values of EXPERIMENTS: τ0 = 1, σ_b² = 1 − σ_a²."""

import pytest

import notsodeep as nsd

KNOWN = [
    ("tanh", 0.2, {"tau": 0.93487161, "gamma2": 0.36992464, "alpha1": 0.34498763}),
    ("tanh", 0.1, {"tau": 0.96864519, "gamma2": 0.38273508, "alpha1": 0.35649751}),
    (
        "relu",
        0.2,
        {
            "tau": 0.92656613,
            "gamma2": 0.29262393,
            "alpha1": 0.21052632,
            "alpha2": 0.03595749,
            "alpha3": 0.0691905,
            "alpha4": 0.85852479,
        },
    ),
]


@pytest.mark.parametrize(("name", "var_a", "known"), KNOWN)
def test_scalars_of_a_deq(name, var_a, known):
    found = nsd.scalars(nsd.Implicit(name, var_a), 1.0)
    for key, value in known.items():
        got = found.gamma**2 if key == "gamma2" else getattr(found, key)
        assert got == pytest.approx(value, abs=1e-8)


def test_offset_of_a_centred_relu():
    centred = nsd.Implicit("relu", 0.2).centred(1.0)
    assert centred.phi.offset == pytest.approx(0.3696464, abs=1e-8)
    assert not centred.centre
