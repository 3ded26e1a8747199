# SPDX-License-Identifier: Apache-2.0
"""One agent serves a node: a lock, and how a newer instance takes it over.

The instance that serves holds the lock and answers on the socket. A newer one asks it to hand
over, takes the lock, and serves. The older one runs on without tasks: if it ended, its container
would be started again, and would ask in turn. It serves again when nobody holds the lock,
because the newer one was killed. Programs with fewer rights can change the folder, see
`shared_folder`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from nvct.agent.kubelet.pod_resources import SOCKET as SOCKET_OF_KUBELET
from nvct.agent.kubelet.pod_resources import PodResources
from nvct.agent.web import http
from nvct.errors import HostError
from nvct.kernel.shared_folder import SharedFolder
from nvct.paths import AGENT_DIR

POD_ENV = "KUBERNETES_SERVICE_HOST"  # The kubelet sets it in every pod
POD = re.compile(r"(?P<owner>.+-)[a-z0-9]{5}")  # The name of a DaemonSet's pod
MARGIN_S = 5  # A pod's agent that serves on ends so long before the pod must have ended
LOOK_S, LOOKS = 0.25, 5
"""Between two questions to the kubelet, and how many: it knows a pod once that is scheduled."""
FOLDER = AGENT_DIR
LOCK, SOCKET = "agent.lock", "agent.sock"
YIELD, HAND_OVER = "/yield", "/hand-over"
"""Requests to the instance that serves: HAND_OVER if the one that asks serves next."""
OK = 200
YIELD_S = 15.0  # How long the older instance may take to end its tasks
POLL_S = 0.05
ASK_S = 1.0  # Between two requests to the older instance: it takes a free lock after GRACE_S
GRACE_S = 1.0
"""How long an instance that yielded leaves the lock to the one that asked for it."""
STANDBY_S = 0.2  # Between two looks of an instance that stands by whether the lock is free


class Instance:
    """This process as a candidate for serving the node.

    UnsafePathError if the folder is a link or a file; OSError if it cannot be made.
    """

    def __init__(self, folder: str = FOLDER) -> None:
        with SharedFolder.open(folder, create=0o700) as shared:
            shared.remove_abandoned()
        self.socket = f"{folder}/{SOCKET}"
        self._folder = folder
        self._fd = -1

    async def take(self, *, to_serve: bool = True) -> None:
        """Take the lock; ask an older instance to yield.

        HostError if that does not yield, or the lock is not a regular file with one name.
        `to_serve`: this instance serves next, so the older one's offers to the kubelet may stay.
        """
        end = time.monotonic() + YIELD_S
        ask_at = 0.0
        while not self._try():
            now = time.monotonic()
            if now > end:
                raise HostError(
                    f"another agent holds {self._folder}/{LOCK} and does not yield",
                    hint="stop it, or see its state: nvct agent --status",
                )
            if now > ask_at:
                with contextlib.suppress(OSError):
                    if not to_serve or (await http.ask(self.socket, "POST", HAND_OVER))[0] != OK:
                        await http.ask(self.socket, "POST", YIELD)  # of an older release
                    ask_at = now + ASK_S
            await asyncio.sleep(POLL_S)

    async def stand_by(self, *, in_pod: bool) -> bool:
        """Wait until the lock is free, and take it; return False if nvct has left this node.

        In a pod, wait on even then, because the kubelet would start the container again.
        """
        await asyncio.sleep(GRACE_S)
        while not self._try(create=False):
            if not (in_pod or os.path.lexists(f"{self._folder}/{LOCK}")):  # noqa: ASYNC240
                return False
            await asyncio.sleep(STANDBY_S)
        return True

    def release(self) -> None:
        """Let another instance serve."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _try(self, *, create: bool = True) -> bool:
        try:
            with SharedFolder.open(self._folder) as folder:
                self._fd = folder.try_lock(LOCK, create=create)
        except OSError as error:
            if create or not isinstance(error, FileNotFoundError):
                raise HostError(
                    f"{self._folder}/{LOCK} cannot be locked: {error.strerror}"
                ) from error
        return self._fd >= 0


async def successor_is_coming(
    env: Mapping[str, str], host: str, socket: str = SOCKET_OF_KUBELET
) -> bool:
    """Return whether the kubelet has a newer pod of this pod's DaemonSet, which will take over.

    A DaemonSet with a surge keeps an old pod until the new one is Ready, but only if the old one
    is Ready. Otherwise it deletes the old one as soon as the new one exists, even before the new
    one is scheduled (pkg/controller/daemon/daemon_controller.go of Kubernetes,
    podsShouldBeOnNode). False also if this is not a pod, or the kubelet does not answer. `host`:
    this host's name, which in a pod is the pod's name.
    """
    kubelet, end = PodResources(socket), time.monotonic() + LOOKS * LOOK_S
    if not env.get(POD_ENV) or not kubelet.is_there():
        return False
    try:
        while not _has_other(await kubelet.pods(), host):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(LOOK_S)
        return True
    except HostError:
        return False
    finally:
        await kubelet.close()


def _has_other(pods: Iterable[str], host: str) -> bool:
    own = POD.fullmatch(host)
    others = (POD.fullmatch(name) for name in pods if name != host)
    return own is not None and any(other and other["owner"] == own["owner"] for other in others)


def status() -> Mapping[str, Any]:
    """Return /status of this node's agent. Its fields are not checked.

    HostError if no agent runs, or this user may not ask it.
    """
    path = f"{FOLDER}/{SOCKET}"
    try:
        _, body = asyncio.run(http.ask(path, "GET", "/status"))
    except PermissionError as error:
        raise HostError(f"{path} answers only root", hint="run this command as root") from error
    except OSError as error:
        raise HostError(
            f"no agent answers on {path}: {error.strerror or error}", hint="nvct agent starts one"
        ) from error
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise HostError(f"the program that answers on {path} is not an agent")
    return document
