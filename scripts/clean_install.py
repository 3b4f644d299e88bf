"""Install a wheel with its base dependencies into a new environment, away from the sources, and run scripts/smoke.py there:
python scripts/clean_install.py WHEEL"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        # Versions as they are tested; none of the sources, wherever this was started from.
        clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
        constraints = ("--constraint", ROOT / "constraints.txt")
        subprocess.run([*pip, "install", "--quiet", *constraints, wheel.resolve()], check=True, cwd=folder, env=clean)
        subprocess.run([*pip, "check"], check=True, cwd=folder, env=clean)
        subprocess.run([*pip, "list"], check=True, cwd=folder, env=clean)
        packages = next((folder / "env" / "lib").glob("python*/site-packages"))
        sizes = sorted(((megabytes(path), path.name) for path in packages.iterdir() if path.is_dir()), reverse=True)
        print("largest: " + ", ".join(f"{name} {size:.0f} MB" for size, name in sizes[:6]))
        print(f"all {sum(size for size, _ in sizes):.0f} MB, notsodeep {megabytes(packages / 'notsodeep'):.1f} MB", flush=True)
        shutil.copy(ROOT / "scripts" / "smoke.py", folder)
        subprocess.run([python, "smoke.py"], check=True, cwd=folder, env=clean)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
