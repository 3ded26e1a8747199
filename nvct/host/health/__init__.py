# SPDX-License-Identifier: Apache-2.0
"""Errors of GPUs and what each asks for: NVML's values, the table of XIDs."""
