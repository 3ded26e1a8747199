# SPDX-License-Identifier: Apache-2.0
"""Discovery of what this machine has: driver, GPUs, NVML, Tegra, WSL."""
