# SPDX-License-Identifier: Apache-2.0
"""Names of the environment variables of the agent itself; docs/agent.md explains them."""

from __future__ import annotations

TASKS_ENV = "NVCT_AGENT_TASKS"
LISTEN_ENV = "NVCT_AGENT_LISTEN"
WORKER_ENV = "NVCT_AGENT_WORKER"
"""The socket of `nvct agent worker`, for the worker and for the agent."""
SOCKET_ENV = "NVCT_AGENT_SOCKET"
"""The agent's own socket; the agent sets it for its tasks."""
