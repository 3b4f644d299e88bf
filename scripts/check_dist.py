"""Look into a wheel and a source archive: is all there, and nothing else?  python scripts/check_dist.py FOLDER"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "notsodeep"
EXTRAS = {"app", "gp", "dask", "onnx", "dev", "parquet", "vision", "saliency", "fast", "docs"}
MOST_MEGABYTES = 3.0  # of either file: figures and records of a full run are ten
WANTED = ("pyproject.toml", "README.md", "LICENSE", "PKG-INFO", "src/notsodeep/__init__.py", "tests/zoo.py")
UNWANTED = ("docs/results/", "local/", "demo/", "build/", "dist/", "results/", "site/", ".venv/", ".git/", ".ci/")


def version() -> str:
    """`__version__`, read and not imported: the package need not be installed."""
    found = re.search(r'^__version__ = "(.+)"$', (SOURCE / "__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def package_files() -> set[str]:
    """What an installed package must hold: code, types, templates."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE.parent).as_posix() for path in files}


def wheel_problems(path: Path) -> Iterator[str]:
    info = f"notsodeep-{version()}.dist-info"
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        if f"{info}/METADATA" not in names:
            yield f"no {info}/METADATA: is its version {version()}?"
            return
        metadata = message_from_string(wheel.read(f"{info}/METADATA").decode())
        scripts = wheel.read(f"{info}/entry_points.txt").decode() if f"{info}/entry_points.txt" in names else ""
    yield from (f"{name} is missing" for name in sorted(package_files() - names))
    others = {name for name in names if not name.startswith(f"{info}/")}
    yield from (f"{name} does not belong there" for name in sorted(others - package_files()))
    if f"{info}/licenses/LICENSE" not in names:
        yield "the licence is missing"
    if "notsodeep = notsodeep.cli:main" not in scripts:
        yield "the command `notsodeep` is missing"
    yield from metadata_problems(metadata)


def metadata_problems(metadata: Message) -> Iterator[str]:
    wanted = {
        "Name": "notsodeep",
        "Version": version(),
        "License-Expression": "MIT",
        "Requires-Python": ">=3.11",
        "Description-Content-Type": "text/markdown",
    }
    for key, value in wanted.items():
        if metadata[key] != value:
            yield f"{key} is {metadata[key]!r}, not {value!r}"
    if (ROOT / "README.md").read_text().strip() not in str(metadata.get_payload()):
        yield "the description is not README.md"
    for extra in sorted(EXTRAS ^ set(metadata.get_all("Provides-Extra") or ())):
        yield f"the extra {extra} is {'missing' if extra in EXTRAS else 'not expected'}"


def archive_problems(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    wanted = {*WANTED, *(f"src/{name}" for name in package_files())}
    yield from (f"{name} is missing" for name in sorted(wanted - names))
    yield from (f"{name} does not belong there" for name in sorted(names) if name.startswith(UNWANTED))


def problems(folder: Path) -> Iterator[str]:
    """What is wrong with the wheel and the archives of a folder, a line each."""
    found = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz")))
    if not any(path.suffix == ".whl" for path in found):
        yield f"there is no wheel in {folder}"
    for path in found:
        if path.stat().st_size > MOST_MEGABYTES * 1e6:
            yield f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, over {MOST_MEGABYTES:g}"
        look = wheel_problems if path.suffix == ".whl" else archive_problems
        yield from (f"{path.name}: {problem}" for problem in look(path))


if __name__ == "__main__":
    dist = Path(sys.argv[1])
    wrong = list(problems(dist))
    print("\n".join(wrong) or ", ".join(f"{path.name} {path.stat().st_size / 1e6:.2f} MB" for path in sorted(dist.iterdir())))
    sys.exit(bool(wrong))
