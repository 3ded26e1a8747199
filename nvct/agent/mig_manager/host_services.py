# SPDX-License-Identifier: Apache-2.0
"""Services of the host that use GPUs: stopped before a change of MIG, and started after it.

Only these need systemd. Which ones were stopped is on disk: an agent that was killed starts them
when it runs again. Programs with fewer rights may change that file: only services that the admin
has listed are started.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence

from nvct.agent.core import yaml_file
from nvct.errors import DocumentError, HostError
from nvct.kernel.shared_folder import SharedFolder

STOPPED = "mig-stopped-services.json"
LIMIT_S = 60.0


class HostServices:
    """The services of one host.

    Args:
        root: where the host's root is mounted; "/" is used if that is no folder.
        clients_file: lists the services, "" for none.
        folder: of the file that says which are stopped.
    """

    def __init__(self, root: str, clients_file: str, folder: str) -> None:
        self._root = root if os.path.isdir(root) else "/"
        self._clients_file = clients_file
        self._folder = folder

    def stop(self) -> None:
        """Stop those that run.

        Raises:
            HostError: one cannot be stopped, or there is no systemd.
            DocumentError: the file is malformed.
        """
        active = [name for name in self._names() if self._is_active(name)]
        if active:
            with self._opened() as folder:
                folder.write(STOPPED, json.dumps(active).encode(), sync=True)
            self._systemctl("stop", *active)

    def start(self) -> None:
        """Start those that were stopped.

        Raises:
            HostError: one cannot be started, or the file cannot be used; it is tried again with
                the next call.
            UnsafePathError: the file is a link, or others could have written it.
        """
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
        """Open the folder of the file."""
        try:
            with SharedFolder.open(self._folder) as folder:
                yield folder
        except OSError as error:
            path = f"{self._folder}/{STOPPED}"
            raise HostError(
                f"the list of stopped services, {path}, cannot be used: {error.strerror}"
            ) from error

    def reboot(self) -> None:
        """Reboot the host.

        Raises:
            HostError: it cannot be rebooted.
        """
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
                hint="it has the keys version and systemd-services",
            )
        return tuple(map(str, services))

    def _is_active(self, name: str) -> bool:
        return self._run("is-active", "--quiet", name).returncode == 0

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
