"""Designs on data and of activations that are made to break them."""

import math
from dataclasses import replace
from unittest import mock

import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import BadInput, NotSoDeepError
from notsodeep.gaussian.integral import conditional_dual, smoothed
from notsodeep.kernels.names import Match
from notsodeep.matching import Candidate, Fitted
from notsodeep.matching.candidates import Split, Task, affordable
from notsodeep.matching.solve import compare_scalars
from notsodeep.theory.scalars import scalars

X = torch.randn(200, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10**0.5


def clusters(count):
    draw = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 20, dtype=torch.float64, generator=draw) / 20**0.5
    return centres[torch.arange(count) % 10] + 0.03 * torch.randn(count, 20, dtype=torch.float64, generator=draw)


@pytest.mark.parametrize("x", [clusters(200), X[:, :2].contiguous()], ids=["clusters", "plane"])
def test_pairs_close_to_one_are_summed_not_integrated(x):
    """The integral of a pair of a fitted layer takes 30 ms: on these samples there were thousands."""
    integrated = []

    def seen(phi, tau_i, *rest):
        integrated.append(len(tau_i))
        return conditional_dual(phi, tau_i, *rest)

    with mock.patch("notsodeep.gaussian.dual.conditional_dual", seen):
        found = nsd.design(nsd.Implicit("tanh", 0.2), x, family="fitted")
    assert sum(integrated) < 100
    assert found.measured.samples == 100
    assert found.measured.gap < 0.02


def test_few_samples_that_point_one_way_are_judged_where_a_kink_makes_them_dear():
    line = torch.linspace(-2.0, 2.0, 300, dtype=torch.float64)[:, None]
    assert len(affordable(nsd.activation("elu"), line)) == 25  # 300 pairs
    for name in ("relu", "tanh"):
        assert affordable(nsd.activation(name), line) is line
    assert len(affordable(nsd.activation("elu"), X)) == len(X)


@pytest.mark.parametrize("name", ["elu", "hard_tanh", "sign", "tanh"])
def test_a_sum_is_smoothed_part_by_part(name):
    """The same as the sum as a whole, which nothing is known about."""
    from notsodeep.activations.combination import combined, stretched
    from notsodeep.gaussian.integral import _by_quadrature

    phi = nsd.activation(name)
    total = combined([(0.7, stretched(phi, 1.6)), (-2.0, phi), (0.3, nsd.activation("gelu"))])
    mean = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    std = torch.full_like(mean, 0.3)
    for found, expected in zip(smoothed(total, mean, std), _by_quadrature(total, mean, std), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_scalars_that_underflow_are_compared():
    """Of sin at τ0 = 30 every α is 0 in float64."""
    net = nsd.Implicit("sin", 0.2)
    target = scalars(net, 30.0)
    assert {one.gap for one in compare_scalars(target, target, ("gamma", "alpha1", "alpha2", "alpha3"))} == {0.0}
    assert nsd.design(net, tau0=30.0).residual < 1e-8


@pytest.mark.parametrize("family", ["fitted", "fitted:2"])
def test_designs_do_not_depend_on_the_unit(family):
    net = nsd.Implicit("relu", 0.2)
    one, *others = (nsd.design(net, unit * X, family=family) for unit in (1.0, 1e-12, 1e-40))
    for other in others:
        assert other.measured.gap == pytest.approx(one.measured.gap, rel=1e-3)
        assert other.residual == pytest.approx(one.residual, rel=1e-3)
        if one.optimum is not None:
            assert other.optimum.error == pytest.approx(one.optimum.error, rel=1e-6)
            assert other.optimum.bound == pytest.approx(one.optimum.bound, rel=1e-6)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_dictionary_of_what_is_constant_on_the_data_is_refused(depth):
    with pytest.raises(BadInput, match=r"max\(x,50\) is constant"):
        nsd.design(nsd.Implicit("relu", 0.2), X, family=Fitted(depth, ["x", "max(x,50)"]))


def test_a_network_that_is_constant_on_the_data_is_refused():
    with pytest.raises(BadInput, match=r"max\(x,50\) is 50 and next to constant on samples of norm 1:"):
        nsd.design(nsd.Implicit("max(x,50)", 0.2))


def test_an_atom_that_is_a_multiple_of_another_adds_nothing():
    alone, twice = (nsd.design(nsd.Implicit("relu", 0.2), X, family=Fitted(1, d)) for d in (["relu"], ["relu", "2*relu(x)"]))
    assert twice.measured.gap == pytest.approx(alone.measured.gap, rel=1e-6)
    assert twice.optimum.bound == pytest.approx(alone.optimum.bound, rel=1e-6)


@pytest.mark.parametrize(("name", "most"), [("relu", 2e-3), ("gelu", 2e-4)])
def test_rows_of_zeros_are_fitted(name, most):
    x = X.clone()
    x[::5] = 0.0
    assert nsd.design(nsd.Implicit(name, 0.15), x).measured.gap < most


def test_one_outlier_rules_out_a_hermite_design():
    unit = torch.nn.functional.normalize(X)
    net = nsd.Implicit("tanh", 0.2)
    task = Task(net, scalars(net, 1.0), Match.CONJUGATE, Split.of(unit, 1.0))
    assert [one.family for one in task._hermite()] == ["hermite:40"]
    unit[0] *= 1.1
    assert not [*replace(task, split=Split.of(unit, 1.0))._hermite()]


def test_both_measurements_tell_of_how_many_samples():
    found = nsd.design(nsd.Implicit("relu", 0.2), X, match="both", family="fitted")
    assert found.measured.of_samples == found.measured_tangent.of_samples == 200


def test_gaps_of_rounding_size_tie():
    net = nsd.Implicit("tanh", 0.2)
    task = Task(net, scalars(net, 1.0), Match.CONJUGATE, Split.of(X, 1.0))
    two, one = nsd.Explicit(["tanh", "tanh"]), nsd.Explicit(["tanh"])

    def first(gap_of_two, gap_of_one):
        return task._ranked([Candidate("fitted:2", two, gap=gap_of_two), Candidate("fitted", one, gap=gap_of_one)])[0].explicit

    assert first(1e-16, 3e-16) is one
    assert first(1e-16, 1e-6) is two


@pytest.mark.parametrize(
    "family", ["hard_tanh:3", "matched:abc", "rescaled:2", "quadratic:x", "fitted:3", "hermite:", "leaky_relu:"]
)
def test_what_a_family_cannot_take_is_refused(family):
    with pytest.raises(BadInput, match=f"'{family}'"):
        nsd.design(nsd.Implicit("tanh", 0.2), family=family)


HOSTILE = {
    "one": X[:1],
    "equal": X[:1].repeat(120, 1),
    "line": X[:, :1] * X[:1],
    "mostly zeros": torch.cat([X[:3], 0.0 * X]),
    "outlier": torch.cat([X[:-1], 1e6 * X[-1:]]),
    "tiny": 1e-45 * X,
    "few on a line": X[:5, :1],
    "half": X.half(),
    "whole": (3.0 * X).round().long(),
    "nan": math.nan * X,
    "huge": 1e150 * X,
    "none": 0.0 * X,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_samples_are_designed_for_or_refused(what):
    try:
        found = nsd.design(nsd.Implicit("relu", 0.2), HOSTILE[what], family="auto:1")
    except NotSoDeepError:
        assert what in ("nan", "huge", "none")
        return
    gaps = [one.gap for one in found.candidates]
    assert gaps[0] <= min(one.gap for one in found.candidates if one.family == "scaled") + 1e-12
    assert all(map(math.isfinite, [*gaps, found.residual, found.measured.gap]))
    assert found.summary()
