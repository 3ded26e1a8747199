# SPDX-License-Identifier: Apache-2.0
"""NVML for the thread that changes MIG, by the client that all tasks of the agent share.

So there is one session with NVML, and calls follow one another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Sequence
from types import NoneType
from typing import TypeVar

from nvct.agent.nvml import mig_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.mig_model import MigGpu, MigState
from nvct.host.roots import Roots
from nvct.mig import smi
from nvct.mig.holders import Holder

T = TypeVar("T")


TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.oci.jsontext import Json


class AgentSession:
    """NVML; every method but `begin` blocks its thread, which is not that of the event loop.

    Attributes:
        pid: not known: the worker is a descendant of this process.
    """

    pid: int | None = None

    def __init__(self, client: NvmlClient, roots: Roots) -> None:
        """Keep the arguments; `begin` comes first."""
        self._client = client
        self.roots = roots
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = float("inf")

    @property
    def refusal(self) -> str:
        """Return why the driver is not to be used now, "" if it may be."""
        return self._client.refusal

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
            self._client.library = nvml_library(self.roots)
        return self._wait(self._client.mig())

    def change_mig(self, verb: str, answer: type[T], **arguments: Json) -> T:
        """Make one change to MIG, and return its answer, of a type.

        Raises:
            NvmlError: NVML refuses the change.
            HostError: the time is up; the way back, which follows, has no such limit.
        """
        if time.monotonic() > self._until:
            self._until = float("inf")
            raise HostError("the change of MIG takes too long")
        return self._wait(self._client.call(verb, answer, arguments))

    def close(self) -> None:
        """Do nothing: `reset` keeps NVML's handles closed."""

    def reset(self, bus_ids: Sequence[str]) -> None:
        """Reset GPUs, while NVML has no handles.

        Raises:
            HostError: it fails.
        """
        if not self._client.chooses_library:
            self._wait(self._client.call(mig_verbs.RESET, NoneType, {"gpus": list(bus_ids)}))
            return
        limit_s = min(smi.RESET_S, max(1.0, self._until - time.monotonic()))
        program = smi.find(self.roots.driver_root, self._client.library)

        async def run() -> None:
            async with self._client.released(int(smi.RESET_S)):
                await asyncio.to_thread(smi.reset, bus_ids, program, limit_s)

        self._wait(run())

    def holders(
        self, gpus: Sequence[MigGpu], instances: Collection[tuple[str, int, int]] | None
    ) -> list[Holder]:
        """Return the processes that have GPUs open, as the container with NVML sees them.

        Raises:
            NvmlError: NVML does not work.
        """
        arguments = mig_verbs.request_holders(gpus, instances)
        answer = self._client.call(mig_verbs.HOLDERS, tuple[Holder, ...], arguments)
        return list(self._wait(answer))

    def make_nodes(self) -> None:
        """Have the container with NVML make the device nodes of MIG devices that lack one.

        Raises:
            NvctError: they cannot be made.
        """
        self._wait(self._client.call(mig_verbs.NODES, NoneType, {}))

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        assert self._loop is not None  # noqa: S101 - begin comes first
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
