# SPDX-License-Identifier: Apache-2.0
"""The agent's task `labels` (`gpu-feature-discovery`): facts of a node -> labels."""
