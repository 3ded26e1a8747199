# SPDX-License-Identifier: Apache-2.0
"""Closes this agent's NVML handles while somebody else needs the GPUs, or the driver, unused.

A MIG mode can change, and a GPU can be reset, only while nobody has the GPU open. Meanwhile,
requests to NVML wait. The agent's own MIG manager uses the same session, and needs none of this.

A driver can be replaced only while nobody has any of its files open. That takes longer, so
requests are refused meanwhile, see `NvmlClient.let_go`. Two things ask for it: a file, which
`nvct agent release` writes, with a time at which the request expires; and the labels of the Node,
by the protocol of NVIDIA's driver manager (k8s-driver-manager, cmd/driver-manager/main.go). When
neither asks for it any longer, the new driver may still be missing: the agent refuses requests
until one is loaded, for LOADING_S at most.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

from nvct.agent.core.instance import FOLDER
from nvct.agent.core.logs import Log
from nvct.agent.machine.folder_watch import FolderWatch
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError, NvctError, NvmlError, UnsafePathError
from nvct.host import procfs
from nvct.host.nvml.messages import REPLACED
from nvct.host.roots import Roots
from nvct.kernel.shared_folder import SharedFolder
from nvct.mig import pause

LOOK_S = 0.2
"""Between two looks at an announced change, and at the folder if inotify does not report."""
RETRY_S = 5.0
LIMIT_S = 300  # How long a change may keep others waiting; the reset of a GPU takes most of it
NOT_YET = f"{REPLACED}: NVML does not answer yet"
FILE = "driver-release.json"
LONGEST_S = 24 * 3600  # How long a request may last: the most that --limit takes
FILE_LIMIT = 1 << 10  # Bytes of the file that are read
LOADING_S = 900.0  # How long to wait for a driver: a driver container may compile its modules
FILES_S, FILES_LOOK_S = 120.0, 1.0
"""How long to wait for NVML with a loaded module, and between two questions: a driver container
that keeps the module removes its folder and brings it back."""
DEPLOY = "nvidia.com/gpu.deploy."
PAUSED = "paused-for-driver-upgrade"
"""A paused label's value if it was "true"; other values, except "false", get it as a suffix."""
STATE = "nvidia.com/gpu-driver-upgrade-state"
UPGRADING = ("pod-deletion-required", "drain-required", "node-maintenance-required",
             "pod-restart-required")  # fmt: skip
"""States from the removal of pods to the restart of the driver's pod (k8s-operator-libs,
pkg/upgrade/consts.go)."""


class Release:
    """Closes NVML in this process while somebody needs the GPUs or the driver unused."""

    def __init__(
        self,
        client: NvmlClient,
        journal: Log,
        folder: str = FOLDER,
        has_driver: Callable[[], bool] = lambda: bool(procfs.driver_version(Roots())),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._journal, self._folder = client, journal, folder
        self._has_driver, self._clock = has_driver, clock
        self._node: dict[str, Any] | None = None
        self._loading_until = 0.0
        self._is_replaced = False
        self._retry_at = self._ask_at = 0.0

    def see(self, node: dict[str, Any] | None) -> None:
        """Remember a Node as it is now; None, for a deleted one, changes nothing."""
        self._node = node or self._node

    async def follow(self) -> None:
        """Obey until canceled."""
        with FolderWatch() as changes:
            while True:
                if _wants_gpu(self._folder):
                    await self._release_gpu()
                await self.look()
                await changes.wait([self._folder], LOOK_S)

    async def look(self) -> None:
        """Let the driver go, or use it again, if it is time for that."""
        client, reason = self._client, self._why()
        if reason and not client.refusal and pause.read(self._folder):
            return  # let a change of MIG end first, because half of it would be worse
        if not reason and client.refusal:
            reason = await self._why_not_yet()
        if not reason and client.refusal:
            self._journal.info("a driver is there again: this agent uses NVML from now on")
        client.refusal, client.is_let_go = reason, client.is_let_go and bool(reason)
        if not reason or client.is_let_go or self._clock() < self._retry_at:
            return
        try:
            await client.let_go(reason)
            if reason != NOT_YET:
                self._journal.info(f"NVML is closed: {reason}")
        except NvctError as error:
            self._journal.warning(f"this agent still uses the driver: {error.message}")
            self._retry_at = self._clock() + RETRY_S

    def _why(self) -> str:
        """Return why the driver must not be used now, "" if it may be."""
        now, is_loaded = self._clock(), self._has_driver()
        reason = of_file(self._folder, now) or (
            of_labels(self._node, by_state=not self._is_replaced) if self._node else ""
        )
        if reason:
            self._loading_until = now + LOADING_S
            self._is_replaced |= not is_loaded
        elif self._client.refusal and not is_loaded and now < self._loading_until:
            return f"{REPLACED}: none is loaded yet"
        elif self._node and not of_labels(self._node, by_state=True):
            self._is_replaced = False
        return reason

    async def _why_not_yet(self) -> str:
        """Return why a loaded driver cannot be used yet, "" if NVML answers or the wait is over.

        Also "" if this process chooses the library, which a task does at its next look.
        """
        if self._client.chooses_library:
            return ""
        now = self._clock()
        if now < self._ask_at:
            return NOT_YET
        try:
            with self._client.ending():
                await self._client.report()
        except NvctError:
            self._ask_at = now + FILES_LOOK_S
            return NOT_YET if now < self._loading_until - LOADING_S + FILES_S else ""
        return ""

    async def _release_gpu(self) -> None:
        """Close NVML for an announced change of MIG, until that ends."""
        try:
            async with self._client.released(LIMIT_S):
                self._journal.info("NVML is closed while another program changes MIG")
                end = time.monotonic() + LIMIT_S
                while (  # noqa: ASYNC110 - nothing reports a file lock
                    _wants_gpu(self._folder) and time.monotonic() < end
                ):
                    await asyncio.sleep(LOOK_S)
        except NvmlError as error:
            self._journal.warning(
                f"NVML stays open while another program changes MIG: {error.message}"
            )
            await asyncio.sleep(RETRY_S)


def request(limit_s: int, folder: str) -> None:
    """Ask the agent of this node to let go of the driver, for `limit_s` at most.

    HostError if the request cannot be written; UnsafePathError if the folder is a link or a file.
    """
    document = json.dumps({"until": time.monotonic() + limit_s})
    try:
        with SharedFolder.open(folder, create=0o700) as shared:
            shared.write(FILE, document.encode())
    except OSError as error:
        raise _failure(f"{folder}/{FILE} cannot be written", error) from error


def withdraw(folder: str) -> bool:
    """Let the agent of this node use the driver again; return whether there was a request.

    HostError if the request cannot be removed; UnsafePathError if the folder is a link or a file.
    """
    try:
        with SharedFolder.open(folder) as shared:
            os.stat(FILE, dir_fd=shared.fd, follow_symlinks=False)
            shared.unlink(FILE)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failure(f"{folder}/{FILE} cannot be removed", error) from error
    return True


def _failure(what: str, error: OSError) -> HostError:
    hint = "run it as root" if isinstance(error, PermissionError) else ""
    return HostError(f"{what}: {error.strerror}", hint=hint)


def of_file(folder: str, now: float) -> str:
    """Return why the file of `nvct agent release` forbids the driver's use, "" if it does not.

    `now`: by the clock of `time.monotonic`, which all processes of a host share.
    """
    try:
        with SharedFolder.open(folder) as shared:
            until = json.loads(shared.read(FILE, FILE_LIMIT))["until"]
        is_now = isinstance(until, (int, float)) and 0 < until - now <= LONGEST_S
    except (OSError, UnsafePathError, LookupError, TypeError, ValueError, OverflowError,
            RecursionError):  # fmt: skip
        return ""
    return f"{REPLACED}, as `nvct agent release` says" if is_now else ""


def of_labels(node: dict[str, Any], *, by_state: bool) -> str:
    """Return why the labels of a Node forbid the use of the driver, "" if they do not.

    `by_state`: whether the label of the upgrade's state counts. It changes late: only when the
    driver's pod is Ready.
    """
    labels = node["metadata"].get("labels") or {}
    paused = sorted(
        key
        for key, value in labels.items()
        if key.startswith(DEPLOY) and (value == PAUSED or value.endswith(f"_{PAUSED}"))
    )
    if paused:
        return f"{REPLACED}: label {paused[0]} is {labels[paused[0]]}"
    if by_state and labels.get(STATE) in UPGRADING:
        return f"{REPLACED}: label {STATE} is {labels[STATE]}"
    return ""


def _wants_gpu(folder: str) -> bool:
    """Return whether another program changes a GPU so that none of its MIG devices stays."""
    announced = pause.read(folder, of_others=True)
    return any(not instances for instances in announced.values())
