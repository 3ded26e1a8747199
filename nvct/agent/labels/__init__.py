# SPDX-License-Identifier: Apache-2.0
"""Its task and program `gpu-feature-discovery`: facts of a node -> labels."""
