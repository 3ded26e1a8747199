# SPDX-License-Identifier: Apache-2.0
"""What a task is made of: its settings' sources, NVML, the log, and what tasks share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from nvct.agent.core.logs import Log
from nvct.paths import AGENT_DIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.core.resources_mode import ResourcesMode
    from nvct.agent.health.engine import HealthEngine
    from nvct.agent.health.settings import Settings as HealthSettings
    from nvct.agent.kubernetes.cluster import Cluster
    from nvct.agent.machine.discovery import Discovery
    from nvct.agent.nvml.client import NvmlClient

SOCKET_ENV = "NVCT_AGENT_SOCKET"  # The agent's own socket; the agent sets it for its tasks
T = TypeVar("T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def node_name(env: Mapping[str, str]) -> str:
    """Return the name of this Node."""
    return env.get("NODE_NAME") or os.uname().nodename


@dataclass()
class Shared:
    """What the tasks of one process share."""

    mode: ResourcesMode | None = None  # which task offers the GPUs; None if only one of them can
    # of the GPUs, because NVML delivers each XID once; None if no task watches it
    health: HealthEngine | None = None
    # by kubeconfig: each connection has TLS's own memory, near a megabyte
    clusters: dict[str, Cluster] = field(default_factory=dict)
    has_successor: bool = False  # whether tasks end because another instance serves this node next
    # what they still do until it serves
    handing: set[asyncio.Task[None]] = field(default_factory=set)

    def hands_over(self, work: Work) -> bool:
        """Begin a task's last work if another instance serves next; return whether it does."""
        if self.has_successor:
            task = asyncio.create_task(work())
            self.handing.add(task)
            task.add_done_callback(self.handing.discard)
        return self.has_successor


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a task is made of."""

    env: Mapping[str, str]
    client: NvmlClient
    journal: Log
    words: Sequence[str] = ()  # the command line of a program; the agent's tasks have none
    in_agent: bool = False  # whether this is the agent, else the task is alone in a program
    status: Callable[[], dict[str, Any]] = dict
    shared: Shared = field(default_factory=Shared)

    @property
    def node(self) -> str:
        """Return the name of this Node."""
        return node_name(self.env)

    @property
    def folder(self) -> str:
        """Return the folder of the agent's own files."""
        return os.path.dirname(self.env.get(SOCKET_ENV, "")) or AGENT_DIR

    def load(
        self, resolve: Callable[[Sequence[str], Mapping[str, str]], tuple[T, Iterable[str]]]
    ) -> T:
        """Return the settings, log warnings; UsageError or DocumentError if a setting is wrong."""
        return self.journal.warned(resolve(self.words, self.env))

    def connect(self, kubeconfig: str | None = None) -> Cluster:
        """Return the cluster of a kubeconfig, or of the one in the environment.

        Tasks of one process share it, and each of them closes it. ClusterError if there is no
        access to it.
        """
        from nvct.agent.kubernetes import cluster  # lightkube, 12 MB

        named = self.env.get("KUBECONFIG", "") if kubeconfig is None else kubeconfig
        known = self.shared.clusters.get(named)
        if known is None or not known.share():
            known = self.shared.clusters[named] = cluster.connect(named, self.env)
        return known

    def discovery(self, driver_root: str, strategy: str = "auto") -> Discovery:
        """Return the discovery of the machine below /proc and /sys.

        Args:
            driver_root: where the driver's root is mounted; no folder stands for /.
            strategy: of MODES; `auto` is the machine's own.
        """
        from nvct.agent.machine.discovery import MODES, Discovery
        from nvct.agent.machine.driver_root import DEV_ROOT_ENV
        from nvct.host.roots import Roots

        root = driver_root if os.path.isdir(driver_root) else "/"
        roots = Roots(driver_root=root, dev_root=self.env.get(DEV_ROOT_ENV) or None)
        return Discovery(roots, self.client, mode=MODES.get(strategy))

    def health(self, settings: HealthSettings) -> HealthEngine:
        """Return the health of this node's GPUs, with these settings from now on."""
        from nvct.agent.health.engine import HealthEngine
        from nvct.agent.health.store import Store

        if self.shared.health is not None:
            self.shared.health.use(settings)
            return self.shared.health
        for word in settings.table.checks.malformed:
            self.journal.warning(f"{word!r} is no XID: it has no effect")
        self.shared.health = HealthEngine(settings, self.journal, Store(self.folder))
        return self.shared.health
