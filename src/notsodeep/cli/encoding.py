"""Output that a console of another encoding can print: what it has no sign for is spelled in ASCII."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_NAME = "notsodeep-ascii"  # of the way to spell, and of ASCII under a name of our own
_SPELLED = {
    "×": "x",
    "±": "+-",
    "·": "*",
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "≈": "~",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "→": "->",
    "√": "sqrt",
    "∞": "inf",
    "Σ": "sum",
    "∂": "d",
    "ℓ": "l",
    "‖": "||",
    "′": "'",
    "’": "'",
    "“": '"',
    "”": '"',
    "•": "*",
    "━": "-",
    "─": "-",
}
_ASCII = codecs.lookup("ascii")


def spell_what_cannot_be_printed() -> None:
    """From now on standard output and standard error take every character, whatever their encoding."""
    codecs.register_error(_NAME, _spell)
    codecs.register(lambda name: _UNDER_OUR_NAME if name in (_NAME, _NAME.replace("-", "_")) else None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            # Click takes a stream whose encoding is named ASCII for a mistake, and writes UTF-8 to it.
            named_ascii = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_NAME if named_ascii else None, errors=_NAME)


def printable(text: str) -> bool:
    """Whether standard output has a sign for every character of the text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def in_ascii(text: str) -> str:
    """The text in ASCII: mathematical signs as one types them, Greek letters by name, accents dropped, the rest as ?."""
    return "".join(map(_one, text))


def _one(character: str) -> str:
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
    """An error handler of `codecs`. Bytes of a file name that are no text come out as they went in."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    if "\udc80" <= first <= "\udcff":
        return bytes([ord(first) - 0xDC00]), error.start + 1
    return _one(first), error.start + 1


_UNDER_OUR_NAME = codecs.CodecInfo(
    name=_NAME,
    encode=_ASCII.encode,
    decode=_ASCII.decode,
    incrementalencoder=_ASCII.incrementalencoder,
    incrementaldecoder=_ASCII.incrementaldecoder,
    streamwriter=_ASCII.streamwriter,
    streamreader=_ASCII.streamreader,
)
