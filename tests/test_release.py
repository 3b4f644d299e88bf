"""What is released: the wheel holds the package and nothing else, and works from where it is unpacked."""

import os
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import notsodeep

ROOT = Path(__file__).parents[1]
SMALLEST = """
import torch, notsodeep as nsd, notsodeep.cli
from importlib.resources import files
assert "<html" in files("notsodeep.papers.report").joinpath("template.html.j2").read_text()
net = nsd.Implicit("relu", var_a=0.2)
assert nsd.design(net).residual < 1e-8
assert nsd.DEQ(net, in_features=4, width=16, out_features=2)(torch.ones(3, 4)).shape == (3, 2)
print(nsd.__file__, nsd.__version__)
"""


@pytest.fixture(scope="module")
def check():
    return runpy.run_path(str(ROOT / "scripts" / "check_dist.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    (path,) = folder.iterdir()
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel, check):
    assert list(check["problems"](wheel.parent)) == []
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name == f"notsodeep-{notsodeep.__version__}-py3-none-any.whl"
    assert {"notsodeep/py.typed", "notsodeep/papers/report/template.html.j2", "notsodeep/cli/__main__.py"} <= names
    assert not [name for name in names if "tests/" in name or name.endswith(".pyc")]


def test_it_works_from_where_it_is_unpacked(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", SMALLEST], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(tmp_path / "notsodeep" / "__init__.py"), notsodeep.__version__]


def test_a_wheel_with_too_much_or_too_little_is_told(wheel, check, tmp_path):
    with zipfile.ZipFile(wheel) as good, zipfile.ZipFile(tmp_path / wheel.name, "w") as bad:
        for name in good.namelist():
            if not name.endswith(("py.typed", "entry_points.txt", "LICENSE")):
                bad.writestr(name, good.read(name).replace(b"Name: notsodeep\n", b"Name: other\n"))
        bad.writestr("tests/zoo.py", "")
    told = "\n".join(check["problems"](tmp_path))
    for expected in ("py.typed is missing", "tests/zoo.py does not belong", "licence", "command", "Name is 'other'"):
        assert expected in told


def test_an_empty_folder_is_told(check, tmp_path):
    assert list(check["problems"](tmp_path)) == [f"there is no wheel in {tmp_path}"]


def test_what_is_left_out_of_the_source_archive_is_told(check, tmp_path):
    (tmp_path / "records").write_text("1")
    with tarfile.open(tmp_path / "notsodeep.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "records", "notsodeep/docs/results/records")
    told = list(check["archive_problems"](tmp_path / "notsodeep.tar.gz"))
    assert "docs/results/records does not belong there" in told
    assert "src/notsodeep/__init__.py is missing" in told
