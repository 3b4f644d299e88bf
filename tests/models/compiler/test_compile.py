"""compile_deq of a DEQ of this package: the explicit twin, its design, the network to deploy and its certificate."""

import copy
import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import notsodeep as nsd
from notsodeep.fixed_points.stand_in import answered_by, watching
from notsodeep.models.compiler.given import Given
from notsodeep.models.compiler.twin import Twins
from notsodeep.models.unrolled import Unrolled, linear_response

QUIET = {"budget": 0.0, "progress": False}


def random_deq(name="relu", width=256, out_features=10, **options):
    return nsd.DEQ(nsd.Implicit(name, 0.2), 64, width, out_features, generator=torch.Generator().manual_seed(0), **options)


def with_readout(deq, x, y):
    nsd.fit_readout(deq, [(x, y)])
    return deq


def counted(network, x):
    """FLOPs per sample."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return counter.get_total_flops() / len(x)


def twin_way(compiled, more=""):
    """The way of the explicit twin of full width."""
    twins = [way for way in compiled.frontier.ways if way.name.startswith("the explicit twin") and way.name.endswith(more)]
    return max(twins, key=lambda way: way.mflop)


@pytest.mark.parametrize(("name", "depth"), [("tanh", 1), ("relu", 2)])
def test_a_random_deq_is_compiled_to_its_twin(name, depth, digits):
    x, y = digits[0][:500], digits[1][:500]
    compiled = nsd.compile_deq(random_deq(name), x, y, family=f"auto:{depth}", **QUIET)
    certificate = compiled.certificate
    assert compiled.network is compiled.twin
    assert compiled.network.net == compiled.design.explicit
    assert compiled.design.explicit.depth == depth
    assert compiled.network.widths == (256,) * depth
    assert (certificate.network, compiled.frontier) == ("explicit twin", None)
    assert certificate.kernels.gap == compiled.design.measured.gap < 4e-4
    assert (certificate.kernels.samples, certificate.samples, certificate.held_out) == (250, 500, 100)
    assert all(c.gap < 1e-3 for c in certificate.kernels.scalars)
    assert not certificate.trained
    assert certificate.expected_speedup == certificate.deq_flops / certificate.network_flops > 4
    assert certificate.deq_flops == random_deq(name).flops(certificate.evaluations)
    assert certificate.network_flops == compiled.network.flops()
    (score,) = certificate.scores
    assert score.name == "accuracy, ridge readout"
    assert abs(score.deq - score.network) < 0.04  # of 100 samples: two standard deviations
    assert score.deq > 0.93
    assert compiled.network(x[:3]).shape == (3, 10)


def test_large_data_is_measured_on_a_subsample_and_says_so(monkeypatch):
    monkeypatch.setattr(sys.modules["notsodeep.matching.design"], "_MEASURED_SAMPLES", 300)
    x = torch.randn(400, 20, generator=torch.Generator().manual_seed(0)) / 20**0.5
    deq = nsd.DEQ(nsd.Implicit("relu", 0.2), 20, 32, generator=torch.Generator().manual_seed(0))
    compiled = nsd.compile_deq(deq, x, family="leaky_relu", **QUIET)
    assert (compiled.certificate.kernels.samples, compiled.certificate.samples) == (300, 400)
    assert "300 of 400 samples" in compiled.summary()
    assert compiled.certificate.output_error is None


def test_what_the_certificate_says_is_what_the_network_does(split, trained):
    x, y = split.train.x.float(), split.train.y
    others, theirs = split.test.x.float(), split.test.y
    compiled = nsd.compile_deq(trained, x, y, test=(others, theirs), keep=0.95, family="matched", **QUIET)
    certificate = compiled.certificate
    with torch.no_grad():
        out, wanted = compiled.network(others), trained(others)
    assert certificate.agreement == float((out.argmax(1) == wanted.argmax(1)).double().mean()) >= 0.95
    error = float(((out - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()).sqrt())
    assert certificate.output_error == pytest.approx(error, rel=1e-3)
    (score,) = certificate.scores
    accuracies = [float((each.argmax(1) == theirs).double().mean()) for each in (wanted, out)]
    assert [score.deq, score.network] == accuracies
    assert score.name == "accuracy"
    assert (certificate.trained, certificate.unseen, certificate.held_out) == (True, True, len(others))
    assert abs(certificate.evaluations - trained.solve(x).evaluations) <= 1  # of some of them
    assert certificate.deq_flops == counted(trained, others[:64])
    assert certificate.network == compiled.frontier.faithful.name
    assert certificate.network_flops == pytest.approx(1e6 * compiled.frontier.faithful.mflop)
    assert certificate.network_flops < certificate.deq_flops


@pytest.mark.parametrize("keep", [0.5, 0.95, 1.0])
def test_the_network_is_the_cheapest_faithful_way_and_no_plain_one(keep, split, trained):
    x, y = split.train.x.float(), split.train.y
    compiled = nsd.compile_deq(trained, x, y, keep=keep, family="matched", budget=1.0, progress=False)
    way = compiled.frontier.faithful
    assert compiled.network is way.module
    assert not way.plain
    assert way.kept >= keep
    cheaper = [other for other in compiled.frontier.ways if other.mflop < way.mflop]
    assert not any(compiled.frontier.keeps(other) for other in cheaper if not other.plain)
    assert (compiled.certificate.network, compiled.certificate.agreement) == (way.name, way.agreement)
    assert any(other.plain for other in compiled.frontier.ways)


def test_a_trained_deq_keeps_its_answers_in_its_twin(split, trained):
    x = split.train.x.float()
    compiled = nsd.compile_deq(trained, x, family="fitted:2", **QUIET)
    way = twin_way(compiled)
    assert compiled.twin.net == compiled.design.explicit
    assert way.module is compiled.twin
    assert way.agreement > 0.93
    assert way.output_error < 0.15
    others = split.test.x.float()
    with torch.no_grad():
        same = float((compiled.twin(others).argmax(1) == trained(others).argmax(1)).double().mean())
    assert same > 0.93
    assert compiled.frontier.measure is None


def test_distillation_brings_the_twin_nearer(split, trained):
    x = split.train.x.float()
    compiled = nsd.compile_deq(trained, x, family="matched", width=32, budget=2.0, progress=False)
    before, after = twin_way(compiled, "× 32"), twin_way(compiled, "× 32, distilled")
    assert after.mflop == before.mflop
    assert after.output_error < 0.9 * before.output_error
    assert after.seconds > 0.0 == before.seconds


def test_all_designs_are_judged_on_the_same_samples(split, trained):
    """Whatever the depth, and whatever the generator."""
    x, y = split.train.x.float()[:300], split.train.y[:300]
    for seed in (None, 1):
        draws = [None if seed is None else torch.Generator().manual_seed(seed) for _ in range(2)]
        made = [
            nsd.compile_deq(trained, x, y, family=family, width=width, generator=draw, **QUIET)
            for family, width, draw in zip(("matched", "fitted:2"), (64, 32), draws, strict=True)
        ]
        assert {each.design.explicit.depth for each in made} == {1, 2}
        assert len({each.frontier.ways[0].score for each in made}) == 1
        assert len({each.frontier["the DEQ cut after 1 step"].output_error for each in made}) == 1


@pytest.mark.parametrize("width", [64, 32])
def test_the_linear_response_beats_random_weights(width, split, trained, monkeypatch):
    x = split.train.x.float()
    aligned = twin_way(nsd.compile_deq(trained, x, width=width, family="fitted:2", **QUIET)).output_error
    monkeypatch.setattr("notsodeep.models.compiler.twin.start_from_linear_response", lambda *_: None)
    drawn = twin_way(nsd.compile_deq(trained, x, width=width, family="fitted:2", **QUIET)).output_error
    assert aligned < 0.7 * drawn


OPTIONS = {
    "tanh": {},
    "relu": {"name": "relu"},
    "biases": {"name": "relu", "bias": True, "readout_bias": True},
    "variances": {"learn_variances": True},
    "monotone": {"well_posed": "monotone"},
    "damped": {"solver": nsd.Picard(damping=0.5)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_one_layer_has_the_features_of_the_linear_response(options, digits):
    """The equation's terms, its solution's slopes and its biases folded into one matrix and one bias."""
    x = digits[0][:120].double()
    deq = random_deq(**({"name": "tanh", "width": 24, "dtype": torch.float64} | options))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in (deq.bias, deq.log_variances):
            if weight is not None:
                weight.add_(0.2 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
        network = Twins(deq, nsd.design(deq.net, x=x, family="matched"), x, None).linear_response()
        with watching() as watch:
            deq.features(x)
        steps = Unrolled(deq, 0, response=linear_response(watch.solves[0]))
        with answered_by(steps):
            wanted = deq.features(x)
        torch.testing.assert_close(network.features(x), wanted, rtol=1e-8, atol=1e-10)
        exact = deq.features(x)
        assert float((wanted - exact).norm()) < 0.5 * float((exact - exact.mean(0)).norm())


def test_one_layer_that_is_the_linear_response(split, trained):
    """It costs less than one step, keeps the answers, and distillation brings it nearer."""
    x, others = split.train.x.float(), split.test.x.float()
    compiled = nsd.compile_deq(trained, x, family="fitted:2", budget=1.0, progress=False)
    way = compiled.frontier["the linear response"]
    assert isinstance(way.module, nsd.ENN)
    assert way.module.widths == (64,)
    assert way.mflop == pytest.approx(1e-6 * way.module.flops())
    assert way.mflop < compiled.frontier["the DEQ cut after 1 step"].mflop
    with torch.no_grad():
        wanted = trained(others)
        assert float((way.module(others) - wanted).norm()) < 0.1 * float((wanted - wanted.mean(0)).norm())
    distilled = compiled.frontier["the linear response, distilled"]
    assert (distilled.mflop, distilled.seconds > 0.0) == (way.mflop, True)
    assert distilled.output_error < 1.1 * way.output_error


def test_gains_of_both_kernels_change_training_and_no_answer(split, trained):
    """Also where weights are not drawn: the linear response, the readout."""
    x, rest = split.train.x.float(), split.test.x.float()
    plain, both = (nsd.compile_deq(trained, x, family="matched", match=match, **QUIET) for match in ("conjugate", "both"))
    assert both.design.explicit.with_gains(None) == plain.design.explicit
    torch.testing.assert_close(both.twin(rest), plain.twin(rest), rtol=1e-4, atol=1e-4)
    kernels = both.certificate.kernels
    assert both.twin.net.gains == kernels.gains != (1.0, 1.0)
    assert kernels.gap == both.design.measured.gap == pytest.approx(plain.certificate.kernels.gap)
    assert kernels.tangent_gap == both.design.measured_tangent.gap < 0.1
    for word in ("exact conjugate kernel, 448", "exact tangent kernel, 448", "gains in training"):
        assert word in both.summary()
    assert (plain.certificate.kernels.match, plain.certificate.kernels.tangent_gap) == ("conjugate", None)
    assert "gains" not in plain.summary()
    json.dumps(both.certificate.to_dict())


def test_the_tangent_kernel_alone(digits):
    deq = random_deq("tanh", width=32)
    compiled = nsd.compile_deq(deq, digits[0][:300], family=nsd.matching.Fitted(1), match="tangent", **QUIET)
    assert compiled.certificate.kernels.match == compiled.design.match == "tangent"
    assert compiled.certificate.kernels.gap < 2e-3
    assert "exact tangent kernel, 150 of 300" in compiled.summary()


def test_a_layer_that_is_frozen_stays_while_distilling(digits, monkeypatch):
    """One whose gain is 0."""
    x, y = digits[0][:200], digits[1][:200]
    designed, frozen = nsd.design, nsd.Explicit(["relu", "tanh"], gains=(1.0, 0.0, 2.0))
    made = lambda *args, **options: dataclasses.replace(designed(*args, **options), explicit=frozen)  # noqa: E731
    monkeypatch.setattr("notsodeep.models.compiler.twin.design", made)
    deq = with_readout(random_deq(width=32), x, y)
    compiled = nsd.compile_deq(deq, x, family="matched", budget=1.5, progress=False)
    networks = [twin_way(compiled, end).module for end in ("× 32", "× 32, distilled")]
    first, second = zip(*(network.weights for network in networks), strict=True)
    assert not torch.equal(*first)
    assert torch.equal(*second)


def test_regression_without_a_readout(digits):
    x = digits[0][:600]
    target = torch.sin(x[:, 10:13].sum(1) * 3)
    (score,) = nsd.compile_deq(random_deq("tanh", out_features=None), x, target, family="fitted:2", **QUIET).certificate.scores
    assert score.name == "R², ridge readout"
    assert 0.5 < score.deq <= 1.0
    assert abs(score.deq - score.network) < 0.06


def test_numpy_and_json(digits):
    x, y = digits
    compiled = nsd.compile_deq(random_deq(width=64), x[:300].numpy(), y[:300].numpy(), family="fitted:2", **QUIET)
    record = json.loads(json.dumps(compiled.certificate.to_dict()))
    assert record["samples"] == 300
    assert record["measured_speedup"] == pytest.approx(compiled.certificate.measured_speedup)
    text = compiled.summary()
    for word in ("exact conjugate kernel, 150 of 300 samples", "accuracy, ridge readout", "MFLOP", "faster", "alpha1"):
        assert word in text


def test_the_summary_of_a_deq_with_answers(split, trained):
    x, y = split.train.x.float(), split.train.y
    compiled = nsd.compile_deq(trained, x, y, family="matched", **QUIET)
    record = json.loads(json.dumps(compiled.certificate.to_dict()))
    assert record["network"] == compiled.certificate.network
    text = compiled.summary()
    for word in (
        compiled.certificate.network,
        "112 held-out samples",
        "same answer",
        "exact conjugate kernel",
        "they flatter it",
    ):
        assert word in text
    assert compiled.frontier.verdict in text
    assert compiled.certificate.network in repr(compiled)


def test_the_same_call_gives_the_same_network(digits, trained):
    x, _ = digits
    networks = [nsd.compile_deq(random_deq(width=32), x[:200], family="matched", **QUIET).network for _ in range(2)]
    assert torch.equal(networks[0](x[:5]), networks[1](x[:5]))
    errors = [
        [way.output_error for way in nsd.compile_deq(trained, x[:200], family="matched", **QUIET).frontier.ways]
        for _ in range(2)
    ]
    assert errors[0] == errors[1]


def test_a_width_of_ones_own(digits):
    x, _ = digits
    deq = random_deq(width=64)
    assert nsd.compile_deq(deq, x[:200], width=96, family="fitted:2", **QUIET).network.widths == (96, 96)


def test_learned_variances_are_those_designed_for(digits):
    deq = random_deq(width=64, frozen=("A", "B"), learn_variances=True)
    with torch.no_grad():
        deq.log_variances.copy_(torch.tensor([0.1, 0.5]).log())
    found = nsd.compile_deq(deq, digits[0][:200], family="fitted:2", **QUIET).design.net
    assert (found.var_a, found.var_b) == pytest.approx((0.1, 0.5), rel=0.05)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_a_few_samples_are_not_held_out(n, digits):
    x, y = digits
    deq = random_deq(width=32)
    with torch.no_grad():
        deq.readout.weight.mul_(2.0)
    compiled = nsd.compile_deq(deq, x[:n], y[:n], family="matched", **QUIET)
    assert compiled.certificate.held_out == 0
    assert compiled.certificate.output_error is None
    assert compiled.certificate.scores == ()
    assert compiled.frontier is None
    assert "none are held out" in compiled.summary()
    judged = nsd.compile_deq(deq, x[:n], y[:n], family="matched", test=(x[100:150], y[100:150]), **QUIET)
    assert (judged.certificate.held_out, judged.certificate.samples) == (50, n)
    assert judged.certificate.agreement is not None


def test_equal_rows(digits):
    x, _ = digits
    deq = random_deq("tanh", width=16)
    with torch.no_grad():
        deq.readout.weight.mul_(2.0)
    compiled = nsd.compile_deq(deq, x[:1].expand(30, 64), family="fitted:1", **QUIET)
    assert compiled.frontier.ways[0].kept == 1.0
    assert bool(compiled.network(x[:1]).isfinite().all())


def test_words_as_labels(digits):
    x, y = digits
    words = np.array([f"digit {k}" for k in y[:300].tolist()])
    given = (words, y[:300], list(words))
    scores = [
        nsd.compile_deq(random_deq(width=64), x[:300], labels, family="matched", **QUIET).certificate.scores for labels in given
    ]
    assert len(scores[0]) == 1
    assert scores[0] == scores[1] == scores[2]


ROWS = torch.randn(80, 6, generator=torch.Generator().manual_seed(1)) / 6**0.5


def answering(outputs=3, **preprocessing):
    """A small DEQ that answers at random, and its answers for ROWS."""
    deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), 6, 8, outputs, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        deq.readout.weight.copy_(torch.randn(outputs, 8, generator=torch.Generator().manual_seed(2)))
        answers = deq(ROWS).argmax(1)
    deq.preprocessing = nsd.data.Preprocessing(**preprocessing) if preprocessing else None
    return deq, answers


def named(names):
    return lambda answers: np.array(names)[answers.numpy()]


CLASSES = {
    "numbers": ({}, lambda answers: answers),
    "words in sorted order": ({}, named(["ant", "bee", "cow"])),
    "a list of words": ({}, lambda answers: named(["ant", "bee", "cow"])(answers).tolist()),
    "other numbers": ({}, named([7, 20, 300])),
    "negative numbers": ({}, named([-1, 0, 1])),
    "words in the DEQ's order": ({"classes": ("cow", "ant", "bee")}, named(["cow", "ant", "bee"])),
    "numbers in the DEQ's order": ({"classes": (3, 1, 2)}, named([3, 1, 2])),
    "numbers of outputs that have names": ({"classes": ("cow", "ant", "bee")}, lambda answers: answers),
    "booleans": ({"classes": ("False", "True")}, torch.Tensor.bool),
}


@pytest.mark.parametrize(("preprocessing", "labels"), CLASSES.values(), ids=CLASSES)
def test_classes_are_numbered_as_the_outputs_are(preprocessing, labels):
    """Its own answers as labels: all of them are right. Those of the test samples are numbered as those of x, and lack one."""
    deq, answers = answering(len(preprocessing.get("classes", "abc")), **preprocessing)
    others = answers > 0
    given = Given.to_deq(deq, ROWS, labels(answers), (ROWS[others], labels(answers[others])), None)
    assert torch.equal(given.y, answers)
    assert torch.equal(given.unseen[1], answers[others])


@pytest.mark.parametrize("kind", [torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.int], ids=["numpy", "list", "int32"])
def test_numbers_of_outputs_stay_where_most_classes_are_absent(kind):
    deq, answers = answering(30)
    last = answers.unique()[-2:]
    rows = (answers == last[0]) | (answers == last[1])
    assert int(last[1]) > 6
    assert torch.equal(Given.to_deq(deq, ROWS[rows], kind(answers[rows]), None, None).y, answers[rows])


def test_a_class_that_is_absent_end_to_end():
    deq, answers = answering(classes=("cow", "ant", "bee"))
    x, y = (each[answers > 0].repeat(2, *[1] * (each.ndim - 1)) for each in (ROWS, answers))
    (score,) = nsd.compile_deq(deq, x, named(["cow", "ant", "bee"])(y), family="matched", **QUIET).certificate.scores
    assert (score.name, score.deq) == ("accuracy", 1.0)


def calling(deq, y, **options):
    return nsd.compile_deq(deq, ROWS, y, family="matched", **(QUIET | options))


def raising(_):
    raise ZeroDivisionError("no samples today")


BAD_LABELS = {
    "unknown word": (
        lambda deq: calling(deq, ["ant", "bee"] * 39 + ["wasp", "fly"]),
        "y holds fly, wasp, which.*cow, ant, bee",
    ),
    "unknown word of test": (
        lambda deq: calling(deq, ["ant", "bee"] * 40, test=(ROWS, ["ant", "elk"] * 40)),
        "y holds elk, which the network does not know",
    ),
    "unknown number": (lambda deq: calling(deq, torch.arange(80) % 2 * 9), "y holds 0, 9, which"),
    "fewer words": (lambda _: calling(answering()[0], ["ant", "bee"] * 40), "2 classes and the DEQ has 3 outputs.*not known"),
    "fewer negative numbers": (lambda _: calling(answering()[0], torch.arange(80) % 2 - 1), "2 classes and .* not known"),
    "more words": (lambda _: calling(answering()[0], ["a", "b", "c", "d"] * 20), "y needs 4 outputs and the DEQ has 3"),
}


@pytest.mark.parametrize(("call", "says"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_labels_that_the_deq_does_not_know(call, says):
    with pytest.raises(nsd.BadInput, match=says):
        call(answering(classes=("cow", "ant", "bee"))[0])


BAD_AUGMENT = {
    "raises": (raising, r"augment fails on samples of shape \(4, 6\): no samples today"),
    "shape": (lambda x: x[:, :3], r"augment must make samples like x, \(6,\) torch.float32.*\(4, 3\)"),
    "dtype": (torch.Tensor.double, "augment must make samples like x"),
    "nothing": (lambda x: x[:0], "augment must make samples like x"),
    "list": (torch.Tensor.tolist, "augment must make samples like x"),
    "NaN": (lambda x: x * torch.nan, "augment makes NaN"),
}


@pytest.mark.parametrize(("augment", "says"), BAD_AUGMENT.values(), ids=BAD_AUGMENT)
@pytest.mark.parametrize("model", ["a DEQ", "a module"])
def test_augment_is_tried_first(augment, says, model):
    deq = answering()[0]
    model = deq if model == "a DEQ" else torch.nn.Sequential(deq)
    with pytest.raises(nsd.BadInput, match=says):
        nsd.compile_deq(model, ROWS, augment=augment, **QUIET)


@pytest.mark.parametrize("given", [Given.to_deq, lambda _, *rest: Given.to_module(*rest)], ids=["a DEQ", "a module"])
def test_samples_stay_as_they_were_and_are_no_inference_tensors(given):
    """Also where augment works in place."""
    with torch.inference_mode():
        x, others = ROWS.clone(), ROWS.clone()
    found = given(answering()[0], x, None, (others, None), lambda rows: rows.add_(1.0))
    assert not found.x.is_inference()
    assert not found.unseen[0].is_inference()
    rows = ROWS.clone()
    given(answering()[0], rows, None, None, lambda rows: rows.add_(1.0))
    assert torch.equal(rows, ROWS)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("model", ["a DEQ", "a module"])
def test_whatever_the_caller_does_with_gradients(mode, model):
    """And nobody's random numbers move on."""
    deq, answers = answering()
    model, options = (deq, {"family": "matched"}) if model == "a DEQ" else (torch.nn.Sequential(deq), {})
    options |= {"keep": 1.0, "budget": 0.15, "progress": False}
    with mode():
        x, state = ROWS.clone(), torch.get_rng_state()
        compiled = nsd.compile_deq(model, x, answers, test=(x[:20], answers[:20]), **options)
        assert torch.equal(torch.get_rng_state(), state)
    learnt = [way for way in compiled.frontier.ways if way.seconds]
    assert any("learnt" in way.name for way in learnt)
    assert any(way.plain for way in learnt)
    for weight in compiled.network.parameters():
        assert not weight.is_inference()
    compiled.network.requires_grad_()(ROWS).sum().backward()


def test_data_of_another_scale_is_pointed_out(digits):
    x, _ = digits
    with pytest.warns(nsd.NumericsWarning, match="tau0"):
        compiled = nsd.compile_deq(random_deq(width=64), 4.0 * x[:200], family="fitted:2", **QUIET)
    assert "tau0" in compiled.summary()


def test_the_deq_stays_as_it_was(split, trained):
    x, y = split.train.x.float(), split.train.y
    deq = copy.deepcopy(trained).train()
    deq.A.requires_grad_(False)
    before = {name: weight.clone() for name, weight in deq.state_dict().items()}
    plan = deq.plan
    compiled = nsd.compile_deq(deq, x, y, family="matched", budget=0.6, progress=False)
    assert all(torch.equal(weight, before[name]) for name, weight in deq.state_dict().items())
    assert deq.training
    assert (deq.plan, deq.A.requires_grad) == (plan, False)
    assert all(weight.grad is None for weight in deq.parameters())
    ours = {weight.data_ptr() for way in compiled.frontier.ways for weight in way.module.parameters()}
    assert ours.isdisjoint(weight.data_ptr() for weight in deq.parameters())


@pytest.mark.parametrize("keep", [0.8, 0.98])
def test_files_of_the_network(keep, split, trained, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    x, others = split.train.x.float(), split.test.x.float()[:9]
    compiled = nsd.compile_deq(trained, x, keep=keep, family="matched", **QUIET)
    with torch.no_grad():
        wanted = compiled.network(others)
    session = runtime.InferenceSession(compiled.to_onnx(tmp_path / "network.onnx"))
    (out,) = session.run(None, {"x": others.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), wanted, rtol=1e-4, atol=1e-4)
    again = nsd.load(nsd.save(compiled.network, tmp_path / "network.safetensors"))
    torch.testing.assert_close(again(others), wanted, rtol=1e-5, atol=1e-5)
    space = {"__name__": "network"}
    exec(compile(compiled.to_source(tmp_path / "network.py"), "network.py", "exec"), space)
    torch.testing.assert_close(space["load"]()(others), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", ["alone", "both"])
def test_a_deq_as_a_layer_of_a_module(layer, split, trained):
    """Which is compiled as a module with a fixed point; the DEQ's own answers come out the same."""
    x = split.train.x.float()
    model = torch.nn.Sequential(copy.deepcopy(trained), torch.nn.Identity() if layer == "alone" else torch.nn.Linear(10, 3))
    compiled = nsd.compile_deq(model, x, keep=0.9, **QUIET)
    assert (compiled.design, compiled.twin, compiled.certificate.kernels) == (None, None, None)
    names = [way.name for way in compiled.frontier.ways]
    assert "the linear response" in names
    assert "the DEQ by Peaceman–Rachford" in names
    if layer == "alone":
        own = nsd.compile_deq(trained, x, keep=0.9, family="matched", **QUIET).frontier
        for k in (1, 3):
            name = f"the DEQ cut after {k} step{'s' * (k > 1)}"
            assert compiled.frontier[name].output_error == pytest.approx(own[name].output_error, rel=1e-4)
            assert compiled.frontier[name].mflop == pytest.approx(own[name].mflop)


def test_raw_rows_and_names_of_classes(split, trained):
    """A DEQ that knows its preprocessing takes raw rows, and so does whatever it is compiled to."""
    x, y = split.train.x.float(), split.train.y
    raw = 3.0 * x + 5.0
    deq = copy.deepcopy(trained)
    names = tuple(f"digit {k}" for k in range(10))
    deq.preprocessing = nsd.data.Preprocessing(nsd.data.Standardiser.of(raw), classes=names)
    words = np.array(names)[y.numpy()]
    compiled = nsd.compile_deq(deq, raw, words, keep=0.9, family="matched", budget=1.5, progress=False)
    given = deq.predict(raw)
    assert compiled.certificate.scores[0].deq == pytest.approx(float((given == words)[held_out(len(x))].mean()))
    assert compiled.certificate.preprocessing is deq.preprocessing
    for way in compiled.frontier.ways:
        assert way.module.preprocessing is not None
        if not way.plain:
            same = float((way.module.predict(raw) == given)[held_out(len(x))].mean())
            assert same == pytest.approx(way.agreement, abs=1.5 / 112)  # rounding of the rows may move one answer


def held_out(n):
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[: n // 5].numpy()


BAD = {
    "features": (lambda x: nsd.compile_deq(random_deq(), x[:, :5]), r"\(1797, 5\).*64"),
    "y": (lambda x: nsd.compile_deq(random_deq(), x, torch.zeros(3)), r"1797 samples.*\(3,\)"),
    "budget": (lambda x: nsd.compile_deq(random_deq(), x, budget=-1), "budget, in seconds, must be a number ≥ 0"),
    "budget word": (lambda x: nsd.compile_deq(random_deq(), x, budget="long"), "budget"),
    "keep above 1": (lambda x: nsd.compile_deq(random_deq(), x, keep=1.5), "at most 1"),
    "keep 0": (lambda x: nsd.compile_deq(random_deq(), x, keep=0), "keep = 0 must be a positive"),
    "family": (lambda x: nsd.compile_deq(random_deq(), x, family="spline"), "family"),
    "match": (lambda x: nsd.compile_deq(random_deq(), x, match="Both"), "did you mean 'both'"),
    "width": (lambda x: nsd.compile_deq(random_deq(), x, width=0), "width must be a whole number"),
    "generator": (lambda x: nsd.compile_deq(random_deq(), x, generator=3), "generator"),
    "augment": (lambda x: nsd.compile_deq(random_deq(), x, augment="flip"), "augment"),
    "stacked": (lambda x: nsd.compile_deq(nsd.models.to_deq(torch.nn.Sequential(torch.nn.Linear(64, 3))), x), "to_explicit"),
    "explicit": (lambda x: nsd.compile_deq(nsd.ENN(nsd.Explicit("relu"), 64, 8), x), "ENN solves no fixed point.*not a DEQ"),
    "function": (lambda x: nsd.compile_deq(torch.tanh, x), "takes a DEQ or a torch module with a fixed point"),
    "NaN": (lambda x: nsd.compile_deq(random_deq(), x * torch.nan), "NaN"),
    "NaN in y": (lambda x: nsd.compile_deq(random_deq(), x, torch.full((1797,), torch.nan)), "NaN"),
    "constant": (lambda x: nsd.compile_deq(random_deq(), x, torch.ones(1797)), "same number"),
    "number": (lambda x: nsd.compile_deq(random_deq(), x, 3), "one label per sample"),
    "complex": (lambda x: nsd.compile_deq(random_deq(), x, np.ones(1797) * 1j), "complex"),
    "layer alone": (lambda x: nsd.compile_deq(random_deq(), x, layer="readout"), "layer= and map= together"),
}


@pytest.mark.parametrize(("call", "says"), BAD.values(), ids=BAD)
def test_bad_input(call, says, digits):
    with pytest.raises(nsd.BadInput, match=says):
        call(digits[0])


BAD_OF_TRAINED = {
    "pair": (lambda deq, x, y: nsd.compile_deq(deq, x, y, test=x), "pair"),
    "test features": (lambda deq, x, y: nsd.compile_deq(deq, x, y, test=(x[:, :3], y)), "64"),
    "no y of test": (lambda deq, x, y: nsd.compile_deq(deq, x, y, test=(x, None)), "Labels are needed both"),
    "y of test alone": (lambda deq, x, y: nsd.compile_deq(deq, x, test=(x, y)), "Labels are needed both"),
    "classes": (lambda deq, x, _: nsd.compile_deq(deq, x, torch.arange(len(x)) % 12), "12 outputs and the DEQ has 10"),
    "numbers": (lambda deq, x, _: nsd.compile_deq(deq, x, torch.randn(len(x))), "1 outputs and the DEQ has 10"),
}


@pytest.mark.parametrize(("call", "says"), BAD_OF_TRAINED.values(), ids=BAD_OF_TRAINED)
def test_bad_input_for_a_deq_with_answers(call, says, trained, split):
    with pytest.raises(nsd.BadInput, match=says):
        call(trained, split.train.x.float(), split.train.y)
