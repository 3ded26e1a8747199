# SPDX-License-Identifier: Apache-2.0
"""Sharing by CUDA MPS: which daemons a node needs, the process that keeps them, its program."""
