"""Pipes and the like where a store has nothing, or is to be emptied: nobody waits for them."""

import time

import numpy as np
import pytest

from tests.kernels.stored.test_damaged import NOT_THE_KIND, _pipe, _write

pytest.importorskip("zarr")


@pytest.mark.parametrize("place", [".zgroup", ".zattrs", ".zmetadata", "samples_" + 32 * "a"])
def test_pipes_that_are_none_of_the_store_keep_nobody_waiting(tmp_path, place):
    """Zarr looks for files of its older format unless it is told that there are none."""
    found = _write(tmp_path / "k")
    whole = found["conjugate"][:]
    (tmp_path / "k" / place).touch()
    _pipe(tmp_path / "k" / place)
    begun = time.monotonic()
    np.testing.assert_array_equal(found["conjugate"][:], whole)
    assert _write(tmp_path / "k").computed == 0
    assert _write(tmp_path / "k", resume=False).computed == 3
    assert time.monotonic() - begun < 5.0
    assert (tmp_path / "k" / place).is_fifo()


@pytest.mark.parametrize("what", ["a pipe", "a loop of links", "a file"])
@pytest.mark.parametrize("place", ["conjugate", "tangent", "finished"])
def test_whatever_is_in_the_place_of_an_array_is_replaced(tmp_path, what, place):
    whole = _write(tmp_path / "k")["conjugate"][:]
    NOT_THE_KIND[what][0](tmp_path / "k" / place)
    begun = time.monotonic()
    again = _write(tmp_path / "k", resume=False)
    assert time.monotonic() - begun < 5.0
    assert again.computed == 3
    np.testing.assert_array_equal(again["conjugate"][:], whole)
