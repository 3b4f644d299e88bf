"""`notsodeep data`."""

import gzip
import shutil
import sys
from pathlib import Path

import pytest

from tests.data.conftest import real


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No data anywhere, and no way to get any."""
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NOTSODEEP_OFFLINE", "1")
    return tmp_path


def test_the_list_says_what_is_there(notsodeep, bare):
    (bare / "data" / "mnist").mkdir(parents=True)
    (bare / "data" / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"x"))
    ran = notsodeep("data", "list")
    assert ran.returncode == 0
    lines = {line.split()[0]: line for line in ran.stdout.splitlines() if line.strip()}
    assert "1 of 4" in lines["mnist"]
    assert "0 of 6" in lines["cifar10"]
    assert str(bare / "cache") in ran.stdout


def test_what_is_missing_is_named(notsodeep, bare):
    ran = notsodeep("data", "fetch", "fashion-mnist")
    assert ran.returncode == 2
    assert "t10k-labels-idx1-ubyte.gz (MD5 bb300cfdad3c16e7a12a480ee83cd310)" in ran.stderr
    assert str(bare / "data") in ran.stderr
    assert ran.stdout == ""


def test_a_damaged_file_is_named(notsodeep, bare):
    source = real("mnist/t10k-labels-idx1-ubyte.gz")
    for name in Path(source).parent.iterdir():
        (bare / "data" / "mnist").mkdir(parents=True, exist_ok=True)
        shutil.copy(name, bare / "data" / "mnist" / name.name)
    whole = notsodeep("data", "fetch", "mnist")
    assert whole.returncode == 0
    assert whole.stdout.count("whole") == 4
    broken = bare / "data" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(broken.read_bytes())
    content[1000] ^= 1
    broken.chmod(0o644)
    broken.write_bytes(content)
    ran = notsodeep("data", "fetch", "mnist")
    assert ran.returncode == 2
    assert "t10k-labels-idx1-ubyte.gz" in ran.stderr
    assert "damaged" in ran.stderr


def test_features_need_torchvision_and_cifar(notsodeep, bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    ran = notsodeep("data", "features", "cifar10")
    assert ran.returncode == 2
    assert "data_batch_1" in ran.stderr
    assert notsodeep("data", "features", "mnist").returncode == 2
    assert not (bare / "cache").exists()


def test_an_unknown_set(notsodeep):
    ran = notsodeep("data", "fetch", "imagenet")
    assert ran.returncode == 2
    assert "cifar10-vgg19" in ran.stderr
