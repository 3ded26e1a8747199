# SPDX-License-Identifier: Apache-2.0
"""Engines for a kubelet: each is restarted when it ends, as its systemd unit does."""

import json
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from tests.engines import cri
from tests.engines.box import Box
from tests.engines.daemons import Containerd, Crio, Daemon

LOOP = "while :; do {program}; sleep 0.2; done"
FIRST_CONTAINERD_WITH_USER_NAMESPACES = (2, 0)
"""For pods of a kubelet."""
WITHOUT_HUGETLB = """
[ ! -e /sys/fs/cgroup/hugetlb ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ] || exit 0
sed /^hugetlb/d /proc/cgroups > /run/cgroups
mount --bind /run/cgroups /proc/cgroups
"""
"""CRI-O sets a limit on huge pages if /proc/cgroups lists the controller, and runc fails if the
controller is in a version 2 hierarchy beside those of version 1."""

WITHOUT_PODMAN = """
mount --bind /bin/false /usr/bin/podman
for folder in /etc/containers /usr/share/containers; do mount -t tmpfs none $folder; done
"""
"""A node with CRI-O has neither Podman, which loads the images here, nor its files."""


class Supervised(Daemon):
    """Base class of the supervised engines."""

    program: ClassVar[str]
    socket: ClassVar[str]

    def _command(self) -> list[str]:
        return ["/bin/sh", "-c", LOOP.format(program=self.program)]

    def reload(self) -> None:
        """End the engine; its supervisor starts it again, with its current files."""
        log = f"{self.engine}.log"
        before = self._running()
        self.box.call("kill", *before)
        self.box.until(lambda: self._running() not in ([], before), log)
        self.box.until(self._answers, log)

    def answers(self) -> bool:
        """Report whether its CRI answers."""
        return self._answers()

    @abstractmethod
    def can_run_privileged(self) -> bool:
        """Report whether a privileged container starts here."""

    @abstractmethod
    def has_user_namespaces(self) -> bool:
        """Report whether a pod can have a user namespace."""

    def _running(self) -> list[str]:
        return self.box.call("pgrep", "-x", self.engine).stdout.split()


class SupervisedContainerd(Supervised, Containerd):
    """containerd."""

    program = "/usr/bin/containerd"
    socket = cri.SOCKET

    def can_run_privileged(self) -> bool:
        return True  # with the available capabilities

    def has_user_namespaces(self) -> bool:
        return self.version() >= FIRST_CONTAINERD_WITH_USER_NAMESPACES


class SupervisedCrio(Supervised, Crio):
    """CRI-O."""

    program = "crio"
    socket = cri.CRIO_SOCKET

    def __init__(self, box: Box) -> None:
        super().__init__(box)
        completed = box.call("sh", "-ec", WITHOUT_HUGETLB)
        assert completed.returncode == 0, completed

    def _load(self) -> None:
        super()._load()
        completed = self.box.call("sh", "-ec", WITHOUT_PODMAN)
        assert completed.returncode == 0, completed

    def can_run_privileged(self) -> bool:
        """Report whether this host has all capabilities, which CRI-O requests."""
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        status = Path("/proc/self/status").read_text()
        bounding = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
        return int(bounding.split()[1], 16) == (1 << last + 1) - 1

    def has_user_namespaces(self) -> bool:
        """Report whether runc reports ID-mapped mounts, which CRI-O queries."""
        features = json.loads(self.box.call("runc", "features").stdout)
        extensions = features["linux"].get("mountExtensions", {})
        return bool(extensions.get("idmap", {}).get("enabled"))
