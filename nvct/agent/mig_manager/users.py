# SPDX-License-Identifier: Apache-2.0
"""Makes failed MIG devices again; stops the host's services before a change, and restarts them.

A MIG device that has failed is made again when no pod uses it; the other MIG devices of the GPU
stay. The health of the GPUs shows which have failed: an XID names a GPU instance and asks for a
reset. A device that has failed too often is not made again.

Only services need systemd. The stopped services are listed on disk, so that an agent that was
killed starts them when it runs again. Programs with fewer rights can change that file, so only
services that the administrator has listed are started.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence

from nvct.agent.core import yaml_file
from nvct.agent.core.logs import Log
from nvct.agent.health.engine import HealthEngine
from nvct.agent.kubernetes.node_pods import Pods
from nvct.agent.mig_manager.work import Work
from nvct.errors import DocumentError, HostError, NvctError
from nvct.kernel.shared_folder import SharedFolder
from nvct.mig.apply import HeldError

TIMES, WINDOW_S = 3, 3600.0  # How often a GPU instance is made again, and in what time


class Renewals:
    """Makes the failed MIG devices of a machine again."""

    def __init__(
        self, health: Callable[[], HealthEngine | None], work: Work, pods: Pods, log: Log
    ) -> None:
        self._health, self._work, self._pods, self._log = health, work, pods, log
        self._made: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._problem = ""

    async def run(self, in_thread: Callable[..., Awaitable[object]]) -> None:
        """Make failed MIG devices again that no pod uses.

        ClusterError, HostError or NvmlError if it is not known which devices pods have.
        `in_thread`: runs a function that changes MIG.
        """
        health = self._health()
        broken = health.broken_instances() if health else ()
        if health is None or not broken:
            return
        devices = await self._pods.devices()
        used = {(each.gpu, each.instance[0]) for each in devices if each.instance}
        for gpu, gi in sorted(set(broken) - used):
            if not self._is_allowed(gpu, gi):
                continue
            name = f"GPU instance {gi} of {gpu}"
            try:
                await in_thread(self._work.renew, gpu, gi)
            except HeldError as error:
                self._complain(f"{name} has failed and is in use: {error.message}")
                continue
            except NvctError as error:
                self._complain(f"{name} has failed and cannot be made again: {error.message}")
            else:
                self._log.info(f"{name} had failed: it was destroyed and made again")
                health.note_renewed(gpu, gi)
            self._made[gpu, gi].append(time.monotonic())

    def _is_allowed(self, gpu: str, gi: int) -> bool:
        now = time.monotonic()
        made = self._made[gpu, gi] = [at for at in self._made[gpu, gi] if now - at < WINDOW_S]
        if len(made) >= TIMES:
            self._complain(
                f"GPU instance {gi} of {gpu} has failed again: it was made again {TIMES} times in "
                "an hour, and is left as it is"
            )
        return len(made) < TIMES

    def _complain(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self._log.warning(text)


STOPPED = "mig-stopped-services.json"
LIMIT_S = 60.0


class HostServices:
    """The services of one host; HostError if systemd or the disk refuses.

    Args:
        root: where the host's root is mounted; "/" is used if that is not a folder.
        clients_file: lists the services, "" for none.
        folder: of the file that lists the stopped ones.
    """

    def __init__(self, root: str, clients_file: str, folder: str) -> None:
        self._root = root if os.path.isdir(root) else "/"
        self._clients_file = clients_file
        self._folder = folder

    def stop(self) -> None:
        """Stop the services that run, and list them on disk."""
        runs = ("is-active", "--quiet")
        active = [name for name in self._names() if not self._run(*runs, name).returncode]
        if active:
            with self._opened() as folder:
                folder.write(STOPPED, json.dumps(active).encode(), sync=True)
            self._systemctl("stop", *active)

    def start(self) -> None:
        """Start the services that were stopped."""
        if not os.path.lexists(f"{self._folder}/{STOPPED}"):
            return
        try:
            with self._opened() as folder:
                stopped = json.loads(folder.read(STOPPED))
        except (ValueError, RecursionError):
            return
        names = [name for name in self._names() if isinstance(stopped, list) and name in stopped]
        if names:
            self._systemctl("start", *names)
        with self._opened() as folder:
            folder.unlink(STOPPED)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[SharedFolder]:
        try:
            with SharedFolder.open(self._folder) as folder:
                yield folder
        except OSError as error:
            path = f"{self._folder}/{STOPPED}"
            raise HostError(
                f"the list of stopped services, {path}, cannot be used: {error.strerror}"
            ) from error

    def reboot(self) -> None:
        """Reboot the host."""
        self._systemctl("reboot")

    def _names(self) -> Sequence[str]:
        if not self._clients_file:
            return ()
        document = yaml_file.load(self._clients_file, "the list of GPU clients")
        table = {} if document is None else document
        services = (table.get("systemd-services") or []) if isinstance(table, dict) else None
        if not isinstance(services, list):
            raise DocumentError(
                f"{self._clients_file} lists no services",
                hint="it needs the keys version and systemd-services",
            )
        return tuple(map(str, services))

    def _systemctl(self, *words: str) -> None:
        done = self._run(*words)
        if done.returncode:
            reason = " ".join(done.stderr.split())
            raise HostError(f"systemctl {' '.join(words)} of the host fails: {reason}")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["systemctl", *words]
        if self._root != "/":
            command = ["chroot", self._root, *command]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(f"{' '.join(command)} fails: {error}") from error
