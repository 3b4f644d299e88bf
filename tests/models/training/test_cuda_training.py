"""Training, readouts and files of networks on a CUDA device."""

import pytest
import torch
from torch.nn import functional

import notsodeep as nsd
from notsodeep.models.training.objective import Batches
from notsodeep.models.training.readout import fit_readout
from tests.models.training.training_run import P, loader

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Noisy(torch.nn.Module):
    """A DEQ behind dropout, which draws from the device's own generator."""

    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.deq = nsd.DEQ(nsd.Implicit("tanh", 0.2), P, 64, 3, generator=draw, device="cuda")
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, x):
        return self.deq(self.dropout(x))


def run(checkpoint, resume=False, stop=None):
    torch.manual_seed(4)
    module, asked = Noisy(), iter(range(10**6 if stop is None else stop))

    def loss(out, y):
        if next(asked, None) is None:
            raise InterruptedError
        return functional.cross_entropy(out, y)

    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-2)
    options = {"optimiser": optimiser, "loss": loss, "checkpoint": checkpoint, "resume": resume, "progress": False}
    history = nsd.fit(module, loader(), 4, **options)
    return module.state_dict(), history


def test_a_stopped_run_goes_on_to_the_same_numbers(tmp_path):
    torch.use_deterministic_algorithms(True, warn_only=True)
    whole, history = run(None)
    path = tmp_path / "run.safetensors"
    with pytest.raises(InterruptedError):
        run(path, stop=30)
    resumed, again = run(path, resume=True)
    torch.use_deterministic_algorithms(False)
    assert again == history
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    assert history.last.loss < history.epochs[0].loss


def test_readouts_and_files(tmp_path):
    x = torch.randn(400, P, generator=torch.Generator().manual_seed(0)).cuda()
    y = x[:, :3].argmax(1)
    draw = torch.Generator().manual_seed(1)
    module = nsd.DEQ(nsd.Implicit("relu", 0.2), P, 128, 3, readout_bias=True, generator=draw, device="cuda")
    there = nsd.DEQ(nsd.Implicit("relu", 0.2), P, 128, 3, readout_bias=True, generator=torch.Generator().manual_seed(1))
    found, expected = fit_readout(module, Batches(x, y)), fit_readout(there, Batches(x.cpu(), y.cpu()))
    assert found.ridge == expected.ridge
    torch.testing.assert_close(found.left_out_error, expected.left_out_error, rtol=1e-3, atol=0.0)
    torch.testing.assert_close(module(x).cpu(), there(x.cpu()), rtol=1e-2, atol=1e-3)
    back = nsd.load(nsd.save(module, tmp_path / "a.safetensors"), device="cuda")
    assert torch.equal(back(x), module(x))
    assert nsd.load(tmp_path / "a.safetensors").A.device.type == "cpu"


def test_cross_kernels():
    from notsodeep.kernels.structured.equivalent import equivalent_cross
    from notsodeep.kernels.structured.sharp import sharp_cross

    x = torch.randn(60, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 40**0.5
    net = nsd.Implicit("relu", 0.2)
    for cross in (sharp_cross, equivalent_cross):
        torch.testing.assert_close(
            cross(net, x[:9].cuda(), x[9:].cuda()).cpu(), cross(net, x[:9], x[9:]), rtol=1e-9, atol=1e-11
        )


def test_a_gaussian_process():
    pytest.importorskip("gpytorch")
    from notsodeep.estimators.gp import DEQKernel

    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 5**0.5
    kernel = DEQKernel("relu").double()
    here = kernel(x).to_dense()
    kernel.cuda()
    torch.testing.assert_close(kernel(x.cuda()).to_dense().cpu(), here, rtol=1e-9, atol=1e-11)
    kernel(x.cuda()).to_dense().sum().backward()
    assert kernel.raw_var_a.grad.is_cuda
