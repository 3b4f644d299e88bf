"""Fixed points in exported graphs: the numbers of the module, NaN without convergence, and records of the choice."""

import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.fixed_points import Loop, Steps, exporting

N = torch.export.Dim("n")


class Layer(nn.Module):
    """z = tanh(W z + U x), by a function that closes over weights and input, or is given them."""

    def __init__(self, kind="closure", solver=None, size=0.4, **options):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(size * torch.linalg.qr(torch.randn(4, 4, generator=draw))[0])
        self.inward = nn.Parameter(torch.randn(4, 3, generator=draw))
        self.kind, self.solver, self.options = kind, solver or nsd.Anderson(), options

    def forward(self, x):
        u = x @ self.inward.T
        z0, solve = torch.zeros_like(u), lambda f, z, **more: nsd.fixed_point(f, z, self.solver, **more, **self.options)

        def f(z):
            return torch.tanh(z @ self.weight.T + u)

        match self.kind:
            case "closure" | "one sample":
                return solve(f, z0).value
            case "args":
                found = solve(lambda z, u, w: torch.tanh(z @ w.T + u), z0, inputs=(u,), args=(self.weight,))
                return found.value
            case "tuple":
                start = (z0, {"b": x.new_zeros(x.shape[0], 2, 3)})
                first, rest = solve(lambda z: [f(z[0]), {"b": 0.3 * z[1]["b"].sin() + z[0][:, :2, None]}], start).value
                return first + rest["b"].sum((1, 2))[:, None]
            case "other order":
                found = solve(lambda z: {"b": 0.5 * z["a"], "a": f(z["b"])}, {"a": z0, "b": z0}).value
                return found["a"] + 2.0 * found["b"]
            case "aux":
                found = solve(lambda z: (f(z), z.square().sum(1)), z0, aux=True)
                return found.value + found.aux[:, None]
            case "nested":
                return solve(lambda z: f(solve(lambda v: torch.sin(0.3 * v + z), z).value), z0).value
            case "outside":
                n = x.shape[0]
                return solve(lambda z: f(z.reshape(n, 2, 2).mT.reshape(n, 4)), z0).value
            case "told":
                found = solve(f, z0)
                return found.value, found.steps, found.converged
        raise AssertionError(self.kind)


def data(n, scale=1.0):
    return scale * torch.randn(n, 3, generator=torch.Generator().manual_seed(n))


def exported(module, n=5, **options):
    return torch.export.export(module, (data(n),), dynamic_shapes=({0: N},), **options)


def calls(program, name):
    return [node for node in program.graph.nodes if node.op == "call_function" and name in str(node.target)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("closure", {}),
        ("args", {}),
        ("one sample", {"samples": 0, "solver": nsd.Picard(0.6), "relative": False, "tol": 1e-6}),
        ("tuple", {}),
        ("other order", {}),
        ("aux", {"atol": 1e-6}),
    ],
)
def test_a_loop_gives_the_numbers_of_the_module_for_any_number_of_samples(kind, options):
    module = Layer(kind, **options)
    with exporting() as graph:
        program = exported(module)
    assert len(calls(program, "while_loop")) == 1
    assert len(graph.written) == 1
    run = program.module()
    for n in (1, 5, 8):
        torch.testing.assert_close(run(data(n)), module(data(n)).detach(), rtol=2e-4, atol=2e-5)
    answer, (record,) = graph.rehearse(module, data(8))
    torch.testing.assert_close(answer, run(data(8)))
    assert record.failed == 0
    assert 0.0 < record.residual <= record.tol + module.options.get("atol", 0.0)


@pytest.mark.parametrize("kind", ["closure", "tuple", "other order"])
def test_so_many_steps_are_written_out(kind):
    module = Layer(kind)
    with exporting(Steps(14)):
        program = exported(module)
    assert not calls(program, "while_loop")
    assert len(calls(program, "tanh")) == 14  # no evaluation that only judges
    for n in (2, 7):
        torch.testing.assert_close(program.module()(data(n)), module(data(n)).detach(), rtol=2e-4, atol=2e-5)


def test_steps_are_those_of_picard():
    module, x = Layer("closure"), data(6)
    with exporting(Steps(3)):
        found = exported(module).module()(x)
    z = torch.zeros(6, 4)
    for _ in range(3):
        z = torch.tanh(z @ module.weight.T + x @ module.inward.T)
    torch.testing.assert_close(found, z)


def test_only_samples_that_do_not_converge_are_nan():
    # z = w z² + x: from 0 it converges for w x < 1/4 and runs away above.
    class Square(nn.Module):
        def forward(self, x):
            return nsd.fixed_point(lambda z: z.square() + x, torch.zeros_like(x), nsd.Picard(), max_steps=60).value

    x = torch.tensor([[0.1], [5.0], [0.2], [0.2499999]])
    loop = torch.export.export(Square(), (x,), dynamic_shapes=({0: N},)).module()(x)
    assert loop.isnan().flatten().tolist() == [False, True, False, True]
    torch.testing.assert_close(loop[[0, 2]], Square()(x[[0, 2]]))
    with exporting(Steps(3)):
        steps = torch.export.export(Square(), (x,), dynamic_shapes=({0: N},)).module()(x)
    assert bool(steps.isfinite().all())


def test_what_was_chosen_is_told():
    module, x = Layer("closure", max_steps=90, tol=1e-4), data(5)
    with exporting() as outer:
        with exporting(Steps(2)) as graph:
            exported(module)
        (record,) = graph.written
        assert str(record) == "2 plain steps, no check, in place of Anderson"
        answer, _ = graph.rehearse(module, x)
        (record,) = graph.written
        image = torch.tanh(answer @ module.weight.T + x @ module.inward.T).detach()
        residual = float(((image - answer).norm(dim=1) / image.norm(dim=1)).max())
        assert record.residual == pytest.approx(residual, rel=1e-4)
        assert f"residual on the example {residual:.2e} (5 of 5 samples not within 0.0001)" in str(record)
        exported(module)
    assert [record.how for record in outer.written] == [Steps(2), Loop()]
    assert "loop of plain steps, at most 90, relative tol 0.0001, NaN where" in str(outer.written[1])
    with exporting() as graph:
        _, (record,) = graph.rehearse(Layer("closure", nsd.Picard(0.5)), x)
    assert str(record).startswith("loop of steps damped by 0.5, at most 200, relative tol 1e-05")
    assert graph.written == ()


def test_the_solution_tells_inside_of_a_graph():
    program = exported(Layer("told", size=0.9, max_steps=12))
    value, steps, converged = program.module()(torch.cat([data(4), torch.full((1, 3), 50.0)]))
    assert not value.requires_grad  # no gradient passes a loop, rather than a wrong one
    assert value.shape == (5, 4)
    assert steps.tolist() == [12] * 5
    assert converged.tolist() == (~value.isnan().any(1)).tolist()
    assert bool(converged[-1])  # where tanh is flat


def test_one_fixed_point_inside_of_another():
    module, x = Layer("nested"), data(3)
    with pytest.raises(nsd.BadInput, match=r"loop inside of a loop.*Steps"):
        exported(module)
    with exporting(Steps(5)) as graph:
        program = exported(module)
    assert len(graph.written) == 2
    torch.testing.assert_close(program.module()(x), graph.rehearse(module, x)[0])


def test_bad_arguments():
    with pytest.raises(nsd.BadInput, match=r"keep=\(2,\).*leave keep out"):
        exported(Layer("closure", keep=(2,)))
    with pytest.raises(nsd.BadInput, match=r"into a loop.*z\.shape\[0\].*Steps"):
        exported(Layer("outside"))
    with pytest.raises(nsd.BadInput, match="count of Steps must be a whole number"):
        Steps(0)
    with pytest.raises(nsd.BadInput, match=r"as Loop\(\) or as Steps"), exporting("loop"):
        pass


def test_a_splitting_is_written_as_damped_steps():
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[0.1, -1.5], [1.5, 0.1]]))  # monotone; plain steps run away

        def forward(self, x):
            f = nsd.fixed_points.Activated(torch.relu, self.weight, x)
            return nsd.fixed_point(f, torch.zeros_like(x), nsd.fixed_points.PeacemanRachford()).value

    module, x = Split(), data(6)[:, :2] + 3.0
    with exporting() as graph:
        program = torch.export.export(module, (x,), dynamic_shapes=({0: N},))
    assert "steps damped by 0.3" in str(graph.written[0])
    assert "in place of PeacemanRachford" in str(graph.written[0])
    torch.testing.assert_close(program.module()(x), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_deq_is_written_as_chosen():
    module = nsd.DEQ(nsd.Implicit("tanh", 0.2), 3, 16, 2, generator=torch.Generator().manual_seed(0))
    for how, loops in ((Loop(), 1), (Steps(20), 0)):
        with exporting(how) as graph:
            program = exported(module)
        assert len(calls(program, "while_loop")) == loops
        assert [record.how for record in graph.written] == [how]
        torch.testing.assert_close(program.module()(data(4)), module(data(4)).detach(), rtol=1e-3, atol=1e-4)
