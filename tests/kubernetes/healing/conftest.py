# SPDX-License-Identifier: Apache-2.0
"""GPUs that fail: each file ends with the driver and the agent's files as they were at first."""

from tests.kubernetes.together import _nothing_of_other_files, cluster

__all__ = ["_nothing_of_other_files", "cluster"]
