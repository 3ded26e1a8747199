# SPDX-License-Identifier: Apache-2.0
"""Answers the requests of `nvct.agent.nvml.host_verbs`: reads and writes files of the host.

Tasks ask `Host`. It does the work in this process, or asks NVML's worker, which has the rights
that the agent lacks. `HostSide` does the work in either process.
"""

from __future__ import annotations

import os
from functools import partial
from typing import cast

from nvct import errors, typed
from nvct.agent.device_plugin.settings import SPEC_FOLDER, Settings
from nvct.agent.machine.driver_root import DEV_ROOT_ENV, ROOT_ENV, with_driver_roots
from nvct.agent.machine.place import (
    DEFAULT_KUBELET,
    DEFAULT_MPS_ROOT,
    Place,
    look,
    node_marks,
    signature,
)
from nvct.agent.nvml import host_verbs
from nvct.errors import HostError
from nvct.host.roots import Roots, join
from nvct.linux.deadline import Deadline
from nvct.oci.jsontext import Json
from nvct.paths import HOOK_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias, TypeVar

    from nvct.agent.nvml.client import NvmlClient
    from nvct.cdi.types import ContainerEdits
    from nvct.doctor.containers import Containers
    from nvct.host.nvml.model import NvmlReport

    T = TypeVar("T")
    # Runs work that imports the generator, and returns its answer.
    Run: TypeAlias = Callable[[Callable[[], Json]], Json]

LIMIT_S = 8.0  # Limit for the process that writes specifications: less than the agent waits


def of_environment(env: Mapping[str, str]) -> Place:
    """Return the place of a worker with this environment; HostError as `with_driver_roots`."""
    from nvct.agent.nvml import engine_question  # and json, which only this process needs

    # Not from the installer's file: the /dev of a driver container is not the host's.
    host_root = env.get(DEV_ROOT_ENV) or "/"
    env = with_driver_roots(env)
    root, driver_root = env.get(ROOT_ENV, ""), env.get("NVIDIA_DRIVER_ROOT") or "/"
    return Place(
        roots=Roots(
            driver_root=root if os.path.isdir(root) else "/", dev_root=env.get(DEV_ROOT_ENV)
        ),
        host_root=host_root,
        host_roots=tuple(engine_question.roots(env)),
        settings=Settings(
            driver_root=driver_root,
            dev_root=env.get("NVIDIA_DEV_ROOT") or driver_root,
            hook_path=env.get("NVIDIA_CDI_HOOK_PATH") or HOOK_PATH,
        ),
        folder=env.get("CDI_ROOT") or SPEC_FOLDER,
        mps_root=env.get("MPS_ROOT") or DEFAULT_MPS_ROOT,
        kubelet=env.get("NVCT_KUBELET_DIR") or DEFAULT_KUBELET,
    )


class HostSide:
    """Answers requests; `run`: runs work that imports the CDI generator."""

    def __init__(self, find_place: Callable[[], Place], run: Run = lambda work: work()) -> None:
        # by UUID of a GPU or MIG device; None before the first `DriverSpec`
        self.edits: Mapping[str, ContainerEdits] | None = None
        # the processes whose containers may be asked for; None for all
        self.pids: frozenset[int] | None = None
        self._find_place = find_place
        self._run = run
        self._containers: Containers | None = None

    def answer(self, call: host_verbs.Call, report: Callable[[], NvmlReport]) -> Json:
        """Return the answer; NvctError if a specification cannot be made, written or removed."""
        place = self._find_place()
        if isinstance(call, host_verbs.Published):
            return cast("Json", typed.dump(signature(place.folder)))
        if isinstance(call, host_verbs.Possible):
            return _why_not(place)
        if isinstance(call, host_verbs.PluginSpecs):
            return self._run(partial(_plugin, place, call, report()))
        if isinstance(call, host_verbs.DriverSpec):
            return self._update(place, report())
        if isinstance(call, host_verbs.ClaimSpec):
            if self.edits is None:
                self._update(place, report())
            return self._run(partial(_claim, place, call, self.edits or {}))
        if isinstance(call, (host_verbs.KeepClaims, host_verbs.RemoveClaim)):
            return self._run(partial(_remove, place, call))
        return cast("Json", typed.dump(self._seen(place, call)))

    def _seen(self, place: Place, call: host_verbs.Call) -> object:
        """Return the answer to a request that only reads."""
        if isinstance(call, host_verbs.Look):
            return look(place)
        if isinstance(call, host_verbs.HostDrivers):
            from nvct.host.gpu import pci

            return pci.host_drivers(place.roots)
        if isinstance(call, host_verbs.PciNames):
            from nvct.host.gpu import pci

            return pci.names(place.roots)
        if isinstance(call, host_verbs.SocketOwner):
            from nvct.agent.device_plugin import socket_owner

            folder = join(place.host_root, f"{place.kubelet}/{call.folder}")
            return socket_owner.find_in(folder, call.name)
        if isinstance(call, host_verbs.ProcessContainers):
            pids = call.pids if self.pids is None else self.pids.intersection(call.pids)
            return self._labels(place, pids)
        return node_marks(place.roots)

    def _labels(self, place: Place, pids: Iterable[int]) -> dict[str, Mapping[str, str]]:
        if self._containers is None:
            from nvct.doctor.containers import Containers  # few agents need it

            self._containers = Containers(place.host_root)
        self._containers.refresh()
        return {str(pid): self._containers.labels(pid) for pid in pids}

    def _update(self, place: Place, report: NvmlReport) -> Json:
        """Write the driver's specification and remember the devices' edits; return warnings."""
        edits, warnings = cast(
            "tuple[Mapping[str, ContainerEdits], Json]", self._run(partial(_driver, place, report))
        )
        self.edits = edits
        return warnings


class Host:
    """Answers a task's requests about the host, in this process or through NVML's worker."""

    def __init__(self, nvml: NvmlClient, find_place: Callable[[], Place]) -> None:
        self._nvml = nvml
        self._side = HostSide(find_place)

    async def ask(self, call: host_verbs.Call, kind: type[T]) -> T:
        """Return the answer to a request, checked against a type.

        NvctError if a specification cannot be made, written or removed, or the worker does not
        answer.
        """
        verb = host_verbs.VERBS[type(call)]
        if not self._nvml.chooses_library:
            return await self._nvml.call(verb, kind, typed.dump(call))
        needs = isinstance(call, (host_verbs.PluginSpecs, host_verbs.DriverSpec)) or (
            isinstance(call, host_verbs.ClaimSpec) and self._side.edits is None
        )
        import asyncio  # 3 MB, which the worker does without

        report = await self._nvml.report() if needs else None
        answer_call = partial(self._side.answer, call, lambda: cast("NvmlReport", report))
        # A look at a folder once a second costs less than the switch to a thread.
        is_short = isinstance(call, (host_verbs.NodeNames, host_verbs.Published))
        answer = answer_call() if is_short else await asyncio.to_thread(answer_call)
        return typed.load(kind, typed.dump(answer), verb)  # a HostWarning becomes a plain str


def in_child(work: Callable[[], Json]) -> Json:
    """Do work in a child process, so that its memory is released when it ends.

    NvctError if the work raises it; HostError if it takes more than LIMIT_S, or the child dies.
    """
    from nvct.host.nvml import messages
    from nvct.host.nvml.process import WorkerProcess

    def serve(connection: socket) -> None:
        messages.send(connection, _outcome(work))

    child = WorkerProcess(serve)
    try:
        deadline = Deadline(LIMIT_S, child.pid)
        return messages.value_of(messages.receive(child.connection, deadline), 1)
    except TimeoutError as error:
        raise HostError(
            f"CDI specifications were not written within {LIMIT_S:g} s",
            hint="a file system of the host may hang",
        ) from error
    except EOFError as error:
        child.wait(1)
        raise HostError(
            f"the process that writes CDI specifications ended with {child.ending()}"
        ) from error
    finally:
        child.kill()


def _outcome(work: Callable[[], Json]) -> Json:
    try:
        return {"id": 1, "value": work()}
    except errors.NvctError as error:
        failure = error
    except Exception as error:  # the last resort of this process: its parent raises it
        failure = errors.unexpected(error)
    return {"id": 1, "error": {**errors.to_dict(failure)}}


def _why_not(place: Place) -> str:
    """Return why no engine could use CDI specifications of this node, "" if one could."""
    if not os.access(place.folder, os.W_OK):
        return f"the host's {place.folder} is not mounted, or is read-only"
    hooks = [join(root, place.settings.hook_path) for root in place.host_roots]
    if any(map(os.path.exists, hooks)):
        return ""
    return f"the hook that CDI specifications need is not at {' or '.join(hooks)}"


def _plugin(place: Place, call: host_verbs.PluginSpecs, report: NvmlReport) -> Json:
    from nvct.agent.device_plugin import specs

    return cast("Json", typed.dump(specs.write(place, call, report)))


def _driver(place: Place, report: NvmlReport) -> Json:
    from nvct.agent.device_plugin import specs as of_gpus
    from nvct.agent.dra import specs

    request = host_verbs.PluginSpecs(
        ids="uuid", flags=(), disabled_hooks=(), features=(), imex_channels=()
    )
    made = of_gpus.gpus(place, request, report)
    specs.write_driver(made.spec, place.folder)
    return [specs.edits_of(made.spec), [*made.warnings]]


def _claim(place: Place, call: host_verbs.ClaimSpec, edits: Mapping[str, ContainerEdits]) -> Json:
    from nvct.agent.dra import specs

    specs.write_claim(call, edits, place.folder, place.mps_root)
    return None


def _remove(place: Place, call: host_verbs.KeepClaims | host_verbs.RemoveClaim) -> Json:
    from nvct.agent.dra import specs

    if isinstance(call, host_verbs.RemoveClaim):
        specs.remove(call.uid, place.folder)
    else:
        specs.remove_others(call.uids, place.folder)
    return None
