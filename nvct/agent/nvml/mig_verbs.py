# SPDX-License-Identifier: Apache-2.0
"""What an agent without rights may have the container with NVML do to MIG: few fixed verbs.

A verb names GPUs by UUID, or to reset them by PCI address, and instances by number; never a
file or a program. `CALLS` has the arguments of each, which `nvct.typed` reads: the agent reads
labels and files that others write.
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
RESET = "mig_reset"  # The verb that resets GPUs; NVML's handles are closed
NODES = "mig_nodes"  # The verb that makes the device nodes of MIG devices that lack one
RESET_LIMIT_S = 300  # The longest deadline of RESET, in seconds
LIMIT_S = 60  # Of NVML's own calls
Instance: TypeAlias = tuple[str, int, int]  # UUID of a GPU, ids of GPU and compute instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The call of HOLDERS; `instances` None stands for the whole GPUs and all their instances."""

    gpus: tuple[str, ...]
    instances: tuple[Instance, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The call of RESET: PCI addresses."""

    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The call of a verb without arguments."""


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
    """Return the answer to HOLDERS: processes but those of this container's."""
    from nvct.mig import holders as processes

    gpus = [gpu for gpu in session.mig().gpus if gpu.uuid in call.gpus]
    ignored = processes.own_processes(roots)
    found: Json = typed.dump(processes.holders(roots, gpus, call.instances, ignored))
    return found


def reset(session: NvmlSession, roots: Roots, call: Reset) -> None:
    """Reset GPUs by their PCI addresses, as RESET asks for it, if no process has one open.

    Once NVML is closed, that is none of this container's either: an MPS control daemon counts.
    NvmlError if NVML has no such GPU; HostError if a process has one open, or it fails.
    """
    from nvct.mig import holders as processes
    from nvct.mig import smi

    session.limit_s = LIMIT_S
    gpus = [gpu for gpu in session.mig().gpus if gpu.bus_id in call.gpus]
    if len(gpus) != len(call.gpus):
        raise NvmlError("NVML does not know all GPUs that are to be reset")
    session.close()
    if found := smi.blocking(processes.holders(roots, gpus)):
        raise smi.in_use(found)
    bus_ids = [gpu.bus_id for gpu in gpus]
    smi.reset(bus_ids, smi.find(roots.driver_root, session.path), RESET_LIMIT_S)


def make_nodes(roots: Roots) -> None:
    """Make the device nodes that MIG devices lack, without setuid; HostError if that fails."""
    from nvct.host import device_nodes
    from nvct.host.model import Findings
    from nvct.linux.kernel import KERNEL

    device_nodes.make_nodes(device_nodes.plan_nodes(roots, ["cap"], Findings()), KERNEL)
