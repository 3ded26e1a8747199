# SPDX-License-Identifier: Apache-2.0
"""The device plugin, and what depends on it."""

from tests.kubernetes.together import _nothing_of_other_files, cluster, node

__all__ = ["_nothing_of_other_files", "cluster", "node"]
