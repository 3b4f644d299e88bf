"""What the header of a .npy file promises, compared with what the file holds, before memory is taken for it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

from numpy.lib import format as npy

from notsodeep.errors import BadInput


def refuse_lying_header(content: Path | BinaryIO, name: str) -> None:
    """`BadInput` where the header asks for more numbers than follow it. What is no header of NumPy's is left to its reader.

    Args:
        content: The file, or its bytes in memory, which are read from the beginning and left there.
        name: What messages call it.

    Raises:
        BadInput: With the shape, the bytes that it takes, and those that there are.
    """
    with content.open("rb") if isinstance(content, Path) else nullcontext(content) as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(0)
        try:
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
            shape, _, dtype = read(file)
        except Exception:  # NumPy's own reader says what is wrong with it
            return
        finally:
            start = file.tell()
            file.seek(0)
    needed, there = math.prod(shape) * dtype.itemsize, size - start
    if any(side < 0 for side in shape) or (needed > there and not dtype.hasobject):
        raise BadInput(
            f"{name!r} promises an array of shape {str(tuple(shape))[:100]} of {dtype}, {needed} bytes, and holds {there}: it "
            "was cut short, or its header is wrong. Write the file anew, with numpy.save.",
            needed=needed,
            found=there,
        )
