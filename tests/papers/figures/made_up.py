"""Records as the experiments write them, with made-up numbers."""

import base64

import numpy as np

from notsodeep.papers.ling2024.comparison import TWIN
from notsodeep.papers.records import Record
from notsodeep.papers.wu2024.w7_images import SIDE

SAMPLES = {"gmm": 800, "mnist": 6000}
RIVALS = {
    "L2": {"equivalent": (1.0, 0.004), "sharp": (1.0, 0.0002)},
    "L3": {
        "designed": (1.0, 1e-4),
        "one layer": (1.0, 0.03),
        TWIN: (1.0, 1e-6),
        "plain": (0.3, 0.7),
        "plain rescaled": (1.15, 0.14),
    },
    "L4": {"designed": (1.0, 0.002), TWIN: (1.0, 1e-4), "plain": (0.94, 0.06), "plain rescaled": (1.01, 0.02)},
}
DATA, ACTIVATIONS = ("mnist", "fashion-mnist", "cifar10-vgg19"), ("tanh", "relu")
WIDTHS = tuple(2**power for power in range(5, 14))
LEVELS = {"deq": 0.92, "matched": 0.918, "closest": 0.919, "plain": 0.9, "rescaled": 0.912, "deq_again": 0.919}


def _random(*names):
    return np.random.default_rng([ord(c) for c in repr(names)])


def everything():
    """All experiments' records, by name."""
    spectra = {name: [spectrum(name, data) for data in SAMPLES] for name in RIVALS}
    equivalence = {"L1": gaps(), **spectra, "L5": [*widths(), *limits(), *trained()], "L6": costs(), "L7": trainings()}
    separation = {
        "W1": sawtooths(),
        "W2": steeps(),
        "W3": [*built_weights(), *largest_weights()],
        "W4": [contest("W4", "sawtooth:5", 10, 10, ("L4W30", "L3W40", "L2W200"))],
        "W5": [contest("W5", name, 10, 20, ("L3W20", "L4W20")) for name in ("f1", "f2", "f3", "f4")],
        "W6": features(),
        "W7": saliency_maps(),
    }
    return equivalence | separation


def gaps():
    found = []
    for index, activation in enumerate(("tanh", "relu", "leaky_relu:0.01", "elu", "swish")):
        for n in (200, 400, 800, 1600, 3200, 6400):
            for ratio in (1.25, 0.8) if n < 1000 else (1.25,):
                for seed in range(4):
                    noise = np.exp(_random(activation, n, ratio, seed).normal(0, 0.06, 6))
                    base = (0.25 + 0.11 * index) / ratio
                    gap = [
                        base * n**-0.55,
                        base * n**-0.95,
                        base * n**-0.52,
                        base * n**-0.9,
                        0.7 * base * n**-0.6,
                        0.4 * base / n,
                    ]
                    pairs = (np.array(gap) * noise).reshape(3, 2).tolist()
                    kernels = ("conjugate", "tangent", "preactivation")
                    values = {
                        k: dict(zip(("equivalent", "sharp"), p, strict=True)) for k, p in zip(kernels, pairs, strict=True)
                    }
                    config = {"activation": activation, "n": n, "p": round(n * ratio), "var_a": 0.2, "var_b": 0.8, "seed": seed}
                    found.append(Record("L1", config, values, 1.0))
    return found


def spectrum(experiment, data, n=None, shown=600):
    n = n or SAMPLES[data]
    random = _random(experiment, data)
    shown = min(shown, n)
    classes = [6 if i < shown // 2 else 8 for i in range(shown)]
    kernels = {}
    for kernel, scale in (("conjugate", 1.0), ("tangent", 2.1)):
        bulk = 0.1 + 0.9 * np.sqrt(random.beta(1.5, 3.0, n)) if data == "gmm" else 0.02 + 3 * random.beta(0.4, 6.0, n)
        deq = np.sort(np.concatenate([bulk[3:], [60.0, 31.0, 9.0]]) * scale)[::-1][:n]
        vectors = random.normal(0, 0.4, (2, shown)) + np.where(np.array(classes) == 6, 1.0, -1.0) * [[1.0], [0.3]]
        rivals = {}
        for name, (factor, gap) in RIVALS[experiment].items():
            values = np.sort(deq * factor * np.exp(random.normal(0, gap / 3, n)))[::-1]
            rivals[name] = {
                "absolute": gap * deq[0], "relative": gap, "frobenius": gap / 2, "eigenvalues": values.tolist(),
                "vectors": (-vectors / n**0.5 + random.normal(0, gap / n**0.5, vectors.shape)).tolist(),
                "cosines": [1 - gap**2, 1 - gap],
            }  # fmt: skip
        kernels[kernel] = {
            "norm": float(deq[0]), "eigenvalues": deq.tolist(), "vectors": (vectors / n**0.5).tolist(), "rivals": rivals
        }  # fmt: skip
    values = {"description": "", "n": n, "p": 1000, "tau0": 1.0, "kernels": kernels, "shown": {"classes": classes}}
    if experiment != "L2":
        x = np.linspace(-3, 3, 201)
        curves = {
            "DEQ": np.maximum(x, 0) - 0.37,
            "layer 1": np.maximum(1.2 * x, 0) - 0.4,
            "layer 2": np.maximum(0.9 * x, 0.5 * x),
            f"{TWIN}, layer 1": np.tanh(x),
        }
        values["activations"] = {"x": x.tolist(), "curves": {name: curve.tolist() for name, curve in curves.items()}}
        values["scalars"] = {"alpha1": {"deq": 0.21, "explicit": 0.21}}
    config = {"data": data, "n": n, "p": 1000, "activation": "relu", "var_a": 0.1, "var_b": 0.9, "seed": 0}
    return Record(experiment, config, values, 1.0)


def widths():
    return [
        _width(data, activation, m, seed) for data in DATA for activation in ACTIVATIONS for m in WIDTHS for seed in range(3)
    ]


def _width(data, activation, m, seed):
    random = _random(data, activation, m, seed)
    drop = 0.9 / m**0.5 + 0.08 * (data != "mnist")
    accuracy = {net: min(0.999, level - drop + random.normal(0, 0.05 / m**0.5)) for net, level in LEVELS.items()}
    ridge = {net: value + 0.02 for net, value in accuracy.items() if net != "rescaled"}
    others = ("matched", "closest", "plain", "rescaled", "deq_again")
    floor = 1.6 / m**0.5
    apart = dict(zip(others, (floor * 1.02, floor * 1.01, floor + 0.5, floor + 0.12, floor), strict=True))
    agreement = {net: 1 - gap * 0.25 for net, gap in apart.items()}
    values = {
        "accuracy": {"sgd": accuracy, "ridge": ridge},
        "agreement": {"sgd": agreement, "ridge": {net: a for net, a in agreement.items() if net != "rescaled"}},
        "kernel_gap": apart, "prediction_gap": {net: gap * 0.5 for net, gap in apart.items()},
        "seconds": dict.fromkeys(LEVELS, 0.1),
    }  # fmt: skip
    config = {"kind": "width", "data": data, "activation": activation, "var_a": 0.2, "width": m, "seed": seed}
    return Record("L5", config, values, 1.0)


def limits():
    nets = ("matched", "closest", "plain", "rescaled")
    values = {
        "accuracy": {"deq": 0.96, "matched": 0.96, "closest": 0.96, "plain": 0.958, "rescaled": 0.959},
        "agreement": dict(zip(nets, (0.9995, 1.0, 0.985, 0.99), strict=True)),
        "kernel_gap": dict(zip(nets, (0.003, 1e-5, 0.5, 0.1), strict=True)),
        "prediction_gap": dict(zip(nets, (0.002, 2e-5, 0.1, 0.06), strict=True)),
    }
    configs = [
        {"kind": "infinite", "data": data, "activation": activation, "seed": 0} for data in DATA for activation in ACTIVATIONS
    ]
    return [Record("L5", config, values, 1.0) for config in configs]


def trained():
    found = []
    for data in DATA[:2]:
        for activation in ACTIVATIONS:
            for seed in range(3):
                noise = _random("trained", data, activation, seed).normal(0, 0.002, 4)
                accuracy = dict(
                    zip(
                        ("deq", "matched", "closest", "plain"),
                        (np.array([0.981, 0.979, 0.98, 0.977]) + noise).tolist(),
                        strict=True,
                    )
                )
                config = {"kind": "trained", "data": data, "activation": activation, "width": 256, "seed": seed, "epochs": 10}
                found.append(Record("L5", config, {"accuracy": accuracy, "seconds": dict.fromkeys(accuracy, 9.0)}, 1.0))
    return found


def costs():
    found = []
    for device, speed, start in (("cpu", 4e7, 0.2), ("cuda", 6e9, 0.25)):
        for index, activation in enumerate(ACTIVATIONS):
            for m in WIDTHS:
                for seed in range(3):
                    noise = np.exp(_random(device, activation, m, seed).normal(0, 0.04, 3))
                    deq, matched, closest = (
                        _measured(m, maps, speed, start * maps, device, float(factor))
                        for maps, factor in zip((9 + 3 * index, 1 + index, 2), noise, strict=True)
                    )
                    values = {
                        "deq": deq,
                        "matched": matched,
                        "closest": closest,
                        "processor": "NVIDIA H200" if device == "cuda" else "x86_64, 2 cores",
                    }
                    config = {
                        "activation": activation,
                        "width": m,
                        "device": device,
                        "data": "mnist",
                        "training_batch": 128,
                        "inference_batch": 1024,
                        "seed": seed,
                    }
                    found.append(Record("L6", config, values, 1.0))
    return found


def _measured(m, maps, speed, start, device, factor):
    flops = 2.0 * m * 784 + 2.0 * maps * m * m
    time = (start + 128 * flops / speed / 1e3) * factor
    return {
        "inference_ms": time, "training_ms": 2.8 * time * maps**0.2, "inference_flops": flops, "training_flops": 3 * flops,
        "kept_bytes": 4.0 * m * min(maps, 3), "peak_bytes": 1e8 + 900.0 * m * maps if device == "cuda" else None,
        "evaluations": maps,
    }  # fmt: skip


def trainings():
    steps, found = [1, 3, 10, 30], []
    for activation in ACTIVATIONS:
        for kind, seeds, floor in (("infinite", 1, {}), ("width", 3, {"deq_again": 0.05, "limit": 0.03})):
            for seed in range(seeds):
                levels = {"both": 2e-3, "conjugate": 0.4, "plain": 0.06}
                noise = np.exp(_random("L7", activation, kind, seed).normal(0, 0.1, len(steps)))
                apart = {name: (floor.get("deq_again", 0.0) + level * noise).tolist() for name, level in levels.items()}
                apart |= {name: (level * noise).tolist() for name, level in floor.items()}
                config = {"kind": kind, "activation": activation, "data": "mnist", "train": 200, "steps": 30, "seed": seed}
                config |= {"width": 4096} if kind == "width" else {}
                found.append(Record("L7", config, {"steps": steps, "apart": apart, "left": 1e-3}, 1.0))
    return found


# The experiments of the other paper.


def trained_part(*names, level, flops, seeds=4):
    """A network's values in a contest; the first seed of L4… diverged."""
    losses = (level * np.exp(_random(*names).normal(0, 0.1, seeds))).tolist()
    if seeds > 1 and str(names[-1]).startswith("L4"):
        losses[0] = None
    return {"test": losses, "forward_flops": 0.4 * flops, "backward_flops": 0.6 * flops, "parameters": 40}


def contest(experiment, target, dimension, width, rivals, seeds=4, **config):
    names = (experiment, target, dimension, width)
    values = {
        "best_constant": 0.08 + 0.001 * width,
        "deq": trained_part(*names, "deq", level=0.07, flops=900.0 * width, seeds=seeds),
        "rivals": {r: trained_part(*names, r, level=0.09, flops=150.0 + 9 * width, seeds=seeds) for r in rivals},
        "paired": {p: trained_part(*names, p, level=0.075, flops=895.0 * width, seeds=seeds) for p in ("L2W104", "L4W8")},
    }
    settings = {"samples": 1000, "steps": 1000, "rate": 5e-4, "bound": 0.99, "seeds": seeds, "kind": "trained"} | config
    return Record(experiment, {"target": target, "dimension": dimension, "width": width, **settings}, values, 1.0)


def sawtooths():
    made = [
        Record("W1", {"pieces_log2": m, "kind": "constructed"}, {"pieces": 2**m, "most": 2**m, "error": 0.0}, 1.0)
        for m in range(1, 9)
    ]
    rivals = {1: ("L4W3", "L3W5", "L2W10"), 5: ("L4W3", "L3W5", "L2W10")}
    return [*made, *(contest("W1", f"sawtooth:{m}", 1, m, rivals[m], steps=s) for s in (1000, 10_000) for m in rivals)]


def steeps():
    made = [
        Record("W2", {"dimension": 20, "N": N, "kind": "constructed"}, {"error": 0.47 / N, "width": 4 * N + 2}, 1.0)
        for N in (4, 10, 20)
    ]
    sizes = [(d, width) for d in (10, 20) for width in (30, 50)]
    return [*made, *(contest("W2", "steep", d, w, ("L3W50", "L4W30") if w == 50 else ()) for d, w in sizes)]


def largest_weights():
    found = []
    for d in (6, 12, 20):
        for network in ("deq", "fnn"):
            level = _random(network, d).uniform(0.5, 0.9, 4).round(4).tolist()
            if (network, d) == ("fnn", 20):
                level[1] = None
            values = {"weight_at_level": level, "largest_weight": [0.9, 1.0, 1.1, 1.05]}
            found.append(
                Record("W3", {"network": network, "dimension": d, "rival": "L3W50", "level": 4.5e-3, "seeds": 4}, values, 1.0)
            )
    return found


def built_weights():
    shared = {"width": 50, "rival": "L3W50", "level": 1e-4, "seeds": 2, "kind": "constructed"}
    found = []
    for d in (6, 12, 20):
        deq = {"loss": [3e-5, 4e-5], "largest_weight": 1.0, "least_weight": None, "width": 50}
        fnn = deq | {"largest_weight": 2.0 ** (d / 3) / 20.0, "least_weight": 2.0 ** (d / 3) / 22.0}
        found += [
            Record("W3", {"network": name, "dimension": d} | shared, values, 1.0)
            for name, values in (("deq", deq), ("fnn", fnn))
        ]
    return found


def features(seeds=3):
    found = []
    for network, count in (("diagonal", 10), ("deq", 20), ("fnn", 20)):
        copies = 1 if network == "diagonal" else seeds
        sizes = np.sort(_random("W6", network).uniform(0.1, 2.0, (copies, count)))[:, ::-1]
        values = {
            "magnitudes": sizes.tolist(),
            "spread_out": (sizes.sum(1) ** 2 / (count * (sizes**2).sum(1))).tolist(),
            "map": (sizes[0][:, None] * np.linspace(0.5, 1.5, 32)).tolist(),
            "features": count,
        }
        found.append(Record("W6", {"network": network, "target": "f1", "width": 20, "seeds": seeds}, values, 1.0))
    return found


def saliency_maps():
    found = []
    for network in ("deq", "resnet"):
        for seed in range(2):
            random = _random("W7", network, seed)
            entropies = random.uniform(0.8, 0.99, 30).tolist()
            breadth = {"entropy": float(np.mean(entropies)), "entropy_correct": 0.9, "entropies": entropies}
            values = {"accuracy": 0.7, "untrained": breadth, "trained": breadth}
            if not seed:
                images = random.integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
                values["shown"] = {
                    "images": base64.b64encode(images.tobytes()).decode(), "labels": [3, 8], "predicted": [3, 1],
                    "maps": random.uniform(0, 1, (2, 8, 8)).tolist(),
                }  # fmt: skip
            found.append(Record("W7", {"network": network, "data": "cifar10", "seed": seed}, values, 1.0))
    return found
