"""The program at its terminal: Ctrl-C while modules are imported, and consoles that lack some characters."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType

_NAME = "notsodeep-ascii"  # of our error handler of `codecs`, and of ASCII as an encoding that uses it
_SPELLED = {
    "×": "x", "±": "+-", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "≈": "~", "≤": "<=", "≥": ">=", "≠": "!=",
    "→": "->", "√": "sqrt", "∞": "inf", "Σ": "sum", "∂": "d", "ℓ": "l", "‖": "||", "′": "'", "’": "'", "“": '"', "”": '"',
    "•": "*", "━": "-", "─": "-",
}  # fmt: skip
_ASCII = codecs.lookup("ascii")
_RENAMED = codecs.CodecInfo(
    _ASCII.encode, _ASCII.decode, _ASCII.streamreader, _ASCII.streamwriter, _ASCII.incrementalencoder,
    _ASCII.incrementaldecoder, _NAME,
)  # fmt: skip


def started() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Make Ctrl-C print "stopped" and end the program, in the program's own process alone."""
    _stop_at_once()
    yield
    started()


def _stop_at_once() -> None:
    ordinary = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if _is_the_program() and ordinary and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _stop)


def _is_the_program() -> bool:
    """Whether this process is `notsodeep` or `python -m notsodeep.cli`, not one that imports them."""
    by_name = bool(sys.argv) and Path(sys.argv[0]).stem == "notsodeep"
    as_module = sys.argv[:1] == ["-m"] and "notsodeep.cli" in sys.orig_argv
    as_main = Path(sys.argv[0]).parts[-2:] == ("cli", "__main__.py") if sys.argv else False
    return (by_name or as_module or as_main) and parent_process() is None  # a child has its name too


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # Not by an exception: raised inside an import, it may come out as another one.
    os.write(2, b"stopped\n")
    os._exit(130)


def spell_what_cannot_be_printed() -> None:
    """Make standard output and standard error take every character, whatever their encoding."""
    codecs.register_error(_NAME, _spell)
    codecs.register(lambda name: _RENAMED if name in (_NAME, _NAME.replace("-", "_")) else None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            # Click writes UTF-8 to a stream whose encoding is named ASCII.
            named_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_NAME if named_ascii else None, errors=_NAME)


def printable(text: str) -> bool:
    """Whether standard output can encode the text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def in_ascii(character: str) -> str:
    """A character in ASCII: a mathematical sign as one types it, a Greek letter by name, no accent, anything else as ?."""
    if character.isascii():
        return character
    if character in _SPELLED:
        return _SPELLED[character]
    name = unicodedata.name(character, "")
    if name.startswith("GREEK ") and " LETTER " in name:
        word = name.split(" LETTER ")[1].split()[0].replace("LAMDA", "LAMBDA")
        return word.capitalize() if "CAPITAL" in name else word.lower()
    if name.startswith("SUPERSCRIPT "):
        return "^" + unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    if name.startswith("BRAILLE "):  # a spinner
        return "*"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or "?"


def _spell(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler of `codecs`. Undecodable bytes of a file name come out as they went in."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    if "\udc80" <= first <= "\udcff":
        return bytes([ord(first) - 0xDC00]), error.start + 1
    return in_ascii(first), error.start + 1


_stop_at_once()  # importing torch takes seconds, and a traceback out of it helps nobody
