# SPDX-License-Identifier: Apache-2.0
"""Keeps a GPU that hangs in NVML's reports, as it was reported last."""

from __future__ import annotations

from dataclasses import replace

from nvct.host.nvml.model import NvmlGpu, NvmlReport


class LastGpus:
    """The GPUs that one driver version has reported, by index."""

    def __init__(self) -> None:
        self.gpus: dict[str, NvmlGpu] = {}
        self._driver = ""

    def is_of(self, report: NvmlReport) -> bool:
        """Return whether a report is of the driver version that reported these GPUs."""
        return self._driver == report.driver_version

    def in_report(self, report: NvmlReport) -> NvmlReport:
        """Return a report completed by the GPUs that hang; remember its GPUs."""
        before = self.gpus if self.is_of(report) else {}
        self._driver = report.driver_version
        hanging = {index: before[index] for index in report.unanswered if index in before}
        self.gpus = {str(gpu.index): gpu for gpu in report.gpus} | hanging
        warnings = [
            f"GPU {index} does not answer: {_kept(before.get(index))}"
            for index in report.unanswered
        ]
        return replace(
            report,
            gpus=tuple(sorted(self.gpus.values(), key=lambda gpu: gpu.index)),
            warnings=(*report.warnings, *warnings),
        )


def _kept(gpu: NvmlGpu | None) -> str:
    """Return the end of the sentence about a GPU that hangs."""
    return f"{gpu.uuid} is shown as it was" if gpu else "it has never been reported"
