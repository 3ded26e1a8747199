# SPDX-License-Identifier: Apache-2.0
"""Engines as a kubelet has them: each is started again whenever it ends, as its unit has it."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from tests.engines import cri
from tests.engines.daemons import Containerd, Crio, Daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.engines.box import Box

LOOP = "while :; do {program}; sleep 0.2; done"
FIRST_CONTAINERD_WITH_USER_NAMESPACES = (2, 0)
"""For a kubelet that asks for them."""
WITHOUT_HUGETLB = """
[ ! -e /sys/fs/cgroup/hugetlb ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ] || exit 0
sed /^hugetlb/d /proc/cgroups > /run/cgroups
mount --bind /run/cgroups /proc/cgroups
"""
"""CRI-O asks for a limit on huge pages where /proc/cgroups lists the controller, and runc fails if
that is in a hierarchy of version 2 beside those of version 1."""


class Supervised(Daemon):
    """What they have in common.

    Attributes:
        program: its path or name.
        socket: of its CRI.
    """

    program: ClassVar[str]
    socket: ClassVar[str]

    def _command(self) -> list[str]:
        return ["/bin/sh", "-c", LOOP.format(program=self.program)]

    def reload(self) -> None:
        """End the engine; its supervisor starts it again, with its files as they are now."""
        log = f"{self.engine}.log"
        before = self._running()
        self.box.call("kill", *before)
        self.box.until(lambda: self._running() not in ([], before), log)
        self.box.until(self._answers, log)

    def answers(self) -> bool:
        """Tell whether its CRI can be used."""
        return self._answers()

    @abstractmethod
    def can_run_privileged(self) -> bool:
        """Tell whether a privileged container starts here."""

    @abstractmethod
    def has_user_namespaces(self) -> bool:
        """Tell whether a pod can have users of its own."""

    def _running(self) -> list[str]:
        return self.box.call("pgrep", "-x", self.engine).stdout.split()


class SupervisedContainerd(Supervised, Containerd):
    """containerd."""

    program = "/usr/bin/containerd"
    socket = cri.SOCKET

    def can_run_privileged(self) -> bool:
        return True  # with those capabilities that there are

    def has_user_namespaces(self) -> bool:
        return self.version() >= FIRST_CONTAINERD_WITH_USER_NAMESPACES


class SupervisedCrio(Supervised, Crio):
    """CRI-O."""

    program = "crio"
    socket = cri.CRIO_SOCKET

    def __init__(self, box: Box) -> None:
        super().__init__(box)
        done = box.call("sh", "-ec", WITHOUT_HUGETLB)
        assert done.returncode == 0, done

    def can_run_privileged(self) -> bool:
        """Tell whether this host has every capability: CRI-O asks for all."""
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        status = Path("/proc/self/status").read_text()
        bounding = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
        return int(bounding.split()[1], 16) == (1 << last + 1) - 1

    def has_user_namespaces(self) -> bool:
        """Tell whether runc says that it can mount with mapped users, which CRI-O asks it."""
        features = json.loads(self.box.call("runc", "features").stdout)
        extensions = features["linux"].get("mountExtensions", {})
        return bool(extensions.get("idmap", {}).get("enabled"))
