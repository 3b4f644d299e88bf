"""Exact kernels on disc: written tile by tile, here or on a cluster, and resumed after a stop."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import device, flag, function, norm, path
from notsodeep.arrays import Array, check_memory, samples
from notsodeep.errors import BadInput, warn
from notsodeep.kernels.exact.solver import prepare
from notsodeep.kernels.exact.tiles import TileSize, check_square, tile_size
from notsodeep.kernels.names import Kernel, as_kernels
from notsodeep.kernels.stored.library import zarr
from notsodeep.kernels.stored.store import Index, drop_samples, open_store, put_samples
from notsodeep.kernels.stored.workers import (
    Checked,
    TileJob,
    Workbench,
    checked_here,
    checked_on_cluster,
    describe,
    devices,
    here,
    npy_file,
    on_cluster,
)
from notsodeep.runtime.dask import connected
from notsodeep.theory.architecture import Implicit, Network
from notsodeep.theory.statistics import root_mean_square, squared_norms

_BLOCKS = 3  # per side of a tile on disc, each as large as suits the processor's cache: files of some ten megabytes
_SHOWN = 5  # damaged chunks in one warning


@dataclass(frozen=True)
class WrittenKernels:
    """The kernels in a Zarr group; `written["conjugate"]` is the array of one."""

    folder: Path
    """The folder of the group."""
    found: int
    """How many tiles were there already."""
    computed: int
    """How many were computed now."""
    damaged: tuple[str, ...] = ()
    """The faults of chunks that were there and had to be computed again."""

    def __getitem__(self, kernel: Kernel | str) -> Any:
        """The Zarr array of a kernel, which reads the chunks that it needs and raises BadInput for a damaged one.

        Args:
            kernel: "conjugate", "tangent" or "preactivation".
        """
        zarr()
        from notsodeep.kernels.stored.checked import open_checked

        return open_checked(self.folder, kernel)


@torch.no_grad()
def write_kernels(
    net: Network,
    x: Array,
    folder: str | Path,
    x2: Array | None = None,
    *,
    kernel: Kernel | str | Sequence[Kernel | str] = Kernel.CONJUGATE,
    tile: TileSize = None,
    tau0: float | None = None,
    scheduler: Any = None,
    devices: str | torch.device | Sequence[str | torch.device] | None = None,
    resume: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> WrittenKernels:
    """Write exact kernels into a Zarr group, one array each, tile by tile and never whole in memory.

    A run that was stopped, however it was, continues with the missing tiles. Tiles that are there are compared with their
    checksums; damaged ones are named in a warning and computed again. For tiles of one size the bits are the same whoever
    computes them.

    Args:
        net: An `Implicit` or an `Explicit` network.
        x: Samples (n, p).
        folder: Where the group is; with a `scheduler`, a folder that all workers share.
        x2: Other samples (n2, p); x itself by default.
        kernel: One or several of "conjugate", "tangent" and "preactivation".
        tile: The side of a tile on disc, or its (rows, columns).
        tau0: The norm at which a DEQ with `centre=True` is centred; √(mean ‖x_i‖²) of x by default.
        scheduler: A `distributed.Client`, or its address tcp://host:port: its workers read the samples once each and write the
            tiles themselves.
        devices: Of this process, or of each worker; all that CUDA shows by default, else the processor.
        resume: Whether to continue with a group in `folder`; otherwise it is emptied.
        progress: Called with (tiles there, tiles in all).

    Returns:
        The folder, and how many tiles were found and computed.

    Raises:
        BadInput: Arguments that cannot be used, a folder with other kernels, or zarr missing.
        NotContractive: The DEQ has no equilibrium on these samples, or no tangent kernel.
    """
    zarr()  # raises before the work where it is missing
    target, resume = Path(os.path.realpath(path(folder, "folder"))), flag(resume, "resume")
    if progress is not None:
        function(progress, "progress", "a function of (tiles there, tiles in all)", 2)
    names = as_kernels(kernel)
    rows, columns = samples(x), None if x2 is None else samples(x2, "x2")
    columns = None if columns is None else columns.to(rows)
    places = _places(devices, scheduler is None)
    shape = len(rows), len(rows if columns is None else columns)
    sides = _sides(tile, places, scheduler, columns is None, shape)
    if scheduler is None:
        _check_tile(sides, len(names), rows.dtype, places)
    used = _tau0(net, rows, tau0)
    prepare(net, rows, columns, used, tangent=names != (Kernel.CONJUGATE,))  # raises before a file is made
    with _client(scheduler) as client:
        store = open_store(target, describe(net, (rows, columns), names, sides, (tau0, used)), resume)
        job = TileJob(net, store, places, (npy_file(x), npy_file(x2)), uuid.uuid4().hex)
        return _run(job, client, rows, columns, progress or (lambda _done, _total: None))


def _run(job: TileJob, client: Any, rows: Tensor, columns: Tensor | None, say: Callable[[int, int], None]) -> WrittenKernels:
    """Check the tiles that are there, and compute the others."""
    store, tiles, marked = job.store, job.store.tiles(), job.store.marked()
    found = checked_here(store, marked) if client is None else checked_on_cluster(client, job, marked)
    sound, damaged = _sound(found, len(tiles), say)
    _warn_damaged(damaged, store.folder)
    todo = [tile for tile in tiles if tile not in sound]
    if todo:
        local = client is None
        done = here(Workbench(job, rows, columns), todo) if local else _there(client, job, rows, columns, todo)
        _follow(done, len(sound), len(tiles), say)
    store.tidy()
    return WrittenKernels(store.folder, len(sound), len(todo), damaged)


def _sound(checked: Iterator[Checked], total: int, say: Callable[[int, int], None]) -> tuple[set[Index], tuple[str, ...]]:
    """The tiles without a fault, and the faults of the others."""
    sound: set[Index] = set()
    damaged: list[str] = []
    with closing(checked) as tiles:  # type: ignore[type-var]
        for tile, faults in tiles:
            damaged += faults
            if not faults:
                sound.add(tile)
                say(len(sound), total)
    return sound, tuple(damaged)


def _warn_damaged(damaged: tuple[str, ...], folder: Path) -> None:
    if damaged:
        more = f"; and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
        warn(
            f"Chunks in {str(folder)!r} were damaged since they were written: {'; '.join(damaged[:_SHOWN])}{more}. Their tiles "
            "are computed again."
        )


def _follow(done: Iterator[Index], found: int, total: int, say: Callable[[int, int], None]) -> None:
    if not found:
        say(found, total)
    with closing(done) as tiles:  # type: ignore[type-var]
        for count, _ in enumerate(tiles, start=found + 1):
            say(count, total)


def _there(client: Any, job: TileJob, rows: Tensor, columns: Tensor | None, todo: list[Index]) -> Iterator[Index]:
    """`on_cluster`, with the samples in the store meanwhile, unless they are in files of their own."""
    both = {"x": (rows, job.files[0]), "x2": (columns, job.files[1])}
    own = {name: values for name, (values, path) in both.items() if values is not None and path is None}
    try:
        put_samples(job.store, job.token, **own)
        yield from on_cluster(client, job, todo)
    finally:
        drop_samples(job.store, job.token)


@contextmanager
def _client(scheduler: Any) -> Iterator[Any]:
    if scheduler is None:
        yield None
    else:
        with connected(scheduler) as client:
            yield client


def _places(given: Any, here: bool) -> tuple[str, ...] | None:
    """The devices by name; raises BadInput for one of this process that is missing."""
    if given is None:
        return None
    listed = given if isinstance(given, list | tuple) else (given,)
    if not listed:
        raise BadInput("devices is empty; name one, 'cpu' or 'cuda:0', or leave it out.")
    if not all(isinstance(each, str | torch.device) for each in listed):
        raise BadInput(f"devices must be names such as 'cpu' or 'cuda:0', got {given!r}.")
    return tuple(str(device(each, "devices") if here else each) for each in listed)


def _sides(tile: TileSize, places: tuple[str, ...] | None, scheduler: Any, symmetric: bool, shape: Index) -> Index:
    """(rows, columns) of a tile on disc, at most those of the kernel; unless given, by the devices of this process, or the
    processors of a cluster."""
    first = devices(places)[0] if scheduler is None else (places or ("cpu",))[0]
    sides = tile_size(tile, torch.device(first))
    if tile is None and torch.device(first).type == "cpu":
        sides = (_BLOCKS * sides[0], _BLOCKS * sides[1])
    if symmetric:
        check_square(sides, "; give one side, or x2 = x for any rectangle")
    return min(sides[0], shape[0]), min(sides[1], shape[1])


def _check_tile(sides: Index, kernels: int, dtype: torch.dtype, places: tuple[str, ...] | None) -> None:
    what = f"A tile of {sides[0]} × {sides[1]} for each kernel, with a copy to write,"
    device = torch.device(devices(places)[0])
    check_memory((2 * kernels * sides[0], sides[1]), dtype, device, "a smaller tile", what)


def _tau0(net: Network, rows: Tensor, given: float | None) -> float | None:
    """τ0 at which a DEQ is centred, computed once for all workers."""
    if given is not None:
        return norm(given)
    centred = isinstance(net, Implicit) and net.centre
    return root_mean_square(squared_norms(rows)) if centred else None
