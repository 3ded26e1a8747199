# SPDX-License-Identifier: Apache-2.0
"""A cluster of its own: its driver is unloaded, and other files' tests need theirs whole."""

from tests.kubernetes.chart.conftest import _nothing_of_other_files, cluster, node

__all__ = ["_nothing_of_other_files", "cluster", "node"]
