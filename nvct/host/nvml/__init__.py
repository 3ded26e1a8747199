# SPDX-License-Identifier: Apache-2.0
"""One NVML session: its worker process, the protocol between them, a deadline per call."""
