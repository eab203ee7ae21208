"""Make text from elsewhere safe to show: escape control characters, hide passwords and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_UNSEEN = re.compile(
    # C0 less tab and line feed, DEL, C1; what turns the direction of text; surrogates, non-characters
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_PASSWORD = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]{0,30}:/{1,2})[^/?\s'\"]*@")  # a Path has one slash left
_WORDS = (
    r"(?:secret|passw|passphrase|credential|signature|authorization"
    r"|(?:access|account|api|private|shared)[_-]?key|token(?![a-z]))"
)
_NAME = re.compile(_WORDS, re.IGNORECASE)
_KEY = re.compile(
    rf"(?i)([?&][^=&\s]{{0,60}}key[^=&\s]{{0,60}}=|{_WORDS}[\w.-]{{0,40}}=|--[\w-]{{0,40}}{_WORDS}[\w-]{{0,40}}\s+)[^&\s'\"]+"
)
_MARKUP = re.compile(r"[\\`<>\[\]|*&~]")
_LINE_MARKUP = re.compile(r"^(\d*)([#=+]|[.)](?=\s|$)|[-_]+\s*$)")
MASK = "***"
"""What is shown in place of a password or key."""


def printable(text: str) -> str:
    r"""Return `text` with control characters shown as escapes (`\x1b`). Tabs and line feeds stay."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def csv_text(text: str) -> str:
    """Return text as a cell of CSV: printable, and with a quote before what a spreadsheet would compute."""
    return f"'{printable(text)}" if text.startswith(("=", "+", "-", "@", "\t")) else printable(text)


def markdown_text(text: str) -> str:
    """Return text as one line of Markdown that shows it, and adds no markup but that of a list."""
    line = _MARKUP.sub(r"\\\g<0>", " ".join(printable(text).split("\n")).strip())
    return _LINE_MARKUP.sub(r"\1\\\2", line)


def label_text(text: str) -> str:
    """Return text as the value of an OpenMetrics label."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def masked(text: str) -> str:
    """Return `text` with `***` in place of passwords and keys: in URLs, `NAME=VALUE` and `--NAME VALUE`."""
    return _KEY.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}@", text))


def names_secret(name: str) -> bool:
    """Return whether a setting of this name holds a password or a key, as `secret_access_key` does."""
    return _NAME.search(name) is not None


def shown(text: str) -> str:
    """Return text from elsewhere as it may be shown: `printable` and `masked`."""
    return masked(printable(text))


class PrintableStream:
    """Wraps a text stream: control characters are written as escapes and keys as `***`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        """The wrapped stream, for text with our own colours."""

    def write(self, text: str) -> int:
        """Write `text`; return its length, not the number of characters written."""
        with self._named():
            self.stream.write(shown(text))
        return len(text)

    def flush(self) -> None:
        with self._named():
            self.stream.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Give an OSError the name of the stream: a full disk may be under stdout."""
        try:
            yield
        except OSError as error:
            error.filename = self.stream.name
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
