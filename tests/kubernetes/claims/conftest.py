# SPDX-License-Identifier: Apache-2.0
"""Claims, and the DRA driver."""

from tests.kubernetes.together import _nothing_of_other_files, cluster, node

__all__ = ["_nothing_of_other_files", "cluster", "node"]
