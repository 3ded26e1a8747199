# SPDX-License-Identifier: Apache-2.0
"""A cluster of its own: its driver is unloaded, and other files' tests need theirs whole."""

from tests.kubernetes.chart.conftest import cluster, node

__all__ = ["cluster", "node"]
