# SPDX-License-Identifier: Apache-2.0
"""Parses how a claim shares its devices: the opaque configuration of NVIDIA's DRA driver.

Containers and pods that use the same claim share its GPU by the driver's own time-slicing, or by
MPS with the limits of the configuration. A configuration that asks for something else is refused,
because a pod would run without the limits that it asked for. Contract: pure functions, which
refuse by RequestError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nvct.agent.dra.devices import DRIVER, MIB
from nvct.agent.dra.journal import Entry
from nvct.agent.kubernetes import quantity
from nvct.agent.kubernetes.cluster import Object
from nvct.agent.mps.daemons import CLAIMS, UNKNOWN, Daemon, check, has_limits, of_shares
from nvct.errors import RequestError

THREADS = "defaultActiveThreadPercentage"
MEMORY = "defaultPinnedDeviceMemoryLimit"
OF_DEVICES = "defaultPerDevicePinnedMemoryLimit"
MULTI_USER = "multiUser"
VERSION = "resource.nvidia.com/v1beta1"
GPU_CONFIG, MIG_CONFIG = "GpuConfig", "MigDeviceConfig"
KINDS = {
    GPU_CONFIG: ("strategy", "timeSlicingConfig", "mpsConfig"),
    MIG_CONFIG: ("strategy", "mpsConfig"),
}
"""The fields that `sharing` has in each kind of configuration."""
TIME_SLICING, MPS = "TimeSlicing", "MPS"
INTERVALS = ("Default", "Short", "Medium", "Long")
CLASS = "FromClass"
MIG = "MIG-"
MOST = 1 << 50
"""Bytes: no GPU has more."""


class Config(NamedTuple):
    """A configuration.

    Attributes:
        requests: for which requests it is, () for all.
        limits: of MPS, or the time slice; None if it asks for neither.
    """

    kind: str
    requests: tuple[str, ...] = ()
    limits: Limits | None = None

    def names(self, request: str) -> bool:
        """Return whether it names a request; of REQUEST/ALTERNATIVE, the request is enough."""
        return request in self.requests or request.partition("/")[0] in self.requests


def configs(claim: Object, requests: Collection[str]) -> list[Config]:
    """Return a claim's configurations for these requests; a later one overrides an earlier one."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    found = []
    # The claim's configurations override those of its class.
    for entry in sorted(devices.get("config", ()), key=lambda one: one.get("source") != CLASS):
        opaque = entry.get("opaque") or {}
        named = tuple(entry.get("requests") or ())
        known = {name.partition("/")[0] for name in named or requests}
        if opaque.get("driver") == DRIVER and known & set(requests):
            found.append(_config(opaque.get("parameters"))._replace(requests=named))
    return found


def daemon(
    found: Sequence[Config],
    uid: str,
    used: Iterable[tuple[str, Entry]],
    compute: Mapping[str, tuple[int, int]] | None = None,
    *,
    is_mixed: bool = False,
) -> Daemon | None:
    """Return the MPS control daemon or the time slice that a claim asks for, None for neither.

    Args:
        used: pairs of a request and its device, without devices of admin access.
        compute: the CUDA compute capability of GPUs by UUID.
        is_mixed: whether shares of one GPU's memory may have different sizes.
    """
    used = list(used)
    shared = [
        (config.limits, entry)
        for request, entry in used
        if (config := _config_of(found, request, entry)) and config.limits is not None
    ]
    if any(entry.share_mib for _, entry in used):
        if shared:
            raise RequestError(
                "the claim asks for a share of a GPU's memory and for an MPS configuration or a "
                "time slice, and can have only one of these",
                hint="leave out one of them",
            )
        return _of_share({entry for _, entry in used}, is_mixed=is_mixed)
    if not shared:
        return None
    if any(entry.place is not None for _, entry in shared):
        raise RequestError(
            "MPS is not supported for MIG devices that are made for the claim",
            hint="ask for a whole GPU; or make the MIG devices first and set MIG_DEVICES=existing",
        )
    limits = shared[0][0]
    if any(other != limits for other, _ in shared):
        raise RequestError(
            "the claim has different configurations of MPS or time slices, and can have only one",
            hint="use one claim for each configuration",
        )
    uuids = tuple(sorted({entry.uuid for _, entry in shared}))
    if limits._replace(multi_user=False, time_slice=0) != NO_LIMITS:
        _check_limits({entry.gpu for _, entry in shared}, compute or {})
    if len(uuids) > 1 and any(uuid.startswith(MIG) for uuid in uuids):
        raise RequestError(
            "an MPS control daemon serves either one MIG device or whole GPUs",
            hint="ask for each MIG device by a claim of its own",
        )
    return _checked_daemon(
        Daemon(
            resource=f"{CLAIMS}{uid}", uuids=uuids,
            limits=limits.of(uuids), percentage=limits.percentage, multi_user=limits.multi_user,
            time_slice=limits.time_slice,
        )
    )  # fmt: skip


def _checked_daemon(daemon: Daemon) -> Daemon:
    try:
        check(daemon)
    except ValueError as error:
        raise RequestError(
            f"MPS cannot serve {daemon.resource} with {', '.join(daemon.uuids)}"
        ) from error
    return daemon


def _of_share(entries: Collection[Entry], *, is_mixed: bool) -> Daemon:
    """Return the daemon of the GPU whose memory a claim shares.

    A default limit of the daemon holds for each client, whose variable can only lower it. So
    there is no default limit if sizes are mixed.
    """
    if len(entries) > 1:
        names = ", ".join(sorted(entry.device for entry in entries))
        raise RequestError(
            f"the claim has a share of a GPU's memory beside other devices ({names}), but a "
            "container can use only one MPS control daemon",
            hint="ask for each by a claim of its own, and use it in a container of its own",
        )
    (entry,) = entries
    limits = {} if is_mixed else {"0": entry.share_mib}
    return _checked_daemon(
        Daemon(resource=of_shares(entry.gpu), uuids=(entry.gpu,), limits=limits, multi_user=True)
    )


def _check_limits(gpus: Iterable[str], compute: Mapping[str, tuple[int, int]]) -> None:
    for uuid in sorted(gpus):
        major, minor = compute.get(uuid, UNKNOWN)
        if not has_limits((major, minor)):
            raise RequestError(
                f"{uuid} cannot limit MPS clients: its compute capability {major}.{minor} is "
                "below Volta's",
                hint="leave the limits out, or select cudaComputeCapability 7.0.0 or later",
            )


def _config_of(found: Sequence[Config], request: str, entry: Entry) -> Config | None:
    is_mig = entry.place is not None or entry.uuid.startswith(MIG)
    kind = MIG_CONFIG if is_mig else GPU_CONFIG
    for config in reversed(found):
        if config.names(request):
            if config.kind != kind:
                raise RequestError(
                    f"the configuration of request {request} is a {config.kind}, but "
                    f"{entry.device} needs a {kind}"
                )
            return config
        if not config.requests and config.kind == kind:
            return config
    return None


def _config(parameters: object) -> Config:
    if not isinstance(parameters, dict):
        raise RequestError("the claim's configuration is not an object")
    version, kind = str(parameters.get("apiVersion", "")), str(parameters.get("kind"))
    if version != VERSION or kind not in KINDS:
        raise RequestError(
            f"the claim's configuration has the unknown kind {version}/{kind}",
            hint=f"nvct's {DRIVER} knows {' and '.join(KINDS)} of {VERSION}",
        )
    _checked(parameters, ("apiVersion", "kind", "sharing"), "")
    if parameters.get("sharing") is None:
        return Config(kind)
    sharing = _checked(parameters["sharing"], KINDS[kind], "sharing")
    strategy = sharing.get("strategy", "")
    of_strategies = {TIME_SLICING: "timeSlicingConfig", MPS: "mpsConfig"}
    if not isinstance(strategy, str) or strategy not in of_strategies:
        raise RequestError(
            f"unknown sharing strategy {strategy!r}", hint=" or ".join(of_strategies)
        )
    for other, name in of_strategies.items():
        if other != strategy and sharing.get(name) is not None:
            raise RequestError(
                f"{name} of the claim's configuration does not apply to the strategy {strategy}",
                hint=f"remove it, or set sharing.strategy to {other}",
            )
    table = sharing.get(of_strategies[strategy])
    table = {} if table is None else table
    if strategy == MPS:
        return Config(kind, limits=limits_of(table))
    interval = _checked(table, ("interval",), "sharing.timeSlicingConfig").get("interval")
    interval = INTERVALS[0] if interval is None else interval
    if interval not in INTERVALS:
        raise RequestError(f"unknown interval {interval!r}", hint=f"one of {', '.join(INTERVALS)}")
    number = INTERVALS.index(interval)
    return Config(kind, limits=NO_LIMITS._replace(time_slice=number) if number else None)


class Limits(NamedTuple):
    """The limits of a claim's `mpsConfig`: threads and memory of each client.

    Fields and units are those of NVIDIA's DRA driver: memory counts in whole MiB, and a device is
    named by its UUID or by its place among the claim's devices in the order of their UUIDs.

    Attributes:
        percentage: of a GPU's threads; 0 for no limit.
        memory_mib: of each device; 0 for no limit.
        of_devices: memory in MiB of single devices by UUID or number, instead of `memory_mib`.
        multi_user: whether clients of several users run at the same time.
        time_slice: instead of MPS, see `Daemon`.
    """

    percentage: int
    memory_mib: int
    of_devices: Mapping[str, int]
    multi_user: bool = False
    time_slice: int = 0

    def of(self, uuids: Sequence[str]) -> dict[str, int]:
        """Return the memory limit of each device in MiB, by its place among the UUIDs."""
        places = {str(place): place for place in range(len(uuids))}
        places |= {uuid: place for place, uuid in enumerate(uuids)}
        limits = {str(place): self.memory_mib for place in range(len(uuids)) if self.memory_mib}
        for name, mib in self.of_devices.items():
            if name not in places:
                raise RequestError(
                    f"{OF_DEVICES} names {name!r}, which is not a device of the claim",
                    hint=f"use a number from 0 to {len(uuids) - 1}, or one of {', '.join(uuids)}",
                )
            limits[str(places[name])] = mib
        return limits


NO_LIMITS = Limits(0, 0, {})


def limits_of(table: object) -> Limits:
    """Return the limits of an `mpsConfig`."""
    config = _checked(table, (THREADS, MEMORY, OF_DEVICES, MULTI_USER), "sharing.mpsConfig")
    multi_user = config.get(MULTI_USER) or False
    if not isinstance(multi_user, bool):
        raise RequestError(f"{MULTI_USER} must be true or false, not {multi_user!r}")
    percentage = config.get(THREADS)
    if percentage is not None and not (type(percentage) is int and 0 < percentage <= 100):
        raise RequestError(f"{THREADS} must be a whole number from 1 to 100, not {percentage!r}")
    memory = config.get(MEMORY)
    devices = config.get(OF_DEVICES)
    if devices is None:
        devices = {}
    elif not isinstance(devices, dict):
        raise RequestError(f"{OF_DEVICES} is not an object")
    return Limits(
        percentage=percentage or 0,
        memory_mib=0 if memory is None else _mib(memory, MEMORY),
        of_devices={name: _mib(value, f"{OF_DEVICES}.{name}") for name, value in devices.items()},
        multi_user=multi_user,
    )


def _mib(value: object, name: str) -> int:
    is_text = isinstance(value, (str, int)) and not isinstance(value, bool)
    number = quantity.parse(str(value)) if is_text else None
    if number is None:
        raise RequestError(
            f"{name} is not a quantity: {value!r}", hint="write it like 4Gi or 512Mi"
        )
    if not MIB <= number <= MOST:
        raise RequestError(f"{name} must be from 1Mi to 1Pi, not {value}")
    return int(number) // MIB


def _checked(table: object, known: Collection[str], path: str) -> dict[str, Any]:
    """Return a table that a user has written; RequestError if it has an unknown field."""
    where = f"{path} of the claim's configuration" if path else "the claim's configuration"
    if not isinstance(table, dict):
        raise RequestError(f"{where} is not an object")
    unknown = sorted(str(name) for name in table.keys() - set(known))
    if unknown:
        raise RequestError(
            f"{where} has no field {unknown[0]}", hint=f"its fields are {', '.join(known)}"
        )
    return table
