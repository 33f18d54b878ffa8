"""A model's bytes in memory, under a name by which this process opens them as a file, where the system has such.

onnxruntime copies bytes that it is given before it reads them, and a file not at all. Linux has files that lie in
memory alone (memfd_create(2)): what is read into one can be looked at, and runtimes read that very memory.
"""

from __future__ import annotations

import io
import mmap
import os
import weakref
from contextlib import suppress
from pathlib import Path

Content = bytes | memoryview


class NamedBytes:
    """Bytes that nobody else writes to.

    Args:
        content: the bytes. path: where this process finds them as a file for as long as this lives; None for nowhere.

    Attributes:
        content, path: as given.
    """

    def __init__(self, content: Content, path: str | None = None) -> None:
        self.content, self.path = content, path

    @classmethod
    def unnamed(cls, stream: io.BufferedReader) -> NamedBytes:
        """Read a file to its end, where no runtime is to open what was read.

        Raises:
            OSError: it cannot be read.
        """
        return cls(stream.read())

    @classmethod
    def read(cls, stream: io.BufferedReader) -> NamedBytes:
        """Read a file to its end, for a runtime to open what was read.

        Args:
            stream: of a regular file, at its start.

        Raises:
            OSError: it cannot be read.
        """
        with suppress(AttributeError, OSError, ValueError):  # another system, a file that is not copied so, or empty
            return cls._under_a_name(stream)
        stream.seek(0)
        return cls.unnamed(stream)

    @classmethod
    def _under_a_name(cls, stream: io.BufferedReader) -> NamedBytes:
        handle = os.memfd_create("model", os.MFD_CLOEXEC)
        try:
            while os.sendfile(handle, stream.fileno(), None, 1 << 30):
                pass
            whole = mmap.mmap(handle, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
            path = Path("/proc/self/fd", str(handle))
            if path.stat().st_size != len(whole):
                raise OSError(f"{path} is another file")
        except BaseException:
            os.close(handle)
            raise
        made = cls(memoryview(whole), str(path))
        weakref.finalize(made, os.close, handle)
        return made
