"""Write torchdeq_evaluations.json: how often torchdeq evaluates the layers of tests/clients, by each of its solvers.

Each at the loosest tolerance at which its state's true residual (one evaluation outside of it, worst sample) is within the
client's; null where it does not get there in 500 steps. Run, with torchdeq installed, from the repository's root:
PYTHONPATH=src:benchmarks python tests/golden/make_torchdeq_evaluations.py
"""

import json
import pathlib

import torch
from peer import peer_version
from torchdeq_layers import CLIENTS, all_tuned

MAX_STEPS = 500


def main() -> None:
    counts = {}
    for client in CLIENTS:
        found = all_tuned(client, client.build(torch.float32, 0), MAX_STEPS)
        counts[client.name] = {solver: tuned and tuned.evaluations for solver, tuned in found.items()}
        print(client.name, counts[client.name], flush=True)
    provenance = {
        "made by": "tests/golden/make_torchdeq_evaluations.py",
        "torchdeq": peer_version(),
        "torch": torch.__version__,
        "date": "2026-11",
        "precision": "float32",
        "max_steps": MAX_STEPS,
    }
    path = pathlib.Path(__file__).with_name("torchdeq_evaluations.json")
    path.write_text(json.dumps({"provenance": provenance, "evaluations": counts}, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
