# SPDX-License-Identifier: Apache-2.0
"""Makes, recognizes and removes the sockets of one gRPC server in the kubelet's folders.

The kubelet reads such a folder when it starts, and learns of new sockets by inotify. So a socket
is bound under a name that begins with a dot, which the kubelet ignores, and renamed when the
server answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence

from nvct.agent.kubelet.service import Server
from nvct.agent.machine.folder_watch import identity


class Sockets:
    """The Unix sockets of one gRPC server."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths
        self._files: dict[str, tuple[int, int] | None] = {}
        self._server: Server | None = None

    def owns_sockets(self) -> bool:
        """Return whether all sockets are served and still ours."""
        files = self._files.items()
        return bool(files) and all(_file(path) == known for path, known in files)

    def is_taken(self) -> bool:
        """Return whether another process has put its socket in place of one of ours."""
        return any(_file(path) not in (None, known) for path, known in self._files.items())

    async def serve(
        self,
        make: Callable[[Sequence[str]], Server],
        may_replace: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Serve on new sockets, by a server that `make` binds to some paths.

        OSError if a socket cannot be made, or `may_replace` refuses its path.
        """
        await self.stop()
        folders = [os.path.dirname(path) for path in self.paths]
        # Not named by the pid: processes of two containers may have the same one.
        temporary = [f"{folder}/.nvct-{os.urandom(4).hex()}" for folder in folders]
        try:
            self._server = make(temporary)
            await asyncio.shield(self._server.start())  # as in `stop`
            for source, path in zip(temporary, self.paths, strict=True):
                if not may_replace(path):
                    raise FileExistsError(f"another process has just made {path}")
                os.rename(source, path)
                self._files[path] = _file(path)
        except (OSError, RuntimeError) as error:  # gRPC's, for every failure to bind
            for source in temporary:
                with contextlib.suppress(OSError):
                    os.unlink(source)
            await self.stop()
            if isinstance(error, OSError):
                raise
            raise OSError(f"no socket can be made in {folders[0]}") from error

    async def stop(self) -> None:
        """End the server, and try to remove the sockets that are still ours."""
        for path in reversed(self._files):
            if _file(path) == self._files[path]:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self._files = {}
        server, self._server = self._server, None
        if server is not None:
            await asyncio.shield(server.stop(None))  # gRPC fails if this is canceled


def _file(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file; no other file gets the inode of a served socket."""
    found = identity(path)
    return found and found[:2]
