# SPDX-License-Identifier: Apache-2.0
"""The answer to Allocate: devices, mounts, variables of a container; what sharing refuses.

Contract: pure functions. Answers equal those of NVIDIA's device plugin 0.20, except for the order:
devices have the order of the machine, not that of the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvct.agent.device_plugin.resources import Device, Node, Resource
from nvct.agent.device_plugin.settings import CDI_GPU, VENDOR, Settings
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.mps import daemons
from nvct.errors import RequestError
from nvct.host.roots import join
from nvct.paths import VOLUME_MOUNT_ROOT

PLUGIN = "nvidia-device-plugin"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
IMEX_CHANNELS = "NVIDIA_IMEX_CHANNELS"
IMEX_NODE = "/dev/nvidia-caps-imex-channels/channel{}"
NOTHING = "/dev/null"


def check(resource: Resource, ids: Sequence[str], settings: Settings) -> None:
    """Raise RequestError, in the incumbent's words, if a container's request is not allowed.

    That is if an id is unknown; or if the request has several replicas, or several of one device,
    and the settings forbid that.
    """
    problem = ""
    for id_ in ids:
        if id_ not in resource.devices:
            problem = f"unknown device: {id_}"
            break
    else:
        shared = any(resource.devices[id_].is_replica for id_ in ids)
        if settings.sharing.one_each and shared and len(ids) > 1:
            problem = f"maximum request size for shared resources is 1; found {len(ids)}"
        hardware = {resource.devices[id_].uuid for id_ in ids}
        if settings.shared_devices_allocation_policy == "distinct" and len(hardware) < len(ids):
            problem = f"{len(ids)} replicas need as many devices; found {len(hardware)}"
    if problem:
        raise RequestError(
            f'invalid allocation request for "{resource.name}": invalid request: {problem}'
        )


def answer(
    resource: Resource, ids: Sequence[str], settings: Settings, node: Node, unique: str
) -> api.ContainerAllocateResponse:
    """Return the answer for the devices of one container.

    `ids`: of its devices, which exist; without any, the answer is empty. `unique`: a text that
    differs in each answer, for the name of an annotation.
    """
    devices = sorted((resource.devices[id_] for id_ in ids), key=lambda device: device.order)
    names = list(dict.fromkeys(device.name(settings.device_id_strategy) for device in devices))
    response = api.ContainerAllocateResponse()
    if not devices:
        return response
    for feature, is_on in settings.features.items():
        if is_on:
            response.envs[f"NVIDIA_{feature.upper()}"] = "enabled"
    if settings.sharing.uses_mps and any(device.is_replica for device in devices):
        _add_mps(response, resource.name, settings)
    strategies = settings.device_list_strategy
    if settings.uses_cdi:
        _add_cdi(response, _cdi_names(names, node), settings, unique)
    if "envvar" in strategies:
        response.envs[VISIBLE] = ",".join(names)
        if node.imex_channels:
            response.envs[IMEX_CHANNELS] = ",".join(map(str, node.imex_channels))
    if "volume-mounts" in strategies:
        _add_mounts(response, names, node)
    if settings.pass_device_specs and not set(strategies) <= {"cdi-annotations", "cdi-cri"}:
        _add_nodes(response, devices, settings, node)
    return response


def _add_mps(response: api.ContainerAllocateResponse, resource: str, settings: Settings) -> None:
    name, value = daemons.variable(resource)
    response.envs[name] = value
    for mount in daemons.mounts(resource, settings.mps_root):
        response.mounts.add(
            host_path=mount.host_path, container_path=mount.path, read_only=mount.is_read_only
        )


def _cdi_names(names: Sequence[str], node: Node) -> list[str]:
    return [
        *(f"{CDI_GPU}={name}" for name in names),
        *(f"{VENDOR}/imex-channel={channel}" for channel in node.imex_channels),
        *(f"{VENDOR}/{feature}=all" for feature in node.features),
    ]


def _add_cdi(
    response: api.ContainerAllocateResponse, names: Sequence[str], settings: Settings, unique: str
) -> None:
    if "cdi-annotations" in settings.device_list_strategy:
        key = f"{settings.cdi_annotation_prefix}{PLUGIN}_{unique}"
        response.annotations[key] = ",".join(names)
    if "cdi-cri" in settings.device_list_strategy:
        response.cdi_devices.extend(api.CDIDevice(name=name) for name in names)


def _add_mounts(response: api.ContainerAllocateResponse, names: Sequence[str], node: Node) -> None:
    response.envs[VISIBLE] = VOLUME_MOUNT_ROOT
    for name in (*names, *(f"imex/{channel}" for channel in node.imex_channels)):
        response.mounts.add(host_path=NOTHING, container_path=f"{VOLUME_MOUNT_ROOT}/{name}")


def _add_nodes(
    response: api.ContainerAllocateResponse,
    devices: Sequence[Device],
    settings: Settings,
    node: Node,
) -> None:
    paths = [*node.control_nodes, *(path for device in devices for path in device.paths)]
    paths += [IMEX_NODE.format(channel) for channel in node.imex_channels]
    for path in dict.fromkeys(paths):
        host_path = join(settings.dev_root, path)
        response.devices.add(container_path=path, host_path=host_path, permissions="rw")
