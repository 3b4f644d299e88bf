"""Exact kernels on disc: written tile by tile, here or on a cluster, and gone on with when a run was stopped."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from notsodeep.arguments import device, flag, function, norm, path
from notsodeep.arrays import Array, refuse_if_too_large, samples
from notsodeep.errors import BadInput, warn
from notsodeep.kernels.exact.solver import prepare
from notsodeep.kernels.exact.tiles import TileSize, check_square, tile_size
from notsodeep.kernels.names import Kernel, as_kernels
from notsodeep.kernels.stored.seals import Index
from notsodeep.kernels.stored.store import drop_samples, open_store, put_samples, zarr
from notsodeep.kernels.stored.workers import (
    Checked,
    Job,
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

_BLOCKS = 3  # a tile on disc has as many blocks of the processor's cache a side: files of some ten megabytes
_SHOWN = 5  # damaged chunks in one warning


@dataclass(frozen=True)
class WrittenKernels:
    """A Zarr group in `folder`: how many tiles were there already, and how many were computed now; `damaged` says what was
    wrong with chunks of tiles that were there and had to be computed again."""

    folder: Path
    found: int
    computed: int
    damaged: tuple[str, ...] = ()

    def __getitem__(self, kernel: str) -> Any:
        """The Zarr array of a kernel: written["conjugate"][:100, :100] reads the chunks that it needs, and checks each: one
        that is not what was written is `BadInput`, with its name."""
        zarr()
        from notsodeep.kernels.stored.checked import open_checked

        group = open_checked(self.folder)
        if kernel not in group:
            there = ", ".join(name for name in Kernel if name in group)
            raise BadInput(f"{str(self.folder)!r} holds no kernel {str(kernel)!r}; it holds {there or 'none'}.")
        return group[kernel]


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
    """Write the exact kernels of x (against x2) into a Zarr group, an array for each, without ever holding one.

    A run that was stopped, however it was, goes on with the tiles that are missing. Those that are there are read and compared
    with their checksums: damaged ones are named in a warning and computed again. A folder with other kernels is refused, or
    emptied with ``resume=False``. The tiles are computed on `devices` of this process (None: all that CUDA shows, else the
    processor), or on the workers of `scheduler`: a `distributed.Client`, or its address tcp://host:port. Workers read the
    samples once each and write the tiles themselves, so that `folder` must be one that they share; `devices` are then theirs.
    For tiles of one size the bits are the same whoever computes them. `progress` is called with (tiles there, tiles in all).
    """
    zarr()  # told before the work if it is not there
    target, resume = path(folder, "folder").resolve(), flag(resume, "resume")
    if progress is not None:
        function(progress, "progress", "a function of (tiles there, tiles in all)", 2)
    names = as_kernels(kernel)
    rows, columns = samples(x), None if x2 is None else samples(x2, "x2")
    columns = None if columns is None else columns.to(rows)
    places = _places(devices, scheduler is None)
    shape = len(rows), len(rows if columns is None else columns)
    sides = _sides(tile, places, scheduler, columns is None, shape)
    if scheduler is None:
        _refuse_large_tile(sides, len(names), rows.dtype, places)
    used = _tau0(net, rows, tau0)
    prepare(
        net, rows, columns, used, tangent=names != (Kernel.CONJUGATE,)
    )  # whatever is wrong is told before a file is made
    with _client(scheduler) as client:
        about = describe(net, rows, columns, names, sides, (tau0, used))
        store = open_store(target, about, resume)
        tiles, marked = store.tiles(), store.marked()
        job = Job(net, store, places, (npy_file(x), npy_file(x2)), uuid.uuid4().hex)
        say = progress or (lambda _done, _total: None)
        found = checked_here(store, marked) if client is None else checked_on_cluster(client, job, marked)
        sound, damaged = _sound(found, len(tiles), say)
        _tell(damaged, store.folder)
        todo = [tile for tile in tiles if tile not in sound]
        if todo:
            done = (
                here(Workbench(job, rows, columns), todo)
                if client is None
                else _there(client, job, rows, columns, todo)
            )
            _follow(done, len(sound), len(tiles), say)
        store.tidy()
    return WrittenKernels(store.folder, len(sound), len(todo), damaged)


def _sound(
    checked: Iterator[Checked], total: int, say: Callable[[int, int], None]
) -> tuple[set[Index], tuple[str, ...]]:
    """The tiles whose chunks are all as they were written, and what is wrong with the others."""
    sound: set[Index] = set()
    damaged: list[str] = []
    with closing(checked) as tiles:  # type: ignore[type-var]
        for tile, faults in tiles:
            damaged += faults
            if not faults:
                sound.add(tile)
                say(len(sound), total)
    return sound, tuple(damaged)


def _tell(damaged: tuple[str, ...], folder: Path) -> None:
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


def _there(client: Any, job: Job, rows: Tensor, columns: Tensor | None, todo: list[Index]) -> Iterator[Index]:
    """On the workers, with the samples in the store as long as it takes, unless they are in files of their own."""
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
    """The devices by name; those of this process must be there."""
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


def _refuse_large_tile(sides: Index, kernels: int, dtype: torch.dtype, places: tuple[str, ...] | None) -> None:
    what = f"A tile of {sides[0]} × {sides[1]} for each kernel, with a copy to write,"
    device = torch.device(devices(places)[0])
    refuse_if_too_large(2 * kernels * sides[0], sides[1], dtype, device, "a smaller tile", what)


def _tau0(net: Network, rows: Tensor, given: float | None) -> float | None:
    """τ0 that a DEQ is centred at: computed once, for all who compute tiles."""
    if given is not None:
        return norm(given)
    centred = isinstance(net, Implicit) and net.centre
    return root_mean_square(squared_norms(rows)) if centred else None
