"""Who computes and checks the tiles: this process with its devices, or the workers of a Dask cluster, to the same bits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any

from notsodeep.errors import BadInput
from notsodeep.kernels.job import Job, Workbench, installed_version
from notsodeep.kernels.seals import Index
from notsodeep.kernels.store import KernelStore
from notsodeep.runtime.dask import finished, keep_freed_memory, on_every_worker, result_of

_READERS = 4  # threads: enough to keep a disc busy, few enough to hold a chunk for each
_CHECKED_AT_ONCE = 16  # tiles: a task of a cluster should take longer than sending it

Checked = tuple[Index, list[str]]
"""A tile, and what is wrong with its chunks."""


def checked_here(store: KernelStore, tiles: list[Index]) -> Iterator[Checked]:
    """Each tile that has a mark, with what is wrong with it."""
    if tiles:
        with ThreadPoolExecutor(_READERS) as readers:
            yield from zip(tiles, readers.map(store.faults, tiles), strict=True)


def checked_on_cluster(client: Any, job: Job, tiles: list[Index]) -> Iterator[Checked]:
    """The same by the workers, which read the chunks themselves."""
    if tiles:
        _refuse_unfit_workers(client, job)
        parts = [tiles[start : start + _CHECKED_AT_ONCE] for start in range(0, len(tiles), _CHECKED_AT_ONCE)]
        with closing(finished(client, _check, parts, job.store)) as done:  # type: ignore[type-var]
            for _, future in done:
                yield from result_of(future)


def _check(store: KernelStore, tiles: list[Index]) -> list[Checked]:
    return [(tile, store.faults(tile)) for tile in tiles]


def here(bench: Workbench, tiles: list[Index]) -> Iterator[Index]:
    """The tiles as they are finished, by one thread for each device."""
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


def on_cluster(client: Any, job: Job, tiles: list[Index]) -> Iterator[Index]:
    """The tiles as the workers finish them. They read the samples and write the tiles themselves: neither comes by here."""
    _refuse_unfit_workers(client, job)
    try:
        with closing(finished(client, _do, list(enumerate(tiles)), job)) as done:  # type: ignore[type-var]
            for (_, tile), future in done:
                result_of(future)
                yield tile
    finally:
        with suppress(Exception):  # the cluster may be gone, and that is told already
            on_every_worker(client, _forget)


def _refuse_unfit_workers(client: Any, job: Job) -> None:
    """Workers of another version, or of another file system."""
    needed = [str(job.store.folder), *(path for path in job.files if path is not None)]
    found = on_every_worker(client, _fitness, needed)
    if not found:
        raise BadInput("The workers cannot import notsodeep: install it, of the same version, where they run.")
    for worker, (version, unseen) in found.items():
        if version != job.store.about["version"]:
            raise BadInput(
                f"The worker {worker} has notsodeep {version}, not {job.store.about['version']}; install that."
            )
        if unseen:
            raise BadInput(
                f"The worker {worker} does not see {unseen[0]!r}. Workers read and write files themselves: name a folder that "
                "all of them share."
            )


def _fitness(paths: list[str]) -> tuple[str, list[str]]:
    return installed_version(), [path for path in paths if not os.path.exists(path)]


# The bench of the latest run, in a worker.
_benches: dict[str, Workbench] = {}
_bench_lock = threading.Lock()


def _do(job: Job, numbered: tuple[int, Index]) -> None:
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
