"""IDX files: read when whole, refused otherwise."""

import gzip
import struct

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.data.readers import read_idx

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def idx(shape, values, kind=8):
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def written(tmp_path, content, cut=None):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(content)[:cut])
    return path


def test_arrays_come_back(tmp_path):
    assert np.array_equal(read_idx(written(tmp_path, idx((2, 3, 4), IMAGES.tobytes()))), IMAGES)
    assert read_idx(written(tmp_path, idx((3,), b"\x05\x00\x04"))).tolist() == [5, 0, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with the bytes"),
        (b"PNG is another format", "50 4e 47"),
        (idx((3,), b"abc", kind=13), "00 00 0d 01"),
        (bytes([0, 0, 8, 9]), "00 00 08 09"),
        (bytes([0, 0, 8, 3]) + b"\0\0", "inside its header"),
        (idx((4,), b"abc"), "declares 4 bytes.*only 3"),
        (idx((2,), b"abc"), "declares 2 bytes.*more"),
        (idx((60_000, 60_000), b""), "3600000000 bytes, above"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    with pytest.raises(nsd.BadInput, match=message):
        read_idx(written(tmp_path, content))


def test_truncated_and_damaged(tmp_path):
    content = idx((2, 3, 4), IMAGES.tobytes())
    for cut in (3, 15, -9, -1):
        with pytest.raises(nsd.BadInput, match="cut off or damaged"):
            read_idx(written(tmp_path, content, cut))
    path = written(tmp_path, content)
    damaged = bytearray(path.read_bytes())
    damaged[-6] ^= 1  # gzip's own sum
    path.write_bytes(damaged)
    with pytest.raises(nsd.BadInput, match="cut off or damaged"):
        read_idx(path)


def test_a_bomb_is_not_unpacked(tmp_path):
    """256 MiB of zeros behind a header of 4 bytes: only what is declared is read."""
    import tracemalloc

    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(idx((4,), b""))
        for _ in range(256):
            stream.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(nsd.BadInput, match="holds more"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24
