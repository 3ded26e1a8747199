# SPDX-License-Identifier: Apache-2.0
"""Its task and program `dcgm-exporter`: samples of NVML, pods -> metrics."""
