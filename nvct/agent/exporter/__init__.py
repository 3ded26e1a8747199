# SPDX-License-Identifier: Apache-2.0
"""The agent's task `exporter` (`dcgm-exporter`): samples of NVML, pods -> metrics."""
