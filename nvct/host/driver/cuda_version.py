# SPDX-License-Identifier: Apache-2.0
"""The CUDA version that a driver supports, by the driver's branch, without NVML."""

from __future__ import annotations

# From NVIDIA's "CUDA Toolkit, driver and architecture matrix"; for 595 and 615, the result of
# their libcuda's cuDriverGetVersion.
OF_BRANCH = {
    410: "10.0", 418: "10.1", 440: "10.2", 450: "11.0", 455: "11.1", 460: "11.2", 465: "11.3",
    470: "11.4", 495: "11.5", 510: "11.6", 515: "11.7", 520: "11.8", 525: "12.0", 530: "12.1",
    535: "12.2", 545: "12.3", 550: "12.4", 555: "12.5", 560: "12.6", 565: "12.7", 570: "12.8",
    575: "12.9", 580: "13.0", 590: "13.1", 595: "13.2", 615: "13.4",
}  # fmt: skip


def of_driver(version: str) -> str:
    """Return the CUDA version of a driver's branch, "" if the branch is unknown."""
    branch = version.partition(".")[0]
    return OF_BRANCH.get(int(branch), "") if branch.isascii() and branch.isdigit() else ""
