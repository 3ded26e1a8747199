# SPDX-License-Identifier: Apache-2.0
"""What an agent without rights may have the container with NVML do to MIG: few fixed verbs.

A verb names GPUs by UUID, or to reset them by PCI address, and instances by number; never a
file or a program. Each argument is
checked here, because the agent reads labels and files that others write.
"""

from __future__ import annotations

from dataclasses import asdict

from nvct.errors import NvmlError
from nvct.host.nvml.answers import fields_of
from nvct.host.nvml.messages import MalformedMessageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    from nvct.host.nvml.answers import Types
    from nvct.host.nvml.mig_model import MigGpu
    from nvct.host.nvml.session import NvmlSession
    from nvct.host.roots import Roots
    from nvct.mig.holders import Holder
    from nvct.oci.jsontext import Json

HOLDERS = "mig_holders"
"""The verb that finds the processes that have GPUs open."""
RESET = "mig_reset"
"""The verb that resets GPUs; NVML's handles are closed."""
NODES = "mig_nodes"
"""The verb that makes the device nodes of MIG devices that lack one."""
RESET_LIMIT_S = 300
"""The longest deadline of RESET, in seconds."""
LIMIT_S = 60
"""Of NVML's own calls."""
VERBS: Mapping[str, Types] = {
    "mig_create": {"uuid": (str,), "kind": (int,), "start": (int,), "size": (int,)},
    "mig_create_compute": {"uuid": (str,), "gi": (int,), "kind": (int,), "engine": (int,)},
    "mig_destroy": {"uuid": (str,), "gi": (int,)},
    "mig_destroy_compute": {"uuid": (str,), "gi": (int,), "ci": (int,)},
    "mig_set_mode": {"uuid": (str,), "enabled": (bool,)},
    HOLDERS: {"gpus": (list,), "instances": (list, type(None))},
    NODES: {},
    RESET: {"gpus": (list,)},
}
"""The verbs with arguments, and their types; bool is no int here."""
HOLDER: Types = {
    **dict.fromkeys(("command", "container", "pod", "unit", "device"), (str,)),
    "pid": (int,), "instance": (list, type(None)),
}  # fmt: skip


def check(verb: str, call: Json) -> None:
    """Check the arguments of a verb that comes from another container.

    Raises:
        NvmlError: there is no such verb, or an argument is malformed.
    """
    types = VERBS.get(verb, {})
    try:
        found = fields_of(call, f"the call of {verb}", types)
        for instance in found.get("instances") or ():
            _instance(instance)
    except MalformedMessageError as error:
        raise NvmlError(f"NVML's worker does not answer another container: {error}") from error


def request_holders(
    gpus: Iterable[MigGpu], instances: Collection[tuple[str, int, int]] | None
) -> dict[str, Json]:
    """Return the arguments of HOLDERS."""
    found: Json = None if instances is None else [list(each) for each in sorted(instances)]
    return {"gpus": [gpu.uuid for gpu in gpus], "instances": found}


def holders(session: NvmlSession, roots: Roots, call: Mapping[str, Any]) -> Json:
    """Return the answer to HOLDERS: processes but those of this container's."""
    from nvct.mig import holders as processes

    gpus = [gpu for gpu in session.mig().gpus if gpu.uuid in call["gpus"]]
    asked = call["instances"]
    instances = None if asked is None else {_instance(each) for each in asked}
    ignored = processes.own_processes(roots)
    return [asdict(holder) for holder in processes.holders(roots, gpus, instances, ignored)]


def parse_holders(value: Json) -> list[Holder]:
    """Parse the answer to HOLDERS.

    Raises:
        MalformedMessageError: the value is not one.
    """
    from nvct.mig.holders import Holder

    if not isinstance(value, list):
        raise MalformedMessageError("holders are not a list")
    found = []
    for each in value:
        known = fields_of(each, "a holder", HOLDER)
        if known["instance"] is not None:
            known["instance"] = _instance(known["instance"])
        found.append(Holder(**known))
    return found


def reset(session: NvmlSession, roots: Roots, call: Mapping[str, Any]) -> None:
    """Reset GPUs by their PCI addresses, as RESET asks for it.

    Raises:
        NvmlError: NVML has no such GPU.
        HostError: it fails.
    """
    from nvct.mig import smi

    session.limit_s = LIMIT_S
    bus_ids = [gpu.bus_id for gpu in session.mig().gpus if gpu.bus_id in call["gpus"]]
    if len(bus_ids) != len(call["gpus"]):
        raise NvmlError("NVML does not know all GPUs that are to be reset")
    session.close()
    smi.reset(bus_ids, smi.find(roots.driver_root, session.path), RESET_LIMIT_S)


def make_nodes(roots: Roots) -> None:
    """Make the device nodes of MIG devices that lack one: no setuid program does it here.

    Raises:
        HostError: they cannot be made.
    """
    from nvct.host.device_nodes import create
    from nvct.host.model import Findings
    from nvct.kernel.calls import KERNEL

    create.make_nodes(create.plan_nodes(roots, ["cap"], Findings()), KERNEL)


def _instance(value: Json) -> tuple[str, int, int]:
    """Return the names of an instance: UUID of its GPU, ids of GPU and compute instance.

    Raises:
        MalformedMessageError: the value has another form.
    """
    if not isinstance(value, list) or [type(each) for each in value] != [str, int, int]:
        raise MalformedMessageError("an instance is not a UUID and two numbers")
    gpu, gi, ci = value
    return gpu, gi, ci  # type: ignore[return-value]  # checked above
