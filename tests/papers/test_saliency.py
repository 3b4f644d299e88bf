"""Grad-CAM against its formula, the entropy of maps, and the experiment that compares them."""

import math
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from notsodeep.data.image_sets import images
from notsodeep.errors import BadInput
from notsodeep.models.training.objective import Batches
from notsodeep.papers.figures.features import saliency_drawings
from notsodeep.papers.records import Record, Store
from notsodeep.papers.runner import run
from notsodeep.papers.wu2024 import w7_images
from notsodeep.papers.wu2024.w7_images import Augmented, grad_cam, load_images, made_up, map_entropy, shifted
from notsodeep.papers.wu2024.w7_networks import MultiscaleDEQ, ResidualNetwork
from notsodeep.papers.wu2024.w7_saliency import NETWORKS, SHOWN, W7

CPU = torch.device("cpu")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Tiny(nn.Module):
    """Its readout is not linear, so that gradients differ between pixels and images."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 5)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=seeded(weight.numel()), dtype=torch.float64)

    def forward(self, x):
        return self.out(torch.tanh(self.conv(x)).flatten(1))


def test_grad_cam_is_its_formula():
    module, x = Tiny(), torch.randn(6, 3, 8, 8, generator=seeded(0), dtype=torch.float64)
    classes = torch.tensor([0, 1, 2, 3, 4, 0])
    features = module.conv(x).detach().requires_grad_()
    out = module.out(torch.tanh(features).flatten(1))
    (slope,) = torch.autograd.grad(out[torch.arange(6), classes].sum(), features)
    wanted = (slope.mean((2, 3), keepdim=True) * features).sum(1).clamp(min=0.0)
    found = grad_cam(module, module.conv, x, classes)
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-10, atol=1e-12)
    assert float(found.max()) > 0.0
    assert not found.requires_grad


@pytest.mark.parametrize("kind", [MultiscaleDEQ, ResidualNetwork])
@pytest.mark.parametrize("frozen", [False, True])
def test_both_heads_are_hooked_alike(kind, frozen):
    """The head is linear in the mean of its features, so the map is w_k·F over the number of pixels."""
    module = kind(10, (4, 8), generator=seeded(0)).double()
    if isinstance(module, MultiscaleDEQ):
        module.tol, module.max_steps = 1e-11, 200
    module.requires_grad_(not frozen)
    x, classes = torch.randn(4, 3, 32, 32, generator=seeded(1), dtype=torch.float64), torch.tensor([0, 3, 3, 9])
    seen = []
    hook = module.head.features.register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.no_grad():
        module(x)
    hook.remove()
    (features,) = seen  # once a pass, however many evaluations the equilibrium took
    weights = module.head.linear.weight[classes].detach()
    wanted = torch.einsum("nc,nchw->nhw", weights, features).clamp(min=0.0) / 64
    found = grad_cam(module, module.head.features, x, classes)
    assert found.shape == (4, 8, 8)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-10)
    assert all(weight.grad is None for weight in module.parameters())


def test_grad_cam_refuses_what_it_cannot_use():
    module, x = Tiny(), torch.zeros(2, 3, 8, 8, dtype=torch.float64)
    with pytest.raises(BadInput, match=r"2 images and classes of shape \(3,\)"):
        grad_cam(module, module.conv, x, torch.zeros(3, dtype=torch.long))
    with pytest.raises(BadInput, match="C, H, W"):
        grad_cam(module, module.out, x, torch.zeros(2, dtype=torch.long))


def test_without_captum_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(BadInput, match=r"notsodeep\[saliency\]") as caught:
        grad_cam(Tiny(), nn.Identity(), torch.zeros(1, 3, 8, 8), torch.zeros(1, dtype=torch.long))
    assert caught.value.data["missing"] == ("captum",)


def test_entropy_of_known_maps():
    one = torch.zeros(5, 7)
    one[2, 3] = 4.0
    half = torch.zeros(8, 8)
    half[:4] = 3.0
    assert map_entropy(torch.ones(1, 5, 7)).item() == pytest.approx(1.0)
    assert map_entropy(one[None]).item() == pytest.approx(0.0)
    assert map_entropy(half[None]).item() == pytest.approx(math.log(32) / math.log(64))
    assert map_entropy(1e-30 * half[None]).item() == pytest.approx(math.log(32) / math.log(64))


def test_entropy_takes_the_positive_part_and_knows_empty_maps():
    x = torch.randn(20, 8, 8, generator=seeded(0))
    torch.testing.assert_close(map_entropy(x), map_entropy(x.clamp(min=0.0)))
    assert map_entropy(torch.stack([-x[0].abs(), x[0]])).isnan().tolist() == [True, False]
    with pytest.raises(BadInput, match=r"\(8, 8\)"):
        map_entropy(x[0])


def test_shifted_images_are_windows_of_the_padded_ones():
    x, _ = made_up(64, seeded(0))
    x = x.reshape(-1, 3, 32, 32)
    found = shifted(x, seeded(1))
    padded = torch.nn.functional.pad(x, (4,) * 4, mode="replicate")
    mirrored = 0
    for image, whole in zip(found, padded, strict=True):
        windows = whole.unfold(1, 32, 1).unfold(2, 32, 1).movedim(0, 2).flatten(0, 1)  # (81, 3, 32, 32)
        plain, mirror = ((windows == each).flatten(1).all(1).any() for each in (image, image.flip(-1)))
        assert plain != mirror
        mirrored += bool(mirror)
    assert 16 < mirrored < 48
    assert torch.equal(found, shifted(x, seeded(1)))


def test_augmented_batches_are_new_each_time_and_the_same_from_a_seed():
    x, y = made_up(32, seeded(0))
    x = x.reshape(-1, 3, 32, 32)

    def loader():
        draw = seeded(3)
        return Augmented(Batches(x, y, 32, draw), draw)

    once, again = loader(), loader()
    ((first, _),), ((second, _),), ((same, _),) = list(once), list(once), list(again)
    assert torch.equal(first, same)
    assert not torch.equal(first, second)


def test_images_are_standardised_by_the_training_images():
    found = load_images("made-up", (1,), 200, 50, CPU)
    torch.testing.assert_close(found.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(found.x.std((0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0.0)
    assert found.test_bytes.shape == (50, 3, 32, 32)
    assert found.test_bytes.dtype == torch.uint8
    with pytest.raises(BadInput, match="W7 has no data 'imagenet'"):
        load_images("imagenet", (1,), 10, 10, CPU)


def test_without_its_files_the_experiment_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(w7_images, "images", partial(images, download=False))
    outcome = run([(W7, W7.quick)], Store(tmp_path), CPU)
    assert outcome.computed == 0
    assert "data_batch_1" in outcome.left_out["W7"]


SMALL = replace(W7.quick, data="made-up", train=192, test=64, maps=12, channels=(4, 8), epochs=1, batch=32)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("run"))
    run([(W7, SMALL)], store, CPU)
    return store.records("W7")


def test_records_hold_what_figures_and_claims_need(records):
    assert [(r.config["network"], r.config["seed"]) for r in records] == [(n, s) for s in range(2) for n in NETWORKS]
    for record in records:
        values = record.values
        assert len(record.to_line()) < 100_000
        assert ("solver" in values) == (record.config["network"] == "deq")
        assert ("shown" in values) == (record.config["seed"] == 0)
        for when in ("trained", "untrained"):
            found = values[when]
            assert len(found["entropies"]) + found["empty"] == 12
            assert all(0.0 <= entropy <= 1.0 for entropy in found["entropies"])
            assert found["entropy"] == pytest.approx(sum(found["entropies"]) / len(found["entropies"]), abs=1e-4)
    shown = [r.values["shown"] for r in records if "shown" in r.values]
    assert shown[0]["images"] == shown[1]["images"]
    assert all((len(s["maps"]), len(s["maps"][0]), len(s["maps"][0][0])) == (SHOWN, 8, 8) for s in shown)
    assert all(drawing.caption for drawing in saliency_drawings(records))
    assert len(saliency_drawings(records)) == 2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_maps_the_same_untrained_networks(records):
    """Both are drawn on the CPU; convolutions there may round to ten bits."""
    pytest.importorskip("captum")
    for unit, record in zip(W7.units(SMALL), records, strict=True):
        found = W7.run(unit, torch.device("cuda"))
        assert found["parameters"] == record.values["parameters"]
        assert found["untrained"]["entropy"] == pytest.approx(record.values["untrained"]["entropy"], abs=0.02)
        assert 0.0 < found["trained"]["entropy"] <= 1.0


def made(network, seed, trained, untrained, accuracy=0.7):
    config = {"network": network, "seed": seed, "tol": 0.01, "max_steps": 20}
    maps = {
        when: {"entropy": value, "entropy_correct": value, "empty": 0, "entropies": [value]}
        for when, value in (("trained", trained), ("untrained", untrained))
    }
    solver = {"solver": {"steps": 7.0, "converged": 1.0}} if network == "deq" else {}
    return Record("W7", config, {"accuracy": accuracy, "parameters": 10, **solver, **maps}, 1.0)


def test_the_verdict_rests_on_intervals_over_seeds():
    def judged(deq, resnet):
        pairs = enumerate(zip(deq, resnet, strict=True))
        found = [made(name, s, value, 0.8) for s, both in pairs for name, value in zip(NETWORKS, both, strict=True)]
        return str(W7.claims({"W7": found}, "")[0].verdict)

    assert judged([0.93, 0.931, 0.929], [0.90, 0.901, 0.899]) == "reproduced"
    assert judged([0.93, 0.99, 0.87], [0.90, 0.901, 0.899]) == "not reproduced"
    assert judged([0.90, 0.901, 0.899], [0.93, 0.931, 0.929]) == "not reproduced"
    assert judged([0.99], [0.5]) == "not reproduced"  # one seed tells nothing of chance


def test_the_control_is_told_seed_by_seed():
    records = [
        made("deq", 0, 0.95, 0.90),
        made("resnet", 0, 0.90, 0.88),
        made("deq", 1, 0.96, 0.94),
        made("resnet", 1, 0.90, 0.91),
    ]
    (control,) = (note for note in W7.notes({"W7": records}) if note.startswith("A control"))
    assert "+0.025 before any training and by +0.055 after" in control
    assert "training accounts for +0.030" in control
