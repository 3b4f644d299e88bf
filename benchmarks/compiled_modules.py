"""Claim: any module with a fixed point inside compiles to a network that keeps ≥ 99 % of its answers for fewer FLOPs, which
leaves as an ONNX file; where nothing cheaper keeps as much, the verdict says so.

A convolutional DEQ (the tutorial's residual layer) and a transformer DEQ (patches as tokens, causal attention) of
tests/clients are trained on CIFAR-10 for a fixed time each, on CUDA where there is one, in small on a CPU, and compiled with
their labels, judged on test images. Weights, frontiers and files go to --out. A machine without ONNX Runtime writes no files;
--weights then compiles the same modules again, elsewhere, from the weights that it left. --all compiles the other clients too,
as they are before training.

CIFAR-10 is read from $NOTSODEEP_DATA (two training batches and the test batch), or from an .npz that --pack made of some of
its images:
    PYTHONPATH=src python benchmarks/compiled_modules.py --pack cifar.npz --samples 12000
    PYTHONPATH=src python benchmarks/compiled_modules.py --images cifar.npz --seconds 40 --budget 25 --out trained
    PYTHONPATH=src python benchmarks/compiled_modules.py --images cifar.npz --weights trained --samples 2000 --out files
    PYTHONPATH=src python benchmarks/compiled_modules.py --seconds 5 --budget 5 --samples 1000 --all
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import notsodeep as nsd
from notsodeep.data.image_sets import images

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.clients, which scripts take from here

from tests.clients.client import Problem
from tests.clients.modules import CASES, Residual, Transformer

TOL, MAX_STEPS = 1e-3, 50  # of the equilibria, trained and deployed
WARM_UP, CLIPPED, TEST_SHARE = 0.05, 1.0, 0.25


def solve(problem: Problem) -> nsd.fixed_points.Solution:
    """The equilibrium, or the best state of so many steps; its gradient through a few damped steps, which cannot diverge."""
    options = {"samples": 1, "tol": TOL, "max_steps": MAX_STEPS, "throw": False}
    adjoint = nsd.fixed_points.PhantomAdjoint(steps=4, damping=0.7)
    return nsd.fixed_point(problem.f, problem.z0, nsd.Anderson(), adjoint, **options)


class Patches(nn.Module):
    """Images (n, c, h, w) ↦ the scores of a transformer whose tokens are their square patches."""

    def __init__(self, side: int, network: nn.Module) -> None:
        super().__init__()
        self.side, self.network = side, network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(functional.unfold(x, self.side, stride=self.side).mT)


def convolutional(large: bool) -> nn.Module:
    """64 channels of 16 × 16, or 16 of 8 × 8."""
    width, stride = (64, 2) if large else (16, 4)
    stem = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, width, 3, stride, padding=1)
    )
    return Residual(stem, channels=width, inner=3 * width // 2, groups=8, parts=4, solve=solve)


def transformer(large: bool) -> nn.Module:
    """64 tokens of 128 numbers, or 16 of 32."""
    side, width = (4, 128) if large else (8, 32)
    tokens = (32 // side) ** 2
    return Patches(side, Transformer(tokens, 3 * side**2, width, heads=4, hidden=2 * width, solve=solve))


MODULES: dict[str, tuple[Callable[[bool], nn.Module], float]] = {
    "convolutional": (convolutional, 2e-3),
    "transformer": (transformer, 1e-3),
}
"""What makes each, large or small, and the highest rate of its training."""


@dataclass(frozen=True)
class Data:
    """Images (n, 3, 32, 32) of 8 bits and their classes, to learn from and to be judged by."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def read(cls, file: str | None, samples: int | None) -> Data:
        """Those of a file that `pack` made, or CIFAR-10's; so many to learn from, and a quarter of that to test on."""
        if file is not None:
            with np.load(file) as stored:
                parts = [torch.from_numpy(stored[name]) for name in ("x", "y", "test_x", "test_y")]
        else:
            (x, y), (test_x, test_y) = images("cifar10", "train", [1, 2], download=False), images("cifar10", "test")
            parts = [(255.0 * x).round().byte().reshape(-1, 3, 32, 32), y]
            parts += [(255.0 * test_x).round().byte().reshape(-1, 3, 32, 32), test_y]
        if samples is not None:
            parts = [part[:samples] for part in parts[:2]] + [part[: int(TEST_SHARE * samples)] for part in parts[2:]]
        return cls(*parts)

    def pack(self, file: str) -> None:
        parts = {"x": self.x, "y": self.y.byte(), "test_x": self.test_x, "test_y": self.test_y.byte()}
        np.savez_compressed(file, **{name: part.numpy() for name, part in parts.items()})
        print(f"{file}: {len(self.x)} and {len(self.test_x)} images, {Path(file).stat().st_size / 2**20:.1f} MiB")

    def scaled(self, device: torch.device) -> Data:
        """Centred and scaled by the mean and the deviation of each channel, on the device."""
        x, test_x = (part.to(device).float() / 255.0 for part in (self.x, self.test_x))
        mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
        labels = (part.to(device).long() for part in (self.y, self.test_y))
        return Data((x - mean) / deviation, next(labels), (test_x - mean) / deviation, next(labels))


def moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """The images, some mirrored, all shifted by up to two pixels."""
    shift = torch.randint(-2, 3, (2,), generator=generator).tolist()
    mirrored = (torch.rand(len(x), generator=generator) < 0.5).to(x.device)
    return torch.where(mirrored[:, None, None, None], x.flip(3), x).roll(shift, (2, 3))


def train(module: nn.Module, data: Data, seconds: float, highest: float) -> None:
    """Adam on the cross-entropy, the rate up and down again within so many seconds."""
    generator = torch.Generator().manual_seed(0)
    batch = 256 if data.x.is_cuda else 64
    optimiser = torch.optim.AdamW(module.parameters(), lr=highest, weight_decay=1e-3)
    module.train()
    began, steps, mean = time.perf_counter(), 0, math.nan
    while (share := (time.perf_counter() - began) / seconds) < 1.0:
        rate = highest * min(share / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * share))
        for group in optimiser.param_groups:
            group["lr"] = rate
        rows = torch.randint(len(data.x), (batch,), generator=generator).to(data.x.device)
        loss = functional.cross_entropy(module(moved(data.x[rows], generator)), data.y[rows])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if bool(nn.utils.clip_grad_norm_(module.parameters(), CLIPPED).isfinite()):
            optimiser.step()
        value = float(loss.detach())
        mean = value if steps == 0 else 0.98 * mean + 0.02 * value
        steps += 1
        if steps % 100 == 0:
            print(f"  {steps} batches of {batch}, {time.perf_counter() - began:.0f} s, loss {mean:.3f}", flush=True)
    module.eval()
    print(f"  trained for {seconds:g} s: {steps} batches of {batch}, loss {mean:.3f}", flush=True)


def missing() -> list[str]:
    """The packages that an ONNX file needs and this machine lacks."""
    return [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]


def write_and_run(compiled: nsd.models.Compiled, file: Path, x: Tensor) -> str:
    """Write the network, run the file on samples, and say how far its answers are from the network's."""
    import onnxruntime

    try:
        compiled.to_onnx(file)
    except nsd.NotSoDeepError as error:
        return f"no ONNX file: {type(error).__name__}: {error}"
    (found,) = onnxruntime.InferenceSession(file).run(None, {"x": x.cpu().numpy()})
    with torch.no_grad():
        wanted = compiled.network(x).cpu()
    off = float((torch.from_numpy(found) - wanted).abs().max() / wanted.abs().max())
    return (
        f"{file.name}, {file.stat().st_size / 1e6:.2f} MB: off the network by {off:.1e} of its largest output, {len(x)} samples"
    )


def compile_and_print(
    name: str, module: nn.Module, x: Tensor, y: Tensor | None, test: object, options: argparse.Namespace
) -> str:
    """Compile, print the frontier, write the file; one line of the table."""
    began = time.perf_counter()
    compiled = nsd.compile_deq(module, x, y, test=test, keep=options.keep, budget=options.budget, progress=False)
    took = time.perf_counter() - began
    frontier = compiled.frontier
    assert frontier is not None
    print(frontier.summary(), flush=True)
    stem = name.replace(" ", "-").replace(",", "")
    if options.out is not None:
        (options.out / f"{stem}.json").write_text(json.dumps(frontier.to_dict(), indent=1))
    lacking, folder = missing(), options.out
    if lacking or folder is None:
        print(f"no ONNX file: {f'without {lacking[0]}' if lacking else 'without --out'}\n", flush=True)
    else:
        whole = frontier.samples < len(x) and test is None and "graph" in name  # the nodes of a graph come together
        print(write_and_run(compiled, folder / f"{stem}.onnx", x if whole else x[:13]) + "\n", flush=True)
    deq, way = frontier.ways[0], frontier.faithful
    scores = "" if deq.score is None else f", {frontier.measure} {deq.score:.4f} → {way.score:.4f}"
    plain = [each for each in frontier.ways if each.plain]
    rival = "" if not plain else f"; plain networks {', '.join(f'{each.score:.4f}' for each in plain)}"
    return (
        f"{name}: {way.name}, keeps {way.kept:.1%}, {deq.mflop / way.mflop:.1f}× fewer FLOPs, "
        f"{deq.milliseconds / way.milliseconds:.1f}× faster{scores}{rival}; compiled in {took:.0f} s"
    )


def trained(name: str, data: Data, options: argparse.Namespace) -> nn.Module:
    """One of MODULES, from stored weights or trained now."""
    make, highest = MODULES[name]
    if options.weights is not None:
        stored = torch.load(options.weights / f"{name}.pt", map_location="cpu", weights_only=True)
        module = make(stored["large"])
        module.load_state_dict(stored["weights"])
        return module.to(data.x.device).eval()
    large = data.x.is_cuda or options.large
    module = make(large).to(data.x.device)
    train(module, data, options.seconds, highest)
    if options.out is not None:
        weights = {key: value.cpu() for key, value in module.state_dict().items()}
        torch.save({"large": large, "weights": weights}, options.out / f"{name}.pt")
    return module


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, each")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of trainings in a compilation")
    parser.add_argument("--keep", type=float, default=0.99)
    parser.add_argument("--samples", type=int, help="training images; a quarter of that to test on")
    parser.add_argument("--only", choices=list(MODULES), help="one of the trained modules")
    parser.add_argument("--large", action="store_true", help="the sizes for CUDA on a CPU")
    parser.add_argument("--all", action="store_true", help="the other clients too, untrained")
    parser.add_argument("--images", help="an .npz of images in place of $NOTSODEEP_DATA")
    parser.add_argument("--pack", help="write such an .npz, and nothing else")
    parser.add_argument("--out", type=Path, help="the folder for weights, frontiers and ONNX files")
    parser.add_argument("--weights", type=Path, help="the folder with weights of a run before")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    images_read = Data.read(options.images, options.samples)
    if options.pack is not None:
        images_read.pack(options.pack)
        return
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = False  # equilibria to 1e-3 want more than ten bits
    data = images_read.scaled(device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}, {len(data.x)} images, {len(data.test_x)} to test on", flush=True)
    lines = []
    for name in MODULES if options.only is None else [options.only]:
        print(f"\n{name} DEQ", flush=True)
        module = trained(name, data, options)
        lines.append(compile_and_print(name, module, data.x, data.y, (data.test_x, data.test_y), options))
    for case in CASES if options.all else ():
        if case.name.startswith(("tutorial", "transformer")):
            continue
        print(f"\n{case.name}, untrained", flush=True)
        x, _ = case.samples(200 if case.coupled else 1000)
        lines.append(compile_and_print(case.name, case.build().to(device).eval(), x.to(device), None, None, options))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
