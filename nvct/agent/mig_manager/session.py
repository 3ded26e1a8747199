# SPDX-License-Identifier: Apache-2.0
"""NVML for the thread that changes MIG, by the client that all tasks of the agent share.

So there is one session with NVML, and calls follow one another.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial

from nvct.errors import HostError
from nvct.host.nvml.library import nvml_library
from nvct.mig import apply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import TypeVar

    from nvct.agent.nvml_client import NvmlClient
    from nvct.host.nvml.mig_model import MigState
    from nvct.host.roots import Roots
    from nvct.oci.jsontext import Json

    T = TypeVar("T")

SMI = ("usr/bin/nvidia-smi", "bin/nvidia-smi", "opt/bin/nvidia-smi", "usr/local/bin/nvidia-smi")
"""Below the driver's root."""


class AgentSession:
    """NVML; every method but `begin` blocks its thread, which is not that of the event loop.

    Attributes:
        pid: not known: the worker is a descendant of this process.
    """

    pid: int | None = None

    def __init__(self, client: NvmlClient, roots: Roots) -> None:
        """Keep the arguments; `begin` comes first."""
        self._client = client
        self._roots = roots
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = float("inf")

    def begin(self, limit_s: float = float("inf")) -> None:
        """Use the running event loop; after the limit one change is refused."""
        self._loop = asyncio.get_running_loop()
        self._until = time.monotonic() + limit_s

    def mig(self) -> MigState:
        """Return modes, profiles and instances of all GPUs.

        Raises:
            NvmlError: NVML does not work.
            DriverNotFoundError: there is no driver.
        """
        if self._client.chooses_library:
            self._client.library = nvml_library(self._roots)
        return self._wait(self._client.mig())

    def change_mig(self, verb: str, parse: Callable[[Json], T], **arguments: Json) -> T:
        """Make one change to MIG, and return the parsed value.

        Raises:
            NvmlError: NVML refuses the change.
            HostError: the time is up; the way back, which follows, has no such limit.
        """
        if time.monotonic() > self._until:
            self._until = float("inf")
            raise HostError("the change of MIG takes too long")
        return self._wait(self._client.change_mig(verb, parse, arguments))

    def close(self) -> None:
        """Do nothing: `reset` keeps NVML's handles closed."""

    def reset(self, bus_ids: Sequence[str]) -> None:
        """Reset GPUs, while NVML has no handles.

        Raises:
            HostError: it fails.
        """
        limit_s = min(apply.RESET_S, max(1.0, self._until - time.monotonic()))
        program, env = _smi(self._roots.driver_root, self._client.library)
        work = partial(apply.reset, bus_ids, program, env, limit_s)

        async def run() -> None:
            async with self._client.released(int(apply.RESET_S)):
                await asyncio.to_thread(work)

        self._wait(run())

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        assert self._loop is not None  # noqa: S101 - begin comes first
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _smi(root: str, library: str) -> tuple[str, dict[str, str] | None]:
    """Return nvidia-smi of the driver and its environment."""
    for path in (f"{root.rstrip('/')}/{name}" for name in SMI):
        if os.access(path, os.X_OK):
            return path, {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)}
    return "nvidia-smi", None
