# SPDX-License-Identifier: Apache-2.0
"""What test_doctor.py runs inside a simulated node."""

from __future__ import annotations

import json
import os
import subprocess

from tests.integration.inside import configure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

CHECKED = "gpus,driver,nvml,mig,specs,plans,folders"
"""What a simulated node has of its own; its engines and units are those of the test's host."""
UVM = "/dev/nvidia-uvm"


def doctor(*words: str) -> tuple[int, dict[str, list[str]]]:
    """Return the exit status, and the reasons of the faults by check."""
    done = subprocess.run(
        ["nvct", "doctor", "--only", CHECKED, "--json", *words],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    told = {
        check["name"]: [
            one["reason"] for one in check["findings"] if one["severity"] in ("warning", "error")
        ]
        for check in json.loads(done.stdout)
    }
    print(done.stderr)
    return done.returncode, {name: reasons for name, reasons in told.items() if reasons}


def heals_what_it_found(work: Path) -> None:
    configure(work)
    assert doctor() == (0, {})
    subprocess.run(["nvct", "publish"], check=True, capture_output=True)
    assert doctor() == (0, {})
    numbers = os.stat(UVM).st_rdev
    os.unlink(UVM)
    os.unlink("/dev/nvidia3")

    status, faults = doctor()
    assert status == 1
    assert "DeviceNodesMissing" in faults["driver"]
    assert "DeviceNodesMissing" in faults["specs"]

    assert doctor("--fix", "--dry-run")[0] == 1
    assert not os.path.exists(UVM)
    assert doctor("--fix") == (0, {})
    assert os.stat(UVM).st_rdev == numbers


def publishes_again(work: Path) -> None:
    configure(work)
    path = "/var/run/cdi/nvidia.yaml"
    subprocess.run(["nvct", "publish"], check=True, capture_output=True)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("580.159.04", "570.1.1"))

    status, faults = doctor()
    assert status == 1
    assert "SpecificationStale" in faults["specs"]

    assert doctor("--fix") == (0, {})
    with open(path, encoding="utf-8") as file:
        assert file.read() == text
