"""Streams of gzip and Zstandard files, whose damage is told as an OSError."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from headrace.config import ConfigError

COMPRESSIONS = (".gz", ".zst")
_CHUNK = 1 << 20


def is_compressed(file: Path) -> bool:
    return file.suffix.lower() in COMPRESSIONS


@contextmanager
def uncompressed(file: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where its suffix is `.gz` or `.zst`. Raises ConfigError naming it and the mend."""
    try:
        with file.open("rb") as raw:
            match file.suffix.lower():
                case ".gz":
                    with gzip.GzipFile(fileobj=raw) as stream:
                        yield cast(IO[bytes], io.BufferedReader(stream, _CHUNK))
                case ".zst":
                    yield cast(IO[bytes], io.BufferedReader(_Zstandard(raw, file), _CHUNK))
                case _:
                    yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{file} is damaged, or no such archive ({error}); fetch or pack it again") from error
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {file}: {error.strerror or error}; give a readable file") from error


class _Zstandard(io.RawIOBase):
    """Frame after frame. Unlike the library's own reader it tells a file that was cut off from one that ended."""

    def __init__(self, raw: IO[bytes], file: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ConfigError(
                f"{file} needs the package zstandard, which is not installed; pip install 'headrace[datasets]'"
            ) from error
        self._raw = raw
        self._fault = zstandard.ZstdError
        self._library = zstandard.ZstdDecompressor()
        self._frame: Any = None
        """The decompressor of a frame that has begun."""
        self._ready = memoryview(b"")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._rest or self._raw.read(_CHUNK)
            self._rest = b""
            if not chunk:
                if self._frame is not None:
                    raise EOFError("it ends in the midst of a frame")
                return 0
            self._frame = self._frame or self._library.decompressobj()
            try:
                self._ready = memoryview(self._frame.decompress(chunk))
            except self._fault as error:
                raise EOFError(str(error)) from error
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
