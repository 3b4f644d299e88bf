"""fit: what it learns, when it stops, and runs that are killed, stopped and resumed."""

import copy
import math
import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.optim import lr_scheduler as schedulers

import notsodeep as nsd
from notsodeep.models.files.save import read_tensors, write_tensors
from notsodeep.models.training import fit as training
from notsodeep.models.training.objective import Batches
from tests.models.training.training_run import EPOCHS, Noisy, loader, run, run_and_write


def state(module):
    return {name: weight.clone() for name, weight in module.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def linear(n=200, seed=0):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, x @ torch.tensor([1.0, -2.0, 0.5, 3.0])


OPTIMISERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.2),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_it_learns_with_every_optimiser(name):
    x, y = linear()
    module = torch.nn.Linear(4, 1)
    batches = Batches(x, y, 32, torch.Generator().manual_seed(0))
    history = nsd.fit(module, batches, 20, optimiser=OPTIMISERS[name](module.parameters()), progress=False)
    assert len(history.epochs) == 20
    assert history.last.loss < 1e-2 * history.epochs[0].loss
    torch.testing.assert_close(module.weight[0], torch.tensor([1.0, -2.0, 0.5, 3.0]), rtol=0.05, atol=0.05)


def test_the_loop_is_that_of_torch():
    # The same batches, optimiser and schedule, written out.
    x, y = linear()
    ours, theirs = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    theirs.load_state_dict(ours.state_dict())
    nsd.fit(ours, Batches(x, y, 64), 3, optimiser=torch.optim.Adam(ours.parameters(), lr=0.1), progress=False)
    optimiser = torch.optim.Adam(theirs.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 3 * 4)
    for _ in range(3):
        for rows, wanted in zip(x.split(64), y.split(64), strict=True):
            optimiser.zero_grad()
            functional.mse_loss(theirs(rows), wanted[:, None]).backward()
            optimiser.step()
            schedule.step()
    assert same(ours.state_dict(), theirs.state_dict())
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_early_stop_keeps_the_best_weights():
    x, y = linear(40)
    held = Batches(*linear(40, 1))
    module = torch.nn.Linear(4, 1)
    rates = iter([0.1] * 3 + [-0.1] * 50)  # three epochs downhill, then uphill for ever

    class Turning(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                group["lr"] = next(rates)
            super().step()

    seen = []

    def watched(out, wanted):
        if not torch.is_grad_enabled():
            seen.append(state(module))
        return functional.mse_loss(out, wanted[:, None])

    history = nsd.fit(
        module,
        [(x, y)],
        50,
        optimiser=Turning(module.parameters(), lr=0.1),
        loss=watched,
        schedule=None,
        validation=held,
        patience=4,
        progress=False,
    )
    assert history.stopped_early
    assert history.best_epoch == 3
    assert len(history.epochs) == 7
    assert same(module.state_dict(), seen[2])
    losses = [epoch.validation_loss for epoch in history.epochs]
    assert min(losses) == losses[2]


def test_accuracy_is_of_the_validation_data():
    x = torch.eye(4).repeat(10, 1)
    y = torch.arange(4).repeat(10)
    module = torch.nn.Linear(4, 4)
    history = nsd.fit(module, [(x, y)], 30, optimiser=torch.optim.Adam(module.parameters(), lr=0.3), validation=[(x, y)])
    assert history.last.validation_accuracy == 1.0
    assert functional.cross_entropy(module(x), y).item() == pytest.approx(history.last.validation_loss, rel=1e-5)


def started(context, *paths):
    process = context.Process(target=run_and_write, args=paths)
    process.start()
    return process


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path):
    """kill -9 at six random moments: the checkpoint loads each time, and the run ends where an undisturbed one does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.models.training.training_run"])
    for name in ("first", "second"):  # the first one also waits for the imports
        began = time.monotonic()
        process = started(context, tmp_path / f"{name}.safetensors", tmp_path / f"{name}.pt")
        process.join()
        seconds = time.monotonic() - began
        assert process.exitcode == 0
    expected = torch.load(tmp_path / "first.pt")
    choose, killed, opened = random.Random(0), 0, 0
    while killed < 6:
        checkpoint, weights = tmp_path / "run.safetensors", tmp_path / "run.pt"
        process = started(context, checkpoint, weights)
        while killed >= 3 and process.is_alive() and not checkpoint.exists():  # three may come before there is one
            time.sleep(0.001)
        time.sleep(choose.uniform(0.0, seconds if killed < 3 else 0.7 * seconds))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            if checkpoint.exists():
                opened += len(read_tensors(checkpoint).record["epochs"]) <= EPOCHS
            resumed = started(context, checkpoint, weights)
            resumed.join()
            assert resumed.exitcode == 0
            assert same(torch.load(weights), expected)
            assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")], "leftovers"
            killed += 1
        process.join()
        checkpoint.unlink(missing_ok=True)
        weights.unlink(missing_ok=True)
    assert opened >= 3


class Stopped(Exception):
    pass


def stopping(after):
    """The usual loss, until it was asked for so many times."""
    left = iter(range(after))

    def loss(out, y):
        if next(left, None) is None:
            raise Stopped
        return functional.cross_entropy(out, y)

    return loss


def small(checkpoint, resume=False, **options):
    torch.manual_seed(4)
    module = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    return run(checkpoint, resume, module, 3, **options)


@pytest.mark.parametrize("writes", range(1, 40))
def test_a_run_stopped_after_any_checkpoint_goes_on_to_the_same_numbers(writes, tmp_path, monkeypatch):
    # 12 batches an epoch and one more checkpoint at its end: in the middle, after the last batch, between two epochs.
    whole, history = small(None)
    monkeypatch.setattr(training, "_SECONDS", 0.0)
    path, write, left = tmp_path / "run.safetensors", training.Checkpoint.write, iter(range(writes - 1))

    def write_then_stop(self, state):
        write(self, state)
        if next(left, None) is None:
            raise Stopped

    monkeypatch.setattr(training.Checkpoint, "write", write_then_stop)
    with pytest.raises(Stopped):
        small(path)
    monkeypatch.setattr(training.Checkpoint, "write", write)
    resumed, again = small(path, resume=True)
    assert same(resumed.state_dict(), whole.state_dict())
    assert again == history


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    path = tmp_path / "run.safetensors"
    whole, history = run(path)
    again, told = run(path, resume=True, loss=stopping(0))
    assert same(again.state_dict(), whole.state_dict())
    assert told == history


def test_a_resumed_early_stop_still_knows_its_best_weights(tmp_path):
    validation = Batches(*next(iter(loader())))
    whole, history = run(None, validation=validation, patience=3, loss=functional.cross_entropy)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Stopped):  # the validation loss is asked for once an epoch
        run(path, validation=validation, patience=3, loss=stopping(12 * 3 + 3 + 2))
    resumed, again = run(path, resume=True, validation=validation, patience=3, loss=functional.cross_entropy)
    assert again == history
    assert same(resumed.state_dict(), whole.state_dict())


def test_an_interruption_leaves_the_last_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"

    def interrupted(out, y):
        if path.exists():
            raise KeyboardInterrupt
        return functional.cross_entropy(out, y)

    module = Noisy().deq
    with pytest.raises(KeyboardInterrupt):
        run(path, module=module, loss=interrupted)
    back = nsd.load(path)  # of a DEQ itself, the network can be opened at once
    assert back.in_features == module.in_features
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_is_not_overwritten_by_accident(tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, epochs=1)
    with pytest.raises(nsd.BadInput, match="resume=True goes on"):
        run(path)


def deq(width=12, name="tanh", **options):
    return nsd.DEQ(nsd.Implicit(name, 0.2), 8, width, 3, **options)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: deq(width=16), "width: 12 in the file, 16 here"),
        (lambda: deq(name="relu"), r"net: Implicit\(tanh.*in the file, Implicit\(relu"),
        (lambda: deq(bias=True), "bias: False in the file, True here"),
        (lambda: deq(tau0=2.0), "tau0: 1.0 in the file, 2.0 here"),
        (lambda: nsd.ENN(nsd.Explicit("tanh"), 8, 12, 3), "kind: DEQ in the file, ENN here"),
        (Noisy, "kind: DEQ in the file, module here"),
    ],
)
def test_a_checkpoint_of_another_architecture_names_the_difference(other, says, tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, module=deq(), epochs=1)
    module = other()
    before = state(module)
    with pytest.raises(nsd.BadInput, match=says):
        run(path, module=module, resume=True)
    assert same(module.state_dict(), before)


def test_a_checkpoint_of_another_module_of_ones_own(tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, module=torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 3)), epochs=1)
    with pytest.raises(nsd.BadInput, match=r"0.weight is \(5, 8\) float32, not \(6, 8\) float32"):
        run(path, module=torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Linear(6, 3)), resume=True)
    with pytest.raises(nsd.BadInput, match="is of Sequential; only a DEQ, an ENN, a ConvDEQ, a ConvENN or an unrolled DEQ"):
        nsd.load(path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": EPOCHS + 1}, "cosine over epochs: 6 there, 7 now"),
        ({"schedule": None}, "schedule: cosine there, NoneType now; cosine over epochs: 6 there, None now"),
    ],
)
def test_another_run_is_not_gone_on_with(options, says, tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, module=deq())
    with pytest.raises(nsd.BadInput, match=says):
        run(path, resume=True, module=deq(), **options)


def test_a_run_of_constant_rate_can_be_made_longer(tmp_path):
    path = tmp_path / "run.safetensors"
    whole, _ = run(None, epochs=4, schedule=None)
    run(path, epochs=2, schedule=None)
    longer, history = run(path, epochs=4, schedule=None, resume=True)
    assert same(longer.state_dict(), whole.state_dict())
    assert len(history.epochs) == 4


def sequential(optimiser):
    parts = [schedulers.ConstantLR(optimiser, 0.5, 10), schedulers.MultiStepLR(optimiser, [10, 25], 0.5)]
    return schedulers.SequentialLR(optimiser, parts, [12])


SCHEDULES = {
    "step": (lambda optimiser: schedulers.StepLR(optimiser, 15, 0.5), 0.1 * 0.5**3),
    "several steps": (lambda optimiser: schedulers.MultiStepLR(optimiser, [20, 35, 40], 0.5), 0.1 * 0.5**3),
    "one after another": (sequential, 0.1 * 0.5**2),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
def test_a_scheduler_of_torchs_is_stepped_and_kept(name, tmp_path):
    def go(checkpoint, loss, resume=False):
        torch.manual_seed(4)
        module = torch.nn.Linear(8, 3)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        schedule = SCHEDULES[name][0](optimiser)
        options = {"schedule": schedule, "checkpoint": checkpoint, "resume": resume, "loss": loss, "progress": False}
        nsd.fit(module, loader(), 4, optimiser=optimiser, **options)
        return state(module), optimiser.param_groups[0]["lr"]

    whole, rate = go(None, functional.cross_entropy)
    assert rate == pytest.approx(SCHEDULES[name][1])
    path = tmp_path / "run.safetensors"
    with pytest.raises(Stopped):
        go(path, stopping(30))
    resumed, again = go(path, functional.cross_entropy, resume=True)
    assert again == rate
    assert same(resumed, whole)


def test_what_a_checkpoint_cannot_hold_is_said_before_it_is_lost(tmp_path):
    module = torch.nn.Linear(8, 3)
    optimiser = torch.optim.Adam(module.parameters(), lr=torch.tensor(1e-3))
    with pytest.raises(nsd.BadInput, match="Adam holds a Tensor"):
        nsd.fit(module, loader(), 1, optimiser=optimiser, schedule=None, checkpoint=tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def plateau(module):
    return schedulers.ReduceLROnPlateau(torch.optim.Adam(module.parameters()))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m: nsd.fit(m, loader(), 0), nsd.BadInput, "epochs"),
        (lambda m: nsd.fit(m.requires_grad_(False), loader(), 1), nsd.BadInput, "no weight to train"),
        (lambda m: nsd.fit(m, loader(), 1, patience=2), nsd.BadInput, "validation loader"),
        (lambda m: nsd.fit(m, loader(), 1, schedule="linear"), nsd.BadInput, "cosine"),
        (lambda m: nsd.fit(m, iter([(torch.zeros(1, 8), torch.zeros(1))]), 1), nsd.BadInput, "how many batches"),
        (lambda m: nsd.fit(m, (b for b in loader()), 2, schedule=None), nsd.BadInput, "no batch in epoch 2"),
        (lambda m: nsd.fit(m, [torch.zeros(1, 8)], 1), nsd.BadInput, "gave Tensor"),
        (lambda m: nsd.fit(m, [(np.zeros((1, 8)), np.zeros(1))], 1), nsd.BadInput, "gave tuple of ndarray, ndarray"),
        (lambda m: nsd.fit(m, [(torch.zeros(0, 8), torch.zeros(0).long())], 1), nsd.BadInput, "at least one sample"),
        (lambda m: nsd.fit(m, loader(), 1, optimiser="adam"), nsd.BadInput, "got 'adam'"),
        (lambda m: nsd.fit(m, loader(), 1, loss="mse"), nsd.BadInput, "got 'mse'"),
        (lambda m: nsd.fit(m, loader(), 1, optimiser=torch.optim.LBFGS(m.parameters())), nsd.BadInput, "LBFGS"),
        (
            lambda m: nsd.fit(m, loader(), 1, optimiser=torch.optim.Adam(torch.nn.Linear(8, 3).parameters())),
            nsd.BadInput,
            "none of this module's weights",
        ),
        (lambda m: nsd.fit(m, loader(), 1, schedule=plateau(m)), nsd.BadInput, "ReduceLROnPlateau"),
        (lambda m: nsd.fit(m, [(torch.zeros(4, 8), torch.zeros(3))], 1), nsd.BadInput, "4 samples and 3 labels"),
        (lambda m: nsd.fit(m, [(torch.zeros(4, 8), torch.zeros(4, 2))], 1), nsd.BadInput, r"\(4, 2\) and the network has 3"),
        (lambda m: nsd.fit(m, [(torch.zeros(2, 8), torch.tensor([0, 5]))], 1), nsd.BadInput, "class 5"),
        (lambda m: nsd.fit(m, loader(), 1, validation=[]), nsd.BadInput, "validation loader gave no batch"),
        (lambda m: nsd.fit(m, loader(), 1, loss=lambda out, _: out.sum() * math.nan), nsd.NotConverged, "loss is nan"),
    ],
)
def test_bad_input(call, error, says):
    with pytest.raises(error, match=says):
        call(torch.nn.Linear(8, 3))


def test_progress_is_shown_on_the_error_stream(capsys):
    run(None, epochs=1)
    assert capsys.readouterr().err == ""
    module = torch.nn.Linear(8, 3)
    nsd.fit(module, loader(), 1)
    assert capsys.readouterr().out == ""


def two_groups(module, order=(0, 1)):
    groups = [{"params": [module.weight], "lr": 0.01}, {"params": [module.bias], "lr": 0.02}]
    return torch.optim.Adam([groups[k] for k in order])


@pytest.mark.parametrize(
    ("optimiser", "schedule", "says"),
    [
        (lambda m: two_groups(m, (1, 0)), lambda _: None, "rates: "),
        (lambda m: torch.optim.Adam([m.weight], lr=0.01), lambda _: None, "weights: "),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.01), lambda _: None, "optimiser: Adam there, SGD now"),
        (two_groups, lambda o: schedulers.StepLR(o, 3), "schedule: NoneType there, StepLR now"),
        (two_groups, lambda _: "cosine", "schedule: NoneType there, cosine now"),
    ],
)
def test_a_run_under_other_settings_is_refused_and_nothing_changed(optimiser, schedule, says, tmp_path):
    path = tmp_path / "run.safetensors"
    module = torch.nn.Linear(8, 3)
    nsd.fit(module, loader(), 1, optimiser=two_groups(module), schedule=None, checkpoint=path, progress=False)
    other = torch.nn.Linear(8, 3)
    with_it = optimiser(other)
    scheduled = schedule(with_it)
    before, its, drawn = state(other), copy.deepcopy(with_it.state_dict()), torch.get_rng_state()
    with pytest.raises(nsd.BadInput, match=says):
        nsd.fit(other, loader(), 2, optimiser=with_it, schedule=scheduled, checkpoint=path, resume=True)
    assert same(other.state_dict(), before)
    assert with_it.state_dict()["state"] == its["state"] == {}
    assert [group["lr"] for group in with_it.param_groups] == [group["lr"] for group in its["param_groups"]]
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    "change",
    [
        lambda record, _: record.update(run=None),
        lambda record, _: record["run"].update(batch="x"),
        lambda record, _: record["run"].update(batch=-5),
        lambda record, _: record["run"].update(best_epoch=99),
        lambda record, _: record["run"].update(loss="a"),
        lambda record, _: record.pop("settings"),
        lambda record, _: record.update(epochs=[1]),
        lambda record, _: record.update(optimiser=3),
        lambda record, _: record["optimiser"].update(groups=[]),
        lambda record, _: record.update(schedule=4),
        lambda _, tensors: tensors.pop("training/random/torch"),
        lambda _, tensors: tensors.pop("training/random/loader.0"),
        lambda _, tensors: tensors.update({"training/optimiser/9/exp_avg": torch.zeros(2)}),
    ],
)
def test_a_checkpoint_that_makes_no_sense_changes_nothing(change, tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, module=torch.nn.Linear(8, 3), epochs=2)
    stored = read_tensors(path)
    change(stored.record, stored.tensors)
    write_tensors(path, stored.tensors, stored.record)
    module = torch.nn.Linear(8, 3)
    before = state(module)
    with pytest.raises(nsd.BadInput):
        run(path, module=module, epochs=2, resume=True)
    assert same(module.state_dict(), before)


def test_a_validation_loader_that_shuffles_is_resumed_too(tmp_path):
    def go(checkpoint, resume=False, loss=functional.cross_entropy):
        data = loader().dataset
        held = torch.utils.data.DataLoader(data, 7, shuffle=True, generator=torch.Generator().manual_seed(5))
        return small(checkpoint, resume, validation=held, loss=loss)

    _, history = go(None)
    path = tmp_path / "run.safetensors"
    with pytest.raises(Stopped):
        go(path, loss=stopping(40))
    assert go(path, resume=True)[1] == history


def test_a_stream_of_unknown_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(loader().dataset)

    module = torch.nn.Linear(8, 3)
    stream = torch.utils.data.DataLoader(Stream(), 16)
    assert len(nsd.fit(module, stream, 2, schedule=None, progress=False).epochs) == 2
    with pytest.raises(nsd.BadInput, match="how many batches"):
        nsd.fit(module, stream, 2)


def test_numbers_of_one_output_may_be_flat():
    x, y = linear()
    module = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
    history = nsd.fit(module, Batches(x, y, 50), 30, optimiser=torch.optim.Adam(module.parameters(), lr=0.1), progress=False)
    assert history.last.loss < 0.05


def test_a_checkpoint_that_cannot_be_written_is_told_before_the_work(tmp_path):
    module = torch.nn.Linear(8, 3)
    before = state(module)
    with pytest.raises(nsd.BadInput, match="Cannot write"):
        nsd.fit(module, loader(), 1, checkpoint=tmp_path / "nowhere" / "a.safetensors")
    assert same(module.state_dict(), before)


def test_another_activation_of_ones_own_module_is_named(tmp_path):
    path = tmp_path / "run.safetensors"
    run(path, module=torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.ReLU()), epochs=1)
    with pytest.raises(nsd.BadInput, match="form: 1: ReLU in the file, 1: Tanh here"):
        run(path, module=torch.nn.Sequential(torch.nn.Linear(8, 3), torch.nn.Tanh()), epochs=1, resume=True)


def test_a_module_that_prints_its_weights_can_be_resumed(tmp_path):
    class Printing(torch.nn.Linear):
        def extra_repr(self):
            return f"{float(self.weight.detach().sum()):.6f} {object()}"

    path = tmp_path / "run.safetensors"
    run(path, module=Printing(8, 3), epochs=1, schedule=None)
    assert len(run(path, module=Printing(8, 3), epochs=2, schedule=None, resume=True)[1].epochs) == 2


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_failed_at_once_does_not_stand_in_the_way(resume, tmp_path):
    path, module = tmp_path / "run.safetensors", torch.nn.Linear(8, 3)
    with pytest.raises(nsd.BadInput, match="class 9"):
        nsd.fit(module, [(torch.zeros(2, 8), torch.tensor([0, 9]))], 2, checkpoint=path)
    assert len(nsd.fit(module, loader(), 3, checkpoint=path, resume=resume, progress=False).epochs) == 3


def test_a_schedule_of_the_momentum_goes_on_with_the_same_objects(tmp_path):
    module = torch.nn.Linear(8, 3)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    schedule = schedulers.OneCycleLR(optimiser, 0.2, total_steps=48)
    options = {"optimiser": optimiser, "schedule": schedule, "checkpoint": tmp_path / "run.safetensors", "resume": True}
    with pytest.raises(Stopped):
        nsd.fit(module, loader(), 4, loss=stopping(30), progress=False, **options)
    history = nsd.fit(module, loader(), 4, loss=functional.cross_entropy, progress=False, **options)
    assert len(history.epochs) == 4
