# SPDX-License-Identifier: Apache-2.0
"""NVML for the agent: client, supervisor, the worker's container, verbs that change MIG."""
