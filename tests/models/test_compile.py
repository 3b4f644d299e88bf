"""compile_deq: the explicit network, its design and its certificate."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

import notsodeep as nsd
from notsodeep.data.sources import load


@pytest.fixture(scope="module")
def digits():
    found = load("digits")
    return found.x.float(), found.y


def random_deq(name="relu", width=256, out_features=10, **options):
    return nsd.DEQ(nsd.Implicit(name, 0.2), 64, width, out_features, generator=torch.Generator().manual_seed(0), **options)


@pytest.fixture(scope="module")
def trained_deq(digits):
    x, y = digits[0][:1400], digits[1][:1400]
    deq = random_deq("tanh", width=128)
    optimiser = torch.optim.Adam(deq.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(0)
    for _ in range(8):
        for rows in torch.randperm(len(x), generator=draw).split(128):
            optimiser.zero_grad()
            functional.cross_entropy(deq(x[rows]), y[rows]).backward()
            optimiser.step()
    return deq


@pytest.mark.parametrize(("name", "depth"), [("tanh", 1), ("relu", 2)])
def test_a_random_deq(name, depth, digits):
    x, y = digits[0][:900], digits[1][:900]
    compiled = nsd.compile_deq(random_deq(name), x, y, family=f"auto:{depth}")
    certificate = compiled.certificate
    assert compiled.network.net == compiled.design.explicit
    assert compiled.design.explicit.depth == depth
    assert compiled.network.widths == (256,) * depth
    assert certificate.kernel_gap == compiled.design.measured.gap < 4e-4
    assert (certificate.kernel_samples, certificate.samples) == (450, 900)
    assert all(c.gap < 1e-3 for c in certificate.scalars)
    assert not certificate.trained
    assert certificate.expected_speedup == certificate.deq_flops / certificate.explicit_flops > 4
    assert certificate.deq_flops == random_deq(name).flops(certificate.evaluations)
    (score,) = certificate.scores
    assert score.name == "accuracy, ridge readout"
    assert abs(score.deq - score.explicit) < 0.03
    assert score.deq > 0.95
    assert compiled.network(x[:3]).shape == (3, 10)


def test_large_data_is_measured_on_a_subsample_and_says_so(monkeypatch):
    monkeypatch.setattr(sys.modules["notsodeep.matching.design"], "_MEASURED_SAMPLES", 300)
    x = torch.randn(400, 20, generator=torch.Generator().manual_seed(0)) / 20**0.5
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 20, 32, generator=torch.Generator().manual_seed(0))
    compiled = nsd.compile_deq(deq, x, family="leaky_relu")
    assert (compiled.certificate.kernel_samples, compiled.certificate.samples) == (300, 400)
    assert "300 of 400 samples" in compiled.summary()
    assert compiled.certificate.output_error is None


def test_a_trained_deq_keeps_its_answers(digits, trained_deq):
    x, y = digits
    deq = trained_deq
    compiled = nsd.compile_deq(deq, x, y)
    certificate = compiled.certificate
    assert certificate.trained
    assert certificate.agreement > 0.97
    assert certificate.output_error < 0.15
    own = next(score for score in certificate.scores if "own" in score.name)
    accuracy = float((deq(x).argmax(1) == y).double().mean())
    assert accuracy > 0.95
    assert abs(own.deq - accuracy) < 0.03  # of 359 samples: three standard deviations
    assert abs(own.deq - own.explicit) < 0.02
    # What the certificate says is what the network does, on samples that it was not fitted to.
    out, wanted = compiled.network(x).argmax(1), deq(x).argmax(1)
    assert float((out == wanted).double().mean()) > 0.97
    distilled = nsd.compile_deq(deq, x, distil=5, progress=False).certificate
    assert distilled.distilled_epochs == 5
    assert distilled.output_error < certificate.output_error


def test_all_designs_are_judged_on_the_same_samples(digits, trained_deq):
    """Whatever the depth, and whatever the generator."""
    x, y = digits[0][:300], digits[1][:300]
    for seed in (None, 1):
        draws = [None if seed is None else torch.Generator().manual_seed(seed) for _ in range(3)]
        made = [
            nsd.compile_deq(trained_deq, x, y, family=family, width=width, generator=draw)
            for family, width, draw in zip(("matched", "fitted:1", "fitted:2"), (128, 32, 128), draws, strict=True)
        ]
        assert {each.design.explicit.depth for each in made} == {1, 2}
        assert len({round(each.certificate.scores[0].deq, 6) for each in made}) == 1


@pytest.mark.parametrize("width", [128, 64])
def test_the_linear_response_beats_random_weights(width, digits, trained_deq, monkeypatch):
    x, deq = digits[0][:900], trained_deq
    aligned = nsd.compile_deq(deq, x, width=width).certificate.output_error
    monkeypatch.setattr("notsodeep.models.compile._start_from_linear_response", lambda *_: None)
    assert aligned < 0.7 * nsd.compile_deq(deq, x, width=width).certificate.output_error


def test_gains_of_both_kernels_change_training_and_no_answer(digits, trained_deq):
    """Also where weights are not drawn: the linear response, the readout."""
    x, rest = digits[0][:900], digits[0][900:950]
    plain, both = (nsd.compile_deq(trained_deq, x, family="matched", match=match) for match in ("conjugate", "both"))
    assert both.design.explicit.with_gains(None) == plain.design.explicit
    torch.testing.assert_close(both.network(rest), plain.network(rest), rtol=1e-4, atol=1e-4)
    assert both.network.net.gains == both.certificate.gains != (1.0, 1.0)
    assert both.certificate.kernel_gap == both.design.measured.gap == pytest.approx(plain.certificate.kernel_gap)
    assert both.certificate.tangent_gap == both.design.measured_tangent.gap < 0.1
    for word in ("exact conjugate kernel, 900", "exact tangent kernel, 900", "gains in training"):
        assert word in both.summary()
    assert (plain.certificate.match, plain.certificate.tangent_gap) == ("conjugate", None)
    assert "gains" not in plain.summary()
    json.dumps(both.certificate.to_dict())


def test_the_tangent_kernel_alone(digits):
    compiled = nsd.compile_deq(random_deq("tanh", width=32), digits[0][:300], family=nsd.matching.Fitted(1), match="tangent")
    assert compiled.certificate.match == compiled.design.match == "tangent"
    assert compiled.certificate.kernel_gap < 2e-3
    assert "exact tangent kernel, 150 of 300" in compiled.summary()


def test_a_layer_that_is_frozen_stays_while_distilling(digits, monkeypatch):
    x, designed = digits[0][:200], nsd.design
    frozen = nsd.Explicit(["relu", "tanh"], gains=(1.0, 0.0, 2.0))
    made = lambda *args, **options: dataclasses.replace(designed(*args, **options), explicit=frozen)  # noqa: E731
    monkeypatch.setattr("notsodeep.models.compile.design", made)
    networks = [nsd.compile_deq(random_deq(width=32), x, family="matched", distil=k, progress=False).network for k in (0, 2)]
    first, second = zip(*(network.weights for network in networks), strict=True)
    assert not torch.equal(*first)
    assert torch.equal(*second)


def test_regression_targets(digits):
    x, _ = digits
    target = torch.sin(x[:, 10:13].sum(1) * 3)
    (score,) = nsd.compile_deq(random_deq(out_features=None), x, target).certificate.scores
    assert score.name == "R², ridge readout"
    assert 0.5 < score.deq <= 1.0
    assert abs(score.deq - score.explicit) < 0.05


def test_numpy_and_json(digits):
    x, y = digits
    compiled = nsd.compile_deq(random_deq(width=64), x[:300].numpy(), y[:300].numpy())
    record = json.loads(json.dumps(compiled.certificate.to_dict()))
    assert record["samples"] == 300
    assert record["measured_speedup"] == pytest.approx(compiled.certificate.measured_speedup)
    text = compiled.summary()
    for word in ("exact conjugate kernel, 150 of 300 samples", "accuracy, ridge readout", "MFLOP", "faster", "alpha1"):
        assert word in text


def test_the_same_call_gives_the_same_network(digits):
    x, _ = digits
    networks = [nsd.compile_deq(random_deq(width=32), x[:200]).network for _ in range(2)]
    assert torch.equal(networks[0](x[:5]), networks[1](x[:5]))


def test_a_width_of_ones_own(digits):
    x, _ = digits
    assert nsd.compile_deq(random_deq(width=64), x[:200], width=96).network.widths == (96, 96)


def test_learned_variances_are_those_designed_for(digits):
    deq = random_deq(width=64, frozen=("A", "B"), learn_variances=True)
    with torch.no_grad():
        deq.log_variances.copy_(torch.tensor([0.1, 0.5]).log())
    found = nsd.compile_deq(deq, digits[0][:200]).design.net
    assert (found.var_a, found.var_b) == pytest.approx((0.1, 0.5), rel=0.05)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_a_few_samples_are_not_held_out(n, digits):
    x, y = digits
    deq = random_deq(width=32)
    with torch.no_grad():
        deq.readout.weight.mul_(2.0)
    compiled = nsd.compile_deq(deq, x[:n], y[:n])
    assert compiled.certificate.held_out == 0
    assert compiled.certificate.output_error is None
    assert compiled.certificate.scores == ()
    assert "none are held out" in compiled.summary()


def test_equal_rows_and_words_as_labels(digits):
    x, y = digits
    nsd.compile_deq(random_deq("tanh", width=16), x[:1].expand(30, 64))
    words = np.array([f"digit {k}" for k in y[:300].tolist()])
    deqs = [random_deq(width=64) for _ in range(3)]
    given = (words, y[:300], list(words))
    scores = [nsd.compile_deq(d, x[:300], labels).certificate.scores for d, labels in zip(deqs, given, strict=True)]
    assert scores[0] == scores[1] == scores[2]


def test_data_of_another_scale_is_pointed_out(digits):
    x, _ = digits
    with pytest.warns(nsd.NumericsWarning, match="tau0"):
        compiled = nsd.compile_deq(random_deq(width=64), 4.0 * x[:200])
    assert "tau0" in compiled.summary()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: nsd.compile_deq(random_deq(), x[:, :5]), r"\(1797, 5\).*64"),
        (lambda x: nsd.compile_deq(random_deq(), x, torch.zeros(3)), r"1797 samples.*\(3,\)"),
        (lambda x: nsd.compile_deq(random_deq(out_features=None), x, distil=2), "readout"),
        (lambda x: nsd.compile_deq(random_deq(), x, distil=-1), "epochs"),
        (lambda x: nsd.compile_deq(random_deq(), x, family="spline"), "family"),
        (lambda x: nsd.compile_deq(random_deq(), x, match="Both"), "did you mean 'both'"),
        (lambda x: nsd.compile_deq(nsd.models.to_deq(torch.nn.Sequential(torch.nn.Linear(64, 3))), x), "to_explicit"),
        (lambda x: nsd.compile_deq(nsd.ENN(nsd.Explicit("relu"), 64, 8), x), "takes a DEQ"),
        (lambda x: nsd.compile_deq(random_deq(), x * torch.nan), "NaN"),
        (lambda x: nsd.compile_deq(random_deq(), x, torch.full((1797,), torch.nan)), "NaN"),
        (lambda x: nsd.compile_deq(random_deq(), x, torch.ones(1797)), "same number"),
        (lambda x: nsd.compile_deq(random_deq(), x, 3), "one label per sample"),
        (lambda x: nsd.compile_deq(random_deq(), x, np.ones(1797) * 1j), "complex"),
    ],
)
def test_bad_input(call, says, digits):
    with pytest.raises(nsd.BadInput, match=says):
        call(digits[0])
