"""Networks that know their preprocessing: answers for raw rows, from files and exports too."""

import copy
import json

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import Preprocessing, Standardiser
from notsodeep.models.files.save import read_tensors, write_tensors

X = torch.randn(60, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 20.0, 3e3]) + 500.0
UNITS = Standardiser(torch.tensor([150.0, -3.0]), 77.0)
KNOWN = {
    "words": Preprocessing(Standardiser.of(X, per_feature=True), ("nö", 'y"es')),
    "numbers of classes": Preprocessing(Standardiser.of(X), (7, 3)),
    "numbers": Preprocessing(Standardiser.of(X, per_feature=True), targets=UNITS),
    "raw rows": Preprocessing(),
    "far from 0": Preprocessing(Standardiser(X.mean(0) + 1e9, Standardiser.of(X).scale), ("no", "yes")),
}


def network(kind="ENN", known=None, **options):
    draw = torch.Generator().manual_seed(0)
    make, net = (nsd.ENN, nsd.Explicit("relu")) if kind == "ENN" else (nsd.DEQ, nsd.Implicit("relu", 0.2))
    module = make(net, 3, 40, 2, generator=draw, **options)
    module.preprocessing = known
    return module


def raw(name):
    return X + 1e9 if name == "far from 0" else X / 1000 if name == "raw rows" else X


def same(found, wanted):
    if np.asarray(wanted).dtype.kind == "f":
        return np.testing.assert_allclose(
            np.asarray(found), np.asarray(wanted), rtol=1e-4, atol=2e-3
        )  # of numbers around 150, and a solver
    return np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def test_predict_is_the_network_between_its_preprocessing():
    module = network(known=KNOWN["words"])
    chosen = module(KNOWN["words"].standardiser(X).float()).argmax(1)
    assert module.predict(X.numpy()).tolist() == [module.classes[k] for k in chosen.tolist()]
    assert isinstance(network(known=KNOWN["numbers"]).predict(X), torch.Tensor)
    assert isinstance(network(known=KNOWN["numbers of classes"]).predict(X.numpy()), np.ndarray)
    assert set(module.predict(X)) == {"nö", 'y"es'}


@pytest.mark.parametrize("kind", ["ENN", "DEQ"])
@pytest.mark.parametrize("name", KNOWN)
def test_files_and_copies_have_it(kind, name, tmp_path):
    module = network(kind, KNOWN[name])
    for again in (nsd.load(nsd.save(module, tmp_path / "a.safetensors")), copy.deepcopy(module)):
        assert again.classes == module.classes
        same(again.predict(raw(name)), module.predict(raw(name)))


@pytest.mark.parametrize("kind", ["ENN", "DEQ"])
@pytest.mark.parametrize("name", KNOWN)
def test_onnx_takes_raw_rows(kind, name, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    module = network(kind, KNOWN[name])
    path = module.to_onnx(tmp_path / "network.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    session = runtime.InferenceSession(str(path))
    wide = session.get_inputs()[0].type == "tensor(double)"
    assert wide == (name == "far from 0")
    rows = raw(name).numpy().astype(np.float64 if wide else np.float32)
    found = dict(zip([each.name for each in session.get_outputs()], session.run(None, {"x": rows}), strict=True))
    same(found["label" if module.classes else "out"], module.predict(raw(name)))
    record = json.loads(session.get_modelmeta().custom_metadata_map["notsodeep.preprocessing"])
    assert Preprocessing.from_record(record).to_record() == module.preprocessing.to_record()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_onnx_in_other_precisions(dtype, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    path = network(known=KNOWN["numbers"]).to(dtype).to_onnx(tmp_path / "network.onnx")
    session = runtime.InferenceSession(str(path))
    rows = X.numpy().astype(np.float32 if dtype == torch.float16 else np.float64)
    (found,) = session.run(None, {"x": rows})
    wanted = network(known=KNOWN["numbers"]).predict(X.numpy())
    np.testing.assert_allclose(found, wanted, atol=0.5 if dtype == torch.float16 else 1e-3)


@pytest.mark.parametrize("name", KNOWN)
def test_source_takes_raw_rows(name):
    space = {"__name__": "elsewhere"}
    exec(network(known=KNOWN[name]).to_source(), space)
    same(space["load"]().predict(raw(name).tolist()), network(known=KNOWN[name]).predict(raw(name)))


def test_a_checkpoint_has_it(tmp_path):
    module, path = network(known=KNOWN["words"]), tmp_path / "run.safetensors"
    x = KNOWN["words"].standardiser(X).float()
    nsd.fit(module, nsd.training.Batches(x, torch.arange(60) % 2), 1, checkpoint=path, progress=False)
    assert nsd.load(path).classes == module.classes


def test_what_does_not_fit():
    module = network()
    with pytest.raises(nsd.BadInput, match="rows of 4 features, and the network takes 3"):
        module.preprocessing = Preprocessing(Standardiser(torch.zeros(4), 1.0))
    with pytest.raises(nsd.BadInput, match="names 3 classes, and the network has 2 outputs"):
        module.preprocessing = Preprocessing(classes=(1, 2, 3))
    with pytest.raises(nsd.BadInput, match="preprocessing of this network is not known"):
        module.predict(X)
    with pytest.raises(nsd.BadInput, match="x has 2 features, and the network takes 3"):
        network(known=KNOWN["words"]).predict(X[:, :2])


def test_files_without_it_and_files_of_another(tmp_path):
    old = nsd.save(network(), tmp_path / "old.safetensors")
    assert "preprocessing" not in read_tensors(old).record
    assert nsd.load(old).preprocessing is None
    stored = read_tensors(old)
    other = Preprocessing(Standardiser(torch.zeros(4), 1.0)).to_record()
    wrong = write_tensors(tmp_path / "wrong.safetensors", stored.tensors, stored.record | {"preprocessing": other})
    with pytest.raises(nsd.BadInput, match=r"wrong.safetensors'.*rows of 4 features, and the network takes 3"):
        nsd.load(wrong)


def test_compile_takes_raw_rows_and_passes_it_on():
    known = Preprocessing(Standardiser.of(X, per_feature=True), ("no", "yes"))
    deq, y = network("DEQ", known, readout_bias=True), (X[:, 0] > 500).long()
    x = known.standardiser(X).float()
    nsd.fit_readout(deq, nsd.training.Batches(x, y))
    raw_rows, scaled = (nsd.compile_deq(deq, rows, y, budget=0.0) for rows in (X, x))
    torch.testing.assert_close(raw_rows.network(x), scaled.network(x), atol=1e-3, rtol=1e-3)
    assert raw_rows.network.classes == ("no", "yes")
    assert raw_rows.certificate.to_dict()["preprocessing"] == known.to_record()
    assert "raw rows of 3 features, standardised → classes no, yes" in raw_rows.summary()
    assert raw_rows.certificate.agreement > 0.8


@pytest.mark.parametrize("kind", ["DEQClassifier", "ExplicitClassifier", "DEQRegressor", "ExplicitRegressor"])
def test_estimators_pass_it_on(kind):
    estimator = getattr(nsd.estimators, kind)(width=32, random_state=0)
    y = np.where(X[:, 0] > 500, "yes", "no") if "Classifier" in kind else 1e3 + X[:, 0].numpy()
    estimator.fit(X.numpy(), y)
    found, wanted = estimator.network_.predict(X.numpy()), estimator.predict(X.numpy())
    same(found, wanted)
