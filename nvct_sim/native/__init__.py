# SPDX-License-Identifier: Apache-2.0
"""Builds what is simulated in C: NVML (`nvml`), `nvidia-smi` (`smi`), MPS's daemon (`mps`)."""
