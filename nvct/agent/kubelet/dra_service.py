# SPDX-License-Identifier: Apache-2.0
"""The gRPC services of a DRA driver, and its registration.

The kubelet finds the registration socket in its folder, asks for the driver's name, and then calls
the driver's own socket. One server answers on both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from nvct import errors
from nvct.agent.core.logs import sentence
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet.service import Context, Handler, Server, bound, stream, unary
from nvct.errors import NvctError

Health: TypeAlias = Mapping[tuple[str, str], str]
T = TypeVar("T")

VERSIONS = ("v1", "v1beta1")
"""Of the service, the preferred one first: kubelets of 1.34 and later, of 1.32 and 1.33."""
TYPE = "DRAPlugin"
HEALTH = "v1alpha1.DRAResourceHealth"
REGISTRATION = "pluginregistration.Registration"
NVCT = "nvct.DRAPlugin"  # A service that only nvct's drivers have: they recognize each other by it
HEALTH_S = 1.0  # Between two looks whether the devices' health has changed
BELIEVED_S = 30  # How long the kubelet relies on a report of health; the next one comes earlier


class ClaimRef(NamedTuple):
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


class PreparedDevice(NamedTuple):
    """A device of a claim, ready for containers."""

    requests: tuple[str, ...]  # names of the claim's requests that the device is for
    pool: str
    device: str
    cdi: tuple[str, ...]  # the CDI devices that give it to a container
    share: str = ""  # id of the claim's share of the device, "" if it has all


class Driver(Protocol):
    """What the kubelet calls: see `nvct.agent.dra.task.DraDriver`."""

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """Make the devices of a claim ready."""

    async def unprepare(self, claim: ClaimRef) -> None:
        """Undo `prepare`."""

    def health(self) -> Health:
        """Return why pods cannot use a device, "" if they can, by pool and device."""

    def registered(self, problem: str) -> None:
        """Take the kubelet's answer to the registration, "" if it accepts the driver."""


def server(driver: Driver, name: str, endpoint: str, sockets: Iterable[str]) -> Server:
    """Return a server of a driver that is bound to sockets, and not started.

    `endpoint`: path of the driver's socket, as the kubelet sees it.
    """
    services = {
        REGISTRATION: _registration(driver, name, endpoint),
        HEALTH: {
            "NodeWatchResources": stream(
                _watch_of(driver),
                api.NodeWatchResourcesRequest,
                api.NodeWatchResourcesResponse,
            )
        },
        **{f"k8s.io.kubelet.pkg.apis.dra.{v}.{TYPE}": _claims(driver) for v in VERSIONS},
    }
    return bound(services, NVCT, sockets)


def _registration(driver: Driver, name: str, endpoint: str) -> dict[str, Handler]:
    async def info(_request: api.InfoRequest, _context: Context) -> object:
        return api.PluginInfo(
            type=TYPE, name=name, endpoint=endpoint,
            supported_versions=[*(f"{version}.{TYPE}" for version in VERSIONS), HEALTH],
        )  # fmt: skip

    async def notify(status: api.RegistrationStatus, _context: Context) -> object:
        refused = status.error or "the kubelet gives no reason"
        driver.registered("" if status.plugin_registered else refused)
        return api.RegistrationStatusResponse()

    return {
        "GetInfo": unary(info, api.InfoRequest, api.PluginInfo),
        "NotifyRegistrationStatus": unary(
            notify, api.RegistrationStatus, api.RegistrationStatusResponse
        ),
    }


def _claims(driver: Driver) -> dict[str, Handler]:
    async def prepare(request: api.NodePrepareResourcesRequest, _context: Context) -> object:
        response = api.NodePrepareResourcesResponse()
        for ref, devices, problem in await _each(request.claims, driver.prepare):
            answer = response.claims[ref.uid]
            answer.error = problem
            for one in devices or ():
                answer.devices.add(
                    request_names=one.requests, pool_name=one.pool, device_name=one.device,
                    cdi_device_ids=one.cdi, share_id=one.share or None,
                )  # fmt: skip
        return response

    async def unprepare(request: api.NodeUnprepareResourcesRequest, _context: Context) -> object:
        response = api.NodeUnprepareResourcesResponse()
        for ref, _, problem in await _each(request.claims, driver.unprepare):
            response.claims[ref.uid].error = problem
        return response

    return {
        "NodePrepareResources": unary(
            prepare, api.NodePrepareResourcesRequest, api.NodePrepareResourcesResponse
        ),
        "NodeUnprepareResources": unary(
            unprepare, api.NodeUnprepareResourcesRequest, api.NodeUnprepareResourcesResponse
        ),
    }


def _watch_of(driver: Driver) -> Callable[..., AsyncIterator[api.NodeWatchResourcesResponse]]:
    async def watch(
        _request: api.NodeWatchResourcesRequest, _context: Context
    ) -> AsyncIterator[api.NodeWatchResourcesResponse]:
        known: Health | None = None
        due = 0.0
        while True:
            current, now = driver.health(), time.monotonic()
            if current != known or now >= due:
                known, due = current, now + BELIEVED_S / 2
                yield _health_of(current)
            await asyncio.sleep(HEALTH_S)

    return watch


def _health_of(problems: Health) -> api.NodeWatchResourcesResponse:
    response = api.NodeWatchResourcesResponse()
    for (pool, device), problem in problems.items():
        response.devices.add(
            device=api.DeviceIdentifier(pool_name=pool, device_name=device),
            health=api.UNHEALTHY if problem else api.HEALTHY,
            last_updated_time=int(time.time()),
            health_check_timeout_seconds=BELIEVED_S,
            message=problem,
        )
    return response


async def _each(
    claims: Iterable[api.Claim], work: Callable[[ClaimRef], Awaitable[T]]
) -> list[tuple[ClaimRef, T | None, str]]:
    """Do work for each claim; return the claim, the result, and why the work failed or ""."""

    async def one(claim: api.Claim) -> tuple[ClaimRef, T | None, str]:
        ref = ClaimRef(claim.namespace, claim.name, claim.uid)
        try:
            return ref, await work(ref), ""
        except Exception as error:  # it fails only this claim
            known = error if isinstance(error, NvctError) else errors.unexpected(error)
            return ref, None, sentence(known)

    return list(await asyncio.gather(*map(one, claims)))
