"""Kernels computed tile by tile for a store: by the devices of this process, or by the workers of a cluster."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.arrays import samples
from notsodeep.errors import BadInput, NumericsWarning
from notsodeep.kernels.exact.solver import PreparedKernel, prepare
from notsodeep.kernels.exact.tiles import fill, tile_size
from notsodeep.kernels.names import Kernel, as_kernels
from notsodeep.kernels.stored.description import FORMAT
from notsodeep.kernels.stored.store import Index, KernelStore, Writer, get_samples
from notsodeep.runtime.dask import finished, keep_freed_memory, on_every_worker, result_of
from notsodeep.theory.architecture import Network

_PROBE = (-2.5, -1.0, -0.3, 0.2, 0.9, 3.1)  # arguments at which functions of one name are compared
_READERS = 4  # threads: enough to keep a disc busy, few enough to hold a chunk for each
_CHECKED_AT_ONCE = 16  # tiles: a task of a cluster should take longer than sending it


Checked = tuple[Index, list[str]]
"""A tile and the faults of its chunks."""


@dataclass(frozen=True)
class TileJob:
    """Kernels of `net` on the samples of a store: small enough to send to every worker."""

    net: Network
    store: KernelStore
    devices: tuple[str, ...] | None
    files: tuple[str | None, str | None] = (None, None)
    """The .npy files of x and x2 that every worker can open; without them the store holds the samples."""
    token: str = ""
    """The name of the run; a process prepares the samples once per run."""

    def samples(self) -> tuple[Tensor, Tensor | None]:
        """x and x2 from the files or the store; raises BadInput where they are not the samples of the description."""
        x = self._read("x", self.files[0])
        return x, None if self.store.about["x2"] is None else self._read("x2", self.files[1], x)

    def _read(self, name: str, path: str | None, like: Tensor | None = None) -> Tensor:
        found = samples(get_samples(self.store, self.token, name) if path is None else np.load(path, mmap_mode="r"), name)
        found = found if like is None else found.to(like)
        if fingerprint(found) != self.store.about[name]:
            raise BadInput(f"{name} in {path or str(self.store.folder)!r} has changed since the run began.")
        return found


class Workbench:
    """The samples, prepared once per device, and the open store; threads may share one."""

    def __init__(self, job: TileJob, x: Tensor, x2: Tensor | None) -> None:
        self.devices = devices(job.devices)
        self._job, self._x, self._x2, self._writer = job, x, x2, Writer(job.store)
        self._prepared: dict[str, PreparedKernel] = {}
        self._lock = threading.Lock()

    def on(self, device: str) -> PreparedKernel:
        with self._lock:
            if device not in self._prepared:
                x, x2 = (None if own is None else own.to(device) for own in (self._x, self._x2))
                assert x is not None
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", NumericsWarning)  # given once already, where the run began
                    about = self._job.store.about
                    self._prepared[device] = prepare(self._job.net, x, x2, about["tau0_used"], tangent=False)
            return self._prepared[device]

    @torch.no_grad()
    def do(self, tile: Index, device: str) -> None:
        """Compute a tile on a device, and write it."""
        prepared, names = self.on(device), as_kernels(self._job.store.about["kernels"])
        rows, columns = self._job.store.slices(tile)

        def part(i: slice, j: slice) -> tuple[Tensor, ...]:
            within = (slice(rows.start + i.start, rows.start + i.stop), slice(columns.start + j.start, columns.start + j.stop))
            return prepared.tile(*within, names)

        values = tuple(prepared.rows.new_empty(rows.stop - rows.start, columns.stop - columns.start) for _ in names)
        # In blocks that suit the device, which may be smaller than a tile on disc.
        fill(values, prepared.symmetric and rows == columns, part, tile_size(None, prepared.rows.device))
        self._writer.write(tile, dict(zip(names, values, strict=True)))


def devices(wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The named devices; by default all that CUDA shows, or the processor. Raises BadInput for a missing one."""
    if wanted is None:
        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count())) or ("cpu",)
    for name in wanted:
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError) as error:
            raise BadInput(f"There is no device {name!r} here: {str(error).splitlines()[0]}") from error
    if not wanted:
        raise BadInput("devices is empty; name some, or None for all that CUDA shows.")
    return wanted


def describe(
    net: Network,
    samples: tuple[Tensor, Tensor | None],
    kernels: tuple[Kernel, ...],
    tile: Index,
    tau0: tuple[float | None, float | None],
) -> dict[str, Any]:
    """The description of a store; `tau0` is the norm that was given and the norm that is used."""
    x, x2 = samples
    return {
        "format": FORMAT,
        "version": installed_version(),
        "network": exact_text(net),
        "kernels": [kernel.value for kernel in kernels],
        "dtype": str(x.dtype).removeprefix("torch."),
        "shape": [len(x), len(x if x2 is None else x2)],
        "tile": list(tile),
        "tau0": tau0[0],
        "x": fingerprint(x),
        "x2": None if x2 is None else fingerprint(x2),
        "tau0_used": tau0[1],
        "torch": torch.__version__,
    }


def fingerprint(x: Tensor) -> str:
    """SHA-256 of the samples, their shape and their dtype."""
    found = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    for part in x.split(4096):
        found.update(part.cpu().contiguous().numpy().data)
    return found.hexdigest()


def exact_text(value: Any) -> str:
    """A network as text with all digits, the same in every process; a function by its name and a few values."""
    if isinstance(value, float | int | str | bool | None):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(exact_text, value))})"
    name = getattr(value, "__qualname__", type(value).__name__)
    if is_dataclass(value) and not isinstance(value, type):
        return f"{name}({', '.join(f'{f.name}={exact_text(getattr(value, f.name))}' for f in fields(value))})"
    if callable(value):
        with torch.no_grad():
            at = value(torch.tensor(_PROBE, dtype=torch.float64))
        return f"{name}[{', '.join(f'{number:.9g}' for number in at.tolist())}]"
    return repr(value)


def npy_file(x: Any) -> str | None:
    """The .npy file from which all of `x` is mapped, if any."""
    if not isinstance(x, np.memmap) or not x.filename or not str(x.filename).endswith(".npy"):
        return None
    whole = np.load(x.filename, mmap_mode="r")
    same = (whole.shape, whole.dtype, whole.strides) == (x.shape, x.dtype, x.strides)
    return str(Path(x.filename).resolve()) if same else None


def installed_version() -> str:
    try:
        return version("notsodeep")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def checked_here(store: KernelStore, tiles: list[Index]) -> Iterator[Checked]:
    """The faults of each marked tile, read by a few threads."""
    if tiles:
        with ThreadPoolExecutor(_READERS) as readers:
            yield from zip(tiles, readers.map(store.faults, tiles), strict=True)


def checked_on_cluster(client: Any, job: TileJob, tiles: list[Index]) -> Iterator[Checked]:
    """The faults of each marked tile, read by the workers."""
    if tiles:
        _check_workers(client, job)
        parts = [tiles[start : start + _CHECKED_AT_ONCE] for start in range(0, len(tiles), _CHECKED_AT_ONCE)]
        with closing(finished(client, _check, parts, job.store)) as done:  # type: ignore[type-var]
            for _, future in done:
                yield from result_of(future)


def _check(store: KernelStore, tiles: list[Index]) -> list[Checked]:
    return [(tile, store.faults(tile)) for tile in tiles]


def here(bench: Workbench, tiles: list[Index]) -> Iterator[Index]:
    """The tiles as they are finished, computed by one thread per device."""
    if len(bench.devices) == 1:
        for tile in tiles:
            bench.do(tile, bench.devices[0])
            yield tile
        return
    todo, stop, done = iter(tiles), threading.Event(), SimpleQueue[Index | BaseException | None]()
    lock = threading.Lock()

    def work(device: str) -> None:
        try:
            while not stop.is_set():
                with lock:
                    tile = next(todo, None)
                if tile is None:
                    break
                bench.do(tile, device)
                done.put(tile)
        except BaseException as error:
            done.put(error)
        done.put(None)

    threads = [threading.Thread(target=work, args=(device,), daemon=True) for device in bench.devices]
    for thread in threads:
        thread.start()
    try:
        working = len(threads)
        while working:
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                working -= 1
            else:
                yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def on_cluster(client: Any, job: TileJob, tiles: list[Index]) -> Iterator[Index]:
    """The tiles as the workers finish them; samples and tiles never pass through this process."""
    _check_workers(client, job)
    try:
        with closing(finished(client, _do, list(enumerate(tiles)), job)) as done:  # type: ignore[type-var]
            for (_, tile), future in done:
                result_of(future)
                yield tile
    finally:
        with suppress(Exception):  # the cluster may be gone, which has been raised already
            on_every_worker(client, _forget)


def _check_workers(client: Any, job: TileJob) -> None:
    """Raise BadInput for workers with another version, or without the files."""
    needed = [str(job.store.folder), *(path for path in job.files if path is not None)]
    found = on_every_worker(client, _fitness, needed)
    if not found:
        raise BadInput("The workers cannot import notsodeep: install it, of the same version, where they run.")
    for worker, (theirs, unseen) in found.items():
        if theirs != job.store.about["version"]:
            raise BadInput(f"The worker {worker} has notsodeep {theirs}, not {job.store.about['version']}; install that.")
        if unseen:
            raise BadInput(
                f"The worker {worker} does not see {unseen[0]!r}. Workers read and write files themselves: name a folder that "
                "all of them share."
            )


def _fitness(paths: list[str]) -> tuple[str, list[str]]:
    return installed_version(), [path for path in paths if not os.path.exists(path)]


# In a worker, the bench of the latest run.
_benches: dict[str, Workbench] = {}
_bench_lock = threading.Lock()


def _do(job: TileJob, numbered: tuple[int, Index]) -> None:
    number, tile = numbered
    with _bench_lock:
        if job.token not in _benches:
            keep_freed_memory()
            _benches.clear()
            _benches[job.token] = Workbench(job, *job.samples())
        bench = _benches[job.token]
    bench.do(tile, bench.devices[number % len(bench.devices)])


def _forget() -> None:
    with _bench_lock:
        _benches.clear()
