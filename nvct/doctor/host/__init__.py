# SPDX-License-Identifier: Apache-2.0
"""The host: its driver, GPUs, kernel and kubelet."""
