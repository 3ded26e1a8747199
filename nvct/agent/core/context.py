# SPDX-License-Identifier: Apache-2.0
"""What a task gets from the agent: sources of its settings, NVML, the log, what tasks share."""

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
    # of the GPUs; shared because NVML delivers each XID once; None if no task watches it
    health: HealthEngine | None = None
    # by kubeconfig; shared because TLS takes almost a megabyte for each connection
    clusters: dict[str, Cluster] = field(default_factory=dict)
    has_successor: bool = False  # whether tasks end because another instance serves this node next
    # what the ending tasks still do until that instance serves
    handing: set[asyncio.Task[None]] = field(default_factory=set)

    def hands_over(self, work: Work) -> bool:
        """If another instance serves next, begin a task's last work; return whether one does."""
        if self.has_successor:
            task = asyncio.create_task(work())
            self.handing.add(task)
            task.add_done_callback(self.handing.discard)
        return self.has_successor


@dataclass(frozen=True, kw_only=True)
class Context:
    """What one task gets: from the agent, or from its own program."""

    env: Mapping[str, str]
    client: NvmlClient
    journal: Log
    words: Sequence[str] = ()  # the command line of a program; the agent's tasks have none
    in_agent: bool = False  # whether the task runs in the agent, not in a program of its own
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
        """Return the settings, and log their warnings.

        UsageError or DocumentError if a setting is wrong.
        """
        return self.journal.warned(resolve(self.words, self.env))

    def connect(self, kubeconfig: str | None = None) -> Cluster:
        """Return the connection to the cluster of a kubeconfig, by default the environment's.

        Tasks of one process share the connection, and each of them closes it. ClusterError if
        the cluster cannot be accessed.
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
            driver_root: where the driver's root is mounted; / is used if it is not a folder.
            strategy: a key of MODES; with `auto` the machine's own mode is used.
        """
        from nvct.agent.machine.discovery import MODES, Discovery
        from nvct.agent.machine.driver_root import DEV_ROOT_ENV
        from nvct.host.roots import Roots

        root = driver_root if os.path.isdir(driver_root) else "/"
        roots = Roots(driver_root=root, dev_root=self.env.get(DEV_ROOT_ENV) or None)
        return Discovery(roots, self.client, mode=MODES.get(strategy))

    def health(self, settings: HealthSettings) -> HealthEngine:
        """Return the health engine of this node, which uses these settings from now on."""
        from nvct.agent.health.engine import HealthEngine
        from nvct.agent.health.store import Store

        if self.shared.health is not None:
            self.shared.health.use(settings)
            return self.shared.health
        for word in settings.table.checks.malformed:
            self.journal.warning(f"{word!r} is not an XID and has no effect")
        self.shared.health = HealthEngine(settings, self.journal, Store(self.folder))
        return self.shared.health
