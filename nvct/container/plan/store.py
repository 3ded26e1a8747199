# SPDX-License-Identifier: Apache-2.0
"""The run directory: compiled plans, the compiled configuration and the lock.

Hot. It is `/run/nvct` for the host's root, else `$XDG_RUNTIME_DIR/nvct`: the shim of a rootless
engine is root in a user namespace, where `/` belongs to another user. Its files are trusted, so
the directory or a file is refused if another user owns it or can write it. A plan is JSON, which
cannot contain code, with a checksum: a damaged plan could lack the part that refuses a request.
Errors here never fail a container: a file that cannot be read or written counts as missing.
"""

from __future__ import annotations

import posix

from nvct import paths
from nvct.container.plan import lazy_json
from nvct.errors import DocumentError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.oci.jsontext import Json

S_IFMT, S_IFREG, S_IFDIR = 0o170000, 0o100000, 0o040000
LIMIT = 64 << 20
SEAL, SEAL_END = '{"sum":"', '",'
SEAL_SIZE = len(SEAL) + 8 + len(SEAL_END)


def run_dir(env: Mapping[str, str], root: str = "/") -> str:
    """Return the run directory for this user and environment; the host's root owns `root`."""
    configured = env.get(paths.RUN_DIR_ENV)
    if configured:
        return configured
    runtime_dir = env.get("XDG_RUNTIME_DIR")
    if runtime_dir and posix.stat(root).st_uid != posix.geteuid():
        return runtime_dir + "/nvct"
    return paths.RUN_DIR


class Store:
    """The run directory, open if no other user owns it or has one of the forbidden permissions."""

    __slots__ = ("fd", "path", "reason")

    def __init__(self, path: str, *, create: bool = False, forbidden: int = 0o077) -> None:
        self.path = path
        self.fd = -1  # of the directory, -1 if it is missing or not safe
        self.reason = ""
        try:
            if create:
                _make(path)
            fd = posix.open(
                path, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
            )
        except OSError as error:
            self.reason = f"{path}: {error.strerror}"
            return
        s = posix.fstat(fd)
        if s.st_uid != posix.geteuid() or s.st_mode & forbidden:
            posix.close(fd)
            self.reason = f"{path} belongs to uid {s.st_uid} with mode {s.st_mode & 0o7777:o}"
            return
        self.fd = fd

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if it is missing or another user can change it."""
        if self.fd < 0:
            return None
        try:
            fd = posix.open(
                name,
                posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK,
                dir_fd=self.fd,
            )
        except OSError:
            return None
        try:
            s = posix.fstat(fd)
            if s.st_uid != posix.geteuid() or s.st_mode & 0o022 or s.st_mode & S_IFMT != S_IFREG:
                return None
            if s.st_size > LIMIT:
                return None
            data = b""
            while len(data) < s.st_size:
                part = posix.read(fd, s.st_size - len(data))
                if not part:
                    return None
                data += part
            return data.decode("utf-8", "surrogateescape")
        except OSError:
            return None
        finally:
            posix.close(fd)

    def write(self, name: str, data: bytes) -> bool:
        """Replace a file atomically; return False if that fails."""
        if self.fd < 0:
            return False
        temporary = f".{name}.{posix.getpid()}"
        try:
            fd = posix.open(
                temporary,
                posix.O_WRONLY
                | posix.O_CREAT
                | posix.O_TRUNC
                | posix.O_NOFOLLOW
                | posix.O_CLOEXEC,
                0o600,
                dir_fd=self.fd,
            )
            try:
                view = memoryview(data)
                while view:
                    view = view[posix.write(fd, view) :]
            finally:
                posix.close(fd)
            posix.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            self.reason = f"{self.path}/{name}: {error.strerror}"
            self._discard(temporary)
            return False
        return True

    def read_json(self, name: str) -> dict[str, Json] | None:
        """Return the JSON object that `write_json` wrote, None if its checksum is wrong."""
        document = self.read_plan(name)
        return None if document is None else lazy_json.join(document)  # type: ignore[return-value]  # of JSON

    def read_plan(self, name: str) -> dict[str, object] | None:
        """Return the same as `read_json`, with parts parsed on first use: see `lazy_json`."""
        text = self.read(name)
        if text is None or text[:SEAL_SIZE] != _seal(text[SEAL_SIZE:]):
            return None
        try:
            value = lazy_json.read(text)
        except DocumentError:
            return None
        del value["sum"]
        return value

    def write_json(self, name: str, document: Mapping[str, object]) -> bool:
        """Write a non-empty JSON object with its checksum; return False if that fails."""
        if self.fd < 0:
            return False
        head, lines = lazy_json.split(document)
        text = "\n".join([jsontext.dumps(head)[1:], *lines])
        return self.write(name, (_seal(text) + text).encode("utf-8", "surrogateescape"))

    def _discard(self, name: str) -> None:
        try:
            posix.unlink(name, dir_fd=self.fd)
        except OSError:
            pass

    def close(self) -> None:
        """Close the directory."""
        if self.fd >= 0:
            posix.close(self.fd)
            self.fd = -1

    __del__ = close  # if a caller fails or forgets


def _seal(text: str) -> str:
    """Return the start of a sealed object, with the checksum of the rest of its text."""
    from binascii import crc32  # not needed in the other lanes of the launcher

    return f"{SEAL}{crc32(text.encode('utf-8', 'surrogateescape')):08x}{SEAL_END}"


def _make(path: str) -> None:
    try:
        posix.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = path.rpartition("/")[0]
        if not parent:
            raise
        for missing, mode in ((parent, 0o755), (path, 0o700)):
            try:
                posix.mkdir(missing, mode)
            except FileExistsError:  # another process was faster
                pass
