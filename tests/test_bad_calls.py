"""Bad calls of every public door: each is answered, or refused by an error of the package's own, soon and without a trace."""

import math

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

import notsodeep as nsd
from notsodeep.data import load_split
from tests.bad_calls.calls import Door, defect_of
from tests.bad_calls.doors import DOORS, bad_values
from tests.bad_calls.values import BAD

X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
NET = nsd.Implicit("relu", 0.2)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@st.composite
def bad_calls(draw, doors: tuple[Door, ...]):
    """A door, and the names of the bad values that replace one or two of its arguments."""
    door = draw(st.sampled_from(doors))
    names = draw(st.lists(st.sampled_from(door.replaceable), min_size=1, max_size=2, unique=True))
    return door, {name: draw(st.sampled_from(bad_values(name))) for name in names}


def check(call) -> None:
    door, chosen = call
    defect = defect_of(door, {name: BAD[value] for name, value in chosen.items()}, chosen)
    assert defect is None, str(defect)


QUICK = tuple(door for door in DOORS if not door.heavy)
ONCE = {"deadline": None, "database": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}


@seed(19)
@settings(max_examples=300, **ONCE)
@given(bad_calls(QUICK))
def test_bad_calls(call):
    check(call)


@pytest.mark.slow
@seed(20)
@settings(max_examples=5000, **ONCE)
@given(bad_calls(DOORS))
def test_thousands_of_bad_calls(call):
    check(call)


def test_the_fuzzer_sees_what_is_wrong():
    """A raw error, a NaN out of nothing, a file left behind."""

    def leaves_a_file(**_):
        open("left", "w").close()
        raise nsd.BadInput("no")

    wrong = {"ZeroDivisionError": lambda **_: 1 / 0, "NaN or infinity": lambda **_: math.nan, "file left behind": leaves_a_file}
    for kind, function in wrong.items():
        defect = defect_of(Door("door", lambda function=function: function, {}), {}, {})
        assert defect is not None
        assert defect.kind == kind


def test_every_public_name_has_a_door_or_a_reason():
    assert len(DOORS) > 150
    assert {"conjugate_kernel", "DEQ", "TiledKernel.solve", "data.load", "separation.ReluDEQ"} <= {d.name for d in DOORS}


def _deq(**options):
    return nsd.DEQ(NET, 3, options.pop("width", 4), 2, dtype=torch.float64, **options)


@pytest.mark.parametrize(
    ("call", "says"),
    {
        "relative_gap of NaN": (lambda: nsd.relative_gap(X @ X.T, torch.full((6, 6), math.nan)), "holds NaN"),
        "a norm without powers": (lambda: nsd.scalars(NET, 1e160), "tau0 = 1e\\+160"),
        "a norm for a kernel": (lambda: nsd.conjugate_kernel(NET, X, tau0=1e160), "tau0 = 1e\\+160"),
        "meta": (lambda: nsd.tau0(X.to("meta")), "device meta"),
        "quantised": (lambda: nsd.tau0(BAD["quantised tensor"]()), "dequantize"),
        "nested": (lambda: nsd.tau0(BAD["nested tensor"]()), "to_padded_tensor"),
        "sparse": (lambda: nsd.sharp_kernel(NET, X.to_sparse()), "to_dense"),
        "no family": (lambda: nsd.design(NET, family=None), "family must be a word.*got None"),
        "one ridge": (lambda: nsd.fit_readout(_deq(), [(X, torch.zeros(6, dtype=torch.long))], ridges=0.1), "ridges = 0.1"),
        "no statistics": (lambda: nsd.equivalent_kernel(NET, X, stats=None), "stats must be the statistics.*got None"),
        "rows that are no number": (lambda: next(_deq().equilibria(X, rows=math.nan)), "rows.*got nan"),
        "a size of 64 bits": (lambda: _deq(width=2**63), "width = 9223372036854775808 is more than 2⁶³"),
        "a size that no machine holds": (lambda: _deq(width=2**40), "GiB are free"),
        "samples that no machine holds": (lambda: nsd.GaussianMixture.two_classes(9).sample(2**50), "GiB are free"),
        "a seed of 71 bits": (lambda: nsd.kernels.Nystrom(seed=2**70), "at most 64 bits, got 1180591620717411303424"),
        "a split's seed": (lambda: load_split("digits:n=10", seed=2**64), "at most 64 bits"),
        "advice's seed": (lambda: nsd.advise(X, X[:, 0], seed=-(2**64)), "at most 64 bits"),
        "beyond float32": (lambda: nsd.conjugate_kernel(NET, (1e30 * X).float()), "largest number of float32.*float64"),
        "beyond float32, sharp": (lambda: nsd.kernels.sharp_entries(NET, (1e30 * X).float()), "largest number of float32"),
        "below float32": (lambda: nsd.conjugate_kernel(NET, (1e-25 * X).float()), "float32 loses its digits"),
        "a factor of NaN": (lambda: nsd.activations.Scaled(nsd.activation("relu"), math.nan), "factor = nan"),
        "an infinite offset": (lambda: nsd.Centred(nsd.activation("relu"), math.inf), "offset = inf"),
    }.values(),
)
def test_what_was_found_by_hand(call, says):
    with pytest.raises(nsd.BadInput, match=says):
        call()
