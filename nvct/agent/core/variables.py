# SPDX-License-Identifier: Apache-2.0
"""Names of the environment variables of the agent itself; docs/agent.md explains them."""

from __future__ import annotations

from collections.abc import Mapping

from nvct.errors import UsageError

TASKS_ENV = "NVCT_AGENT_TASKS"
LISTEN_ENV = "NVCT_AGENT_LISTEN"
WORKER_ENV = "NVCT_AGENT_WORKER"
"""The socket of `nvct agent worker`, for the worker and for the agent."""
SOCKET_ENV = "NVCT_AGENT_SOCKET"
"""The agent's own socket; the agent sets it for its tasks."""
RELEASE_ENV = "NVCT_RELEASE"
"""A mark of what was installed together, where agent and worker are pods of their own."""
UPGRADES_ENV = "NVCT_DRIVER_UPGRADES"
"""true where the pod goes with the label nvidia.com/gpu.deploy.client, on which NVIDIA's driver
manager waits, and where the Node is watched though no task obeys a label of it."""
GRACE_ENV = "NVCT_AGENT_GRACE_S"
"""How long the pod may take to end (terminationGracePeriodSeconds)."""
GRACE_S = 30
"""Kubernetes's default."""


def grace_s(env: Mapping[str, str]) -> int:
    """Return how long this pod may take to end, in seconds.

    Raises:
        UsageError: the variable is no number.
    """
    text = env.get(GRACE_ENV, "") or str(GRACE_S)
    if not text.isdecimal() or not text.isascii():
        raise UsageError(f"{GRACE_ENV}={text!r} is no number of seconds", hint="as 30")
    return int(text)
