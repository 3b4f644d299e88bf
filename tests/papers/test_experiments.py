"""Each experiment, small: what it computes, that it computes it again, and what follows."""

import math
from dataclasses import replace
from math import log2

import pytest
import torch

from notsodeep.models.deq import DEQ
from notsodeep.models.enn import ENN
from notsodeep.papers.figures.reproduce import drawings
from notsodeep.papers.ling2024 import l6_cost, l7_training
from notsodeep.papers.ling2024.comparison import TWIN
from notsodeep.papers.ling2024.l5_width import FeatureCache
from notsodeep.papers.ling2024.l6_cost import equal_accuracy_ratios
from notsodeep.papers.records import Record, Store
from notsodeep.papers.registry import EXPERIMENTS
from notsodeep.papers.runner import run
from tests.papers.small import CONFIGS

CPU = torch.device("cpu")
TIMED = {"inference_ms", "training_ms", "seconds"}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """All of them, computed once."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(l6_cost, "_SECONDS", 0.01)
        store = Store(folder)
        outcome = run([(EXPERIMENTS[name], config) for name, config in CONFIGS.items()], store, CPU)
    assert outcome.left_out == {}
    assert not list((folder / "cache").rglob("*.npy"))  # features are dropped once their record is there
    return {name: store.records(name) for name in EXPERIMENTS}


def untimed(values):
    if isinstance(values, dict):
        return {name: untimed(value) for name, value in values.items() if name not in TIMED}
    return values


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_same_config_gives_the_same_numbers(name, records, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(l6_cost, "_SECONDS", 0.03)  # three times as long as before: how often steps are timed changes nothing
    experiment = EXPERIMENTS[name]
    unit = experiment.units(CONFIGS[name])[-1]
    (before,) = (record for record in records[name] if record.config == experiment.record_config(unit))
    assert untimed(experiment.run(unit, CPU)) == untimed(before.values)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_notes_and_figures_follow(name, records):
    experiment = EXPERIMENTS[name]
    claims = experiment.claims(records, "a command")
    assert claims
    assert all(claim.id.startswith(f"{name}.") and claim.command == "a command" for claim in claims)
    assert len({claim.id for claim in claims}) == len(claims)
    assert not any("nan" in f"{claim.ours} {claim.spread}" for claim in claims)
    assert all(note.endswith(".") for note in experiment.notes(records))
    assert drawings(name, records)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_follows_from_nothing(name):
    nothing = {each: [] for each in EXPERIMENTS}
    assert EXPERIMENTS[name].claims(nothing, "") == []
    assert isinstance(EXPERIMENTS[name].notes(nothing), list)


def test_l1_gaps_fall_and_the_sharp_ones_are_smaller(records):
    for activation in ("tanh", "relu"):
        for kernel in ("conjugate", "tangent", "preactivation"):
            by_size = {
                n: [r.values[kernel] for r in records["L1"] if (r.config["activation"], r.config["n"]) == (activation, n)]
                for n in (60, 240)
            }
            assert max(v["equivalent"] for v in by_size[240]) < min(v["equivalent"] for v in by_size[60])
            assert all(v["sharp"] < v["equivalent"] for values in by_size.values() for v in values)


def test_l2_norms_are_those_of_numpy(records):
    from notsodeep import Implicit, MixtureStatistics, conjugate_kernel, equivalent_kernel
    from notsodeep.data import GaussianMixture

    mixture = GaussianMixture.two_classes(100)
    x, y = mixture.sample(80, torch.Generator().manual_seed(1))
    stats = MixtureStatistics.from_mixture(mixture, x, y)
    net = Implicit("arctan", 0.1)
    gap = conjugate_kernel(net, x, tau0=stats.tau0) - equivalent_kernel(net, x, stats).to_dense()
    (record,) = (r for r in records["L2"] if r.config["seed"] == 1 and not r.config["unit_norm"])
    found = record.values["kernels"]["conjugate"]["rivals"]["equivalent"]
    assert found["absolute"] == pytest.approx(float(torch.linalg.matrix_norm(gap, 2)), rel=1e-8)


def test_spectra_are_whole_and_kept_for_one_seed(records):
    for name in ("L2", "L3", "L4"):
        for record in records[name]:
            conjugate = record.values["kernels"]["conjugate"]
            assert ("eigenvalues" in conjugate) == (record.config["seed"] == 0)
            if "eigenvalues" in conjugate:
                assert conjugate["eigenvalues"][0] == pytest.approx(conjugate["norm"], rel=1e-3)
                assert len(conjugate["eigenvalues"]) == 80
                assert len(record.values["shown"]["classes"]) == 80


def test_l3_and_l4_designs_beat_the_plain_network(records):
    for name in ("L3", "L4"):
        for record in records[name]:
            rivals = record.values["kernels"]["conjugate"]["rivals"]
            assert rivals["designed"]["absolute"] < 0.2 * rivals["plain"]["absolute"]
            assert rivals[TWIN]["absolute"] < min(rivals[name]["absolute"] for name in ("plain", "plain rescaled"))
            for scalar in record.values["scalars"].values():
                assert scalar["explicit"] == pytest.approx(scalar["deq"], rel=1e-6, abs=1e-9)


def test_l5_is_about_the_same_networks(records):
    by_kind = {kind: [r for r in records["L5"] if r.config["kind"] == kind] for kind in ("width", "infinite", "trained")}
    assert {kind: len(found) for kind, found in by_kind.items()} == {"width": 8, "infinite": 2, "trained": 2}
    for record in by_kind["width"]:
        sgd, ridge = record.values["accuracy"]["sgd"], record.values["accuracy"]["ridge"]
        assert set(sgd) == {"deq", "matched", "closest", "plain", "rescaled", "deq_again"} == set(ridge) | {"rescaled"}
        assert all(0.1 < value <= 1.0 for value in (*sgd.values(), *ridge.values()))
        assert record.values["solver_gap"] < 0.02
    wide = [r for r in by_kind["width"] if r.config["width"] == 256 and r.config["activation"] == "relu"]
    for record in wide:
        gap = record.values["kernel_gap"]
        assert gap["plain"] > 1.3 * gap["deq_again"]  # of another scale, which a second draw is not
        assert max(gap["matched"], gap["closest"]) < gap["plain"]
    for record in by_kind["infinite"]:
        assert record.values["kernel_gap"]["closest"] < record.values["kernel_gap"]["matched"] < 0.02
        assert record.values["agreement"]["matched"] > 0.97


def test_l6_measures_all(records):
    for record in records["L6"]:
        deq, matched = record.values["deq"], record.values["matched"]
        width, features = record.config["width"], 64
        assert matched["inference_flops"] == 2 * (features * width + width**2 + 10 * width)
        # Samples that are done leave the batch, so not all of them take every evaluation; mixing iterates comes on top.
        once, all_of_them = (2 * (features * width + k * width**2 + 10 * width) for k in (1, deq["evaluations"]))
        assert once < deq["inference_flops"] <= 1.05 * all_of_them
        assert deq["training_flops"] > matched["training_flops"] > matched["inference_flops"]
        # Per sample: the input, what each of two layers keeps (at most three numbers a unit), the softmax and the label.
        assert 4 * (features + 2 * width) <= matched["kept_bytes"] <= 4 * (features + 6 * width + 10) + 8
        assert abs(matched["kept_fixed_bytes"]) < 4 * width
        assert deq["kept_fixed_bytes"] >= 4 * width**2  # σ_a A/√m
        assert all(
            network["inference_ms"] > 0.0 < network["training_ms"] for network in (deq, matched, record.values["closest"])
        )


def test_l6_takes_the_newest_run_of_each_device():
    def timed(device, width, revision, batch=128):
        return Record("L6", {"device": device, "width": width, "revision": revision, "training_batch": batch}, {}, 0.0)

    old = [timed(device, width, 1) for device in ("cpu", "cuda") for width in (32, 64)]
    new = [timed("cpu", width, 2) for width in (64, 32)]
    other = [timed("cuda", 32, 1, batch=64)]
    assert l6_cost.comparable([*old, *new]) == [*new, *old[2:]]
    assert l6_cost.comparable([*old, *other, *new]) == [*new, *other]
    assert l6_cost.comparable([]) == []


def test_l7_compares_what_training_adds(records):
    infinite, *finite = records["L7"]
    assert [record.config["kind"] for record in (infinite, *finite)] == ["infinite", "width", "width"]
    assert all(record.values["steps"] == [1, 3, 10, 30] for record in records["L7"])
    apart = infinite.values["apart"]
    assert max(apart["both"]) < 0.05
    assert apart["conjugate"][0] > 0.3  # it has other rates in its layers
    assert 0.0 < infinite.values["left"] < 1.0
    for record in finite:
        assert set(record.values["apart"]) == {"both", "conjugate", "plain", "deq_again", "limit"}
        assert all(0.0 < d < 2.0 for found in record.values["apart"].values() for d in found)


def test_l7_wide_networks_train_as_their_limit():
    config = replace(CONFIGS["L7"], width=1024, seeds=1)
    unit = l7_training.units(config)[-1]
    task, after = l7_training.task_of(unit), l7_training.marks(config.steps)
    for net in (task.deq, task.rivals["both"]):
        limit, _ = l7_training.in_the_limit(task, net, after)
        draw = torch.Generator().manual_seed(0)
        if net is task.deq:
            module = DEQ(net, 64, config.width, 1, tau0=task.radius, generator=draw)
        else:
            module = ENN(net, 64, config.width, 1, generator=draw)
        for found, wanted in zip(l7_training.trained(module, task, after), limit, strict=True):
            assert float((found - wanted).norm()) < 0.2 * float(wanted.norm())


def test_l7_verdicts_follow_the_numbers(records):
    def verdicts(**levels):
        given = [
            replace(r, values=r.values | {"apart": {n: [levels.get(n, 0.02)] * 4 for n in r.values["apart"]}})
            for r in records["L7"]
        ]
        claims = EXPERIMENTS["L7"].claims(records | {"L7": given}, "")
        return {claim.id.removeprefix("L7.relu."): claim.verdict == "reproduced" for claim in claims}

    names = ("infinite", "conjugate", "plain", "draws.both", "draws.conjugate", "draws.plain")
    assert verdicts(both=0.001, conjugate=0.4, plain=0.1, deq_again=0.001) == dict.fromkeys(names, True)
    assert verdicts(both=0.03, conjugate=0.01, plain=0.01, deq_again=0.02) == dict.fromkeys(names, False)


@pytest.mark.parametrize("name", ["L3", "L4", "L5", "L6"])
def test_records_of_the_first_revision_are_judged_without_the_twin(name, records):
    def without(values):
        if isinstance(values, dict):
            return {key: without(value) for key, value in values.items() if key not in ("closest", TWIN)}
        return values

    old = {each: [replace(r, values=without(r.values)) for r in found] for each, found in records.items()}
    claims, before = (EXPERIMENTS[name].claims(given, "") for given in (records, old))
    assert {claim.id for claim in before} == {claim.id for claim in claims if "closest" not in claim.id}
    assert len(before) < len(claims)
    assert EXPERIMENTS[name].notes(old)
    assert drawings(name, old)


def test_w1_is_compared_in_level_where_it_trained_as_long_as_the_paper(records):
    def levels(steps):
        trained = [replace(r, config={**r.config, "steps": steps}) for r in records["W1"] if r.config.get("steps") == 100]
        claims = EXPERIMENTS["W1"].claims(records | {"W1": trained}, "")
        return [claim.id for claim in claims if claim.id.endswith(".level")]

    assert levels(1000) == ["W1.2^1.1000.level", "W1.2^3.1000.level"]
    assert levels(100) == []


def test_speed_at_equal_accuracy():
    def timed(width, deq, matched):
        config = {"activation": "relu", "width": width, "device": "cpu", "data": "mnist"}
        return Record("L6", config, {"deq": {"inference_ms": deq}, "matched": {"inference_ms": matched}}, 0.0)

    def scored(width, deq, matched):
        config = {"kind": "width", "data": "mnist", "activation": "relu", "width": width}
        return Record("L5", config, {"accuracy": {"sgd": {"deq": deq, "matched": matched}}}, 0.0)

    # The matched network of twice the width is as accurate as the DEQ, and takes a quarter of its time.
    times = [timed(width, 8.0 * width, width) for width in (32, 64, 128, 256)]
    scores = [scored(width, 0.1 * log2(width), 0.1 * log2(width) - 0.1) for width in (32, 64, 128, 256)]
    ratios = equal_accuracy_ratios(times, scores, "relu", "inference")
    assert len(ratios) == 5
    assert ratios == pytest.approx([4.0] * 5)
    assert equal_accuracy_ratios(times, [], "relu", "inference") == []
    assert equal_accuracy_ratios(times[:1], scores, "relu", "inference") == []


def test_features_are_computed_once_and_found_again(tmp_path):
    calls = []

    def features(x):
        calls.append(len(x))
        return 2.0 * x

    x = torch.randn(2500, 6)
    cache = FeatureCache("a key", tmp_path)
    first = cache.get("deq", features, x, 6)
    torch.testing.assert_close(first, 2.0 * x, rtol=0.0, atol=0.0)
    assert max(calls) <= 1024
    before = len(calls)
    again = FeatureCache("a key", tmp_path).get("deq", features, x, 6)
    assert len(calls) == before
    assert torch.equal(first, again)
    cache.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_computation_of_features_leaves_no_file(tmp_path):
    def features(_):
        raise KeyboardInterrupt

    cache = FeatureCache("a key", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.get("deq", features, torch.randn(10, 3), 3)
    assert list((tmp_path / "a key").iterdir()) == []
    assert math.isfinite(float(cache.get("deq", lambda x: x, torch.randn(10, 3), 3).sum()))
