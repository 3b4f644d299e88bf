"""A small training run, as a process that a test can kill."""

import sys
from pathlib import Path

import torch
import torch._dynamo  # optimisers import it at their first step: here once, for every process that is forked

import notsodeep as nsd
from notsodeep.models.training import fit as training

P, M, K, N, EPOCHS = 8, 24, 3, 96, 6


def loader():
    x = torch.randn(N, P, generator=torch.Generator().manual_seed(1)) / P**0.5
    y = (3.0 * x[:, 0] + x[:, 1].square() - 0.3).sigmoid().mul(2.999).long()
    data = torch.utils.data.TensorDataset(x, y)
    return torch.utils.data.DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(2))


class Noisy(torch.nn.Module):
    """Draws from torch's own generator as it goes: a resumed run must find that where it was, too."""

    def __init__(self):
        super().__init__()
        self.deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), P, M, K, generator=torch.Generator().manual_seed(3))
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x):
        return self.deq(self.dropout(x))


def run(checkpoint, resume=False, module=None, epochs=EPOCHS, **options):
    """Train, and give the module and its history."""
    torch.manual_seed(4)
    module = Noisy() if module is None else module
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    history = nsd.fit(
        module, loader(), epochs, optimiser=optimiser, checkpoint=checkpoint, resume=resume, progress=False, **options
    )
    return module, history


def run_and_write(checkpoint, weights):
    """The whole run, going on where an earlier one was stopped, with a checkpoint after every batch."""
    torch.set_num_threads(1)
    training._SECONDS = 0.0
    module, _ = run(checkpoint, resume=True, epochs=3)
    torch.save(module.state_dict(), weights)


if __name__ == "__main__":
    run_and_write(Path(sys.argv[1]), Path(sys.argv[2]))
