# SPDX-License-Identifier: Apache-2.0
"""The few verbs by which an agent without rights lets NVML's worker change MIG.

A verb names GPUs by UUID, or for a reset by PCI address, and instances by number; never a file or
a program. `nvct.typed` checks the arguments against `CALLS`, because the agent reads labels and
files that others write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nvct import typed
from nvct.errors import NvmlError
from nvct.host.nvml.mig_model import CHANGES
from nvct.oci.jsontext import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nvct.host.nvml.mig_model import MigGpu
    from nvct.host.nvml.session import NvmlSession
    from nvct.host.roots import Roots

HOLDERS = "mig_holders"  # The verb that finds the processes that have GPUs open
RESET = "mig_reset"  # The verb that resets GPUs, and closes NVML's handles before
NODES = "mig_nodes"  # The verb that makes the device nodes of MIG devices that lack one
RESET_LIMIT_S = 300  # The longest deadline of RESET, in seconds
LIMIT_S = 60  # Limit for NVML's own calls
Instance: TypeAlias = tuple[str, int, int]  # UUID of a GPU, ids of GPU and compute instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The arguments of HOLDERS; `instances` None is the whole GPUs and all their instances."""

    gpus: tuple[str, ...]
    instances: tuple[Instance, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The arguments of RESET: PCI addresses."""

    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The arguments of a verb that has none."""


CALLS: Mapping[str, type] = {
    **{verb: change for change, (verb, _) in CHANGES.items()},
    HOLDERS: Holders,
    NODES: Nothing,
    RESET: Reset,
}


def request_holders(
    gpus: Iterable[MigGpu], instances: Collection[Instance] | None
) -> dict[str, Json]:
    """Return the arguments of HOLDERS."""
    asked = None if instances is None else tuple(sorted(instances))
    call: dict[str, Json] = typed.dump(
        Holders(gpus=tuple(gpu.uuid for gpu in gpus), instances=asked)
    )
    return call


def holders(session: NvmlSession, roots: Roots, call: Holders) -> Json:
    """Return the answer to HOLDERS: all processes except those of this container."""
    from nvct.mig import holders as processes

    gpus = [gpu for gpu in session.mig().gpus if gpu.uuid in call.gpus]
    ignored = processes.own_processes(roots)
    found: Json = typed.dump(processes.holders(roots, gpus, call.instances, ignored))
    return found


def reset(session: NvmlSession, roots: Roots, call: Reset) -> None:
    """Reset the GPUs of a RESET call, if no process has one open.

    After NVML is closed, processes of this container count too, such as an MPS control daemon.
    NvmlError if NVML does not know a GPU; HostError if a process has one open, or the reset fails.
    """
    from nvct.mig import holders as processes
    from nvct.mig import smi

    session.limit_s = LIMIT_S
    gpus = [gpu for gpu in session.mig().gpus if gpu.bus_id in call.gpus]
    if len(gpus) != len(call.gpus):
        raise NvmlError("NVML does not know all the GPUs to reset")
    session.close()
    if found := smi.blocking(processes.holders(roots, gpus)):
        raise smi.in_use(found)
    bus_ids = [gpu.bus_id for gpu in gpus]
    smi.reset(bus_ids, smi.find(roots.driver_root, session.path), RESET_LIMIT_S)


def make_nodes(roots: Roots) -> None:
    """Make missing device nodes of MIG devices, without a setuid program; HostError on failure."""
    from nvct.host import device_nodes
    from nvct.host.model import Findings
    from nvct.linux.kernel import KERNEL

    device_nodes.make_nodes(device_nodes.plan_nodes(roots, ["cap"], Findings()), KERNEL)
