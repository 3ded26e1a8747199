# SPDX-License-Identifier: Apache-2.0
"""Makes the task `condition` from the agent's environment."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvct.agent.condition.task import NodeCondition
    from nvct.agent.logs import Log
    from nvct.agent.tasks import Document

KUBECONFIG, NODE_NAME = "KUBECONFIG", "NODE_NAME"


def make(
    env: Mapping[str, str], journal: Log, status: Document, tasks: Sequence[str]
) -> NodeCondition:
    """Return the task.

    Args:
        env: KUBECONFIG, without which it is the pod's service account; NODE_NAME, without which
            it is this host's name.
        journal: the agent's log.
        status: returns what the agent's /status shows.
        tasks: names of the tasks that pods need to get GPUs.
    """
    from nvct.agent.condition.task import NodeCondition
    from nvct.agent.kubernetes import cluster  # lightkube, 12 MB

    def connect() -> cluster.Cluster:
        return cluster.connect(env.get(KUBECONFIG, ""), env)

    node = env.get(NODE_NAME) or os.uname().nodename
    return NodeCondition(connect, node, status, journal, tasks)
