# SPDX-License-Identifier: Apache-2.0
"""The simulation's C parts, NVML (`nvml`), nvidia-smi (`smi`) and MPS's daemon (`mps`)."""
