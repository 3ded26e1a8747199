# SPDX-License-Identifier: Apache-2.0
"""Tasks of the agent on a node whose engine is as it was."""

from tests.kubernetes.together import _nothing_of_other_files, cluster

__all__ = ["_nothing_of_other_files", "cluster"]
