# SPDX-License-Identifier: Apache-2.0
"""What a container gets besides its GPUs, and requirements that only NVML can decide.

Hot; loaded for the few containers that request it. GPUDirect Storage, RDMA cards, GDRCopy,
NVSwitches, IMEX channels and MIG capabilities have a plan each; the cold side compiles the plan
at the first request. Not used in mode cdi, where these devices have their own CDI names.
"""

from __future__ import annotations

from nvct.container.plan import model
from nvct.container.request.model import FEATURES, MIG_CAPABILITIES
from nvct.container.request.visible_devices import is_mig_index
from nvct.errors import HostError, NvctError, RequestError, UnknownDeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvct.container.host import Host
    from nvct.container.request.model import Request

IMEX_VARIABLE = "NVIDIA_IMEX_CHANNELS"
IMEX_KIND = "nvidia.com/imex-channel"
IMEX_FOLDER = "/dev/nvidia-caps-imex-channels"
MIG_KIND = "nvidia.com/mig"
CAPABILITY_FILE = "/proc/driver/nvidia/capabilities/mig"


def collect(request: Request, host: Host, *, fresh: bool) -> tuple[list[str], list[model.Edits]]:
    """Return the ids that are GPUs, and all other edits; NvctError if a device is missing."""
    extras = request.extras
    edits: list[model.Edits] = []
    variables: list[str] = []
    for mode, variable in FEATURES.items():
        if getattr(extras, mode):
            plan = _plan(host, mode, f"{variable}=enabled", fresh=fresh)
            edits += model.collect(plan, [f"nvidia.com/{mode}=all"])
            variables.append(variable)
    if extras.imex:
        plan = _plan(host, "imex", IMEX_VARIABLE, fresh=fresh)
        names = _channels(plan, extras.imex, unmade=extras.imex_unmade)
        edits += model.collect(plan, [name for name in names if name in plan["devices"]])
        edits += [_unmade(plan, name) for name in names if name not in plan["devices"]]
        variables.append(IMEX_VARIABLE)
    ids = request.ids
    mig_capabilities = [name for name in MIG_CAPABILITIES if getattr(extras, name)]
    if mig_capabilities:
        _refuse_mig_devices(request, MIG_CAPABILITIES[mig_capabilities[0]])
        plan = _plan(host, "mig", MIG_CAPABILITIES[mig_capabilities[0]], fresh=fresh)
        ids, names = _mig_names(request, mig_capabilities, plan)
        edits += model.collect(plan, names)
        variables += [MIG_CAPABILITIES[name] for name in mig_capabilities]
    note = f"besides GPUs: {', '.join(variables)}"
    if note not in request.notes:
        request.notes.append(note)
    return ids, edits


def _plan(host: Host, mode: str, variable: str, *, fresh: bool) -> model.Plan:
    """Return the plan of a mode; an error names the variable that requests the mode."""
    try:
        return host.plan(f"mode-{mode}", fresh=fresh)
    except NvctError as error:
        error.message = f"{variable}: {error.message}"
        raise


def _channels(plan: model.Plan, numbers: list[int], *, unmade: bool) -> list[str]:
    names = [f"{IMEX_KIND}={number}" for number in numbers]
    if unmade and plan["host"].get("major"):
        return names
    if not plan["devices"]:
        raise HostError(
            f"{IMEX_VARIABLE}: no IMEX channel in {IMEX_FOLDER}",
            hint="load nvidia with NVreg_CreateImexChannel0=1, or make the nodes with mknod",
        )
    for name in names:
        if name not in plan["devices"]:
            channels = sorted([int(device.partition("=")[2]) for device in plan["devices"]])
            listed = ", ".join([str(n) for n in channels[:12]]) + (" ..." if channels[12:] else "")
            number = name.partition("=")[2]
            raise UnknownDeviceError(
                f"{IMEX_VARIABLE} asks for channel {number}, but this host has {listed}",
                hint=f"make it with mknod in {IMEX_FOLDER}",
            )
    return names


def _unmade(plan: model.Plan, name: str) -> model.Edits:
    """Return the node of a channel that the driver supports but /dev does not have.

    libnvidia-container creates the host's node if an image requests it. The node in the container
    does not need one on the host.
    """
    minor = name.partition("=")[2]
    numbers = f'"type":"c","major":{plan["host"]["major"]},"minor":{minor}'
    path = f"{IMEX_FOLDER}/channel{minor}"
    edits = model.no_edits()
    edits["nodes"].append({
        "path": path,
        "host": path,
        "node": f'{{"path":"{path}",{numbers},"fileMode":438}}',
        "rule": f'{{"allow":true,{numbers},"access":"rwm"}}',
    })  # fmt: skip
    return edits


def _refuse_mig_devices(request: Request, variable: str) -> None:
    for word in request.ids:
        device = word.rpartition("=")[2]
        if device.startswith("MIG-") or is_mig_index(device):
            raise RequestError(
                f"{variable} is about whole GPUs, but {device} is a MIG device",
                hint="ask for all, or for its GPU",
            )


def _mig_names(
    request: Request, capabilities: list[str], plan: model.Plan
) -> tuple[list[str], list[str]]:
    """Return the remaining ids, and the names in the MIG plan.

    As in libnvidia-container, both capabilities apply to whole GPUs with all their MIG devices.
    They include a GPU in MIG mode, which containers do not get otherwise. If no GPU supports MIG,
    the capabilities have no effect: management containers request them on every node.
    """
    names = []
    for name in capabilities:
        device = name.removeprefix("mig_")
        if f"{MIG_KIND}={device}" in plan["devices"]:
            names.append(f"{MIG_KIND}={device}")
        elif f"{MIG_KIND}=all" in plan["devices"]:
            raise HostError(
                f"{MIG_CAPABILITIES[name]}: {plan['problems'][0]}",
                hint=f"nvidia-modprobe -f {CAPABILITY_FILE}/{device} makes it",
            )
        else:
            request.notes.append(f"{MIG_CAPABILITIES[name]} has no effect: no GPU is in MIG mode")
    remaining = []
    for word in request.ids:
        name = f"{MIG_KIND}={word}"
        if name in plan["devices"]:
            names.append(name)
        if name not in plan["devices"] or (word == "all" and plan["host"]["others"]):
            remaining.append(word)
    return remaining, names


def check_gpus(request: Request, facts: dict[str, str], names: list[str], host: Host) -> None:
    """Check the requirements on brand and architecture for each requested GPU.

    As in libnvidia-container, a requirement on a property that NVML does not report is met. Raises
    RequirementError if a GPU does not meet a requirement.
    """
    from nvct.container.request.requirements import check

    plan = host.plan("properties")
    document: dict[str, Any] = {**plan}
    gpus: dict[str, dict[str, str]] = document.get("gpus", {})
    for problem in plan["problems"]:
        note = f"{problem}: requirements on brand and arch count as met"
        if note not in request.notes:
            request.notes.append(note)
    checked: list[dict[str, str]] = []
    for name in names:
        device = name.partition("=")[2]
        for gpu in gpus.values() if device == "all" else [gpus.get(device, {})]:
            if gpu not in checked:
                checked.append(gpu)
                check(request.requirements, {**facts, **gpu})
