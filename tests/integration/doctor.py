# SPDX-License-Identifier: Apache-2.0
"""What test_doctor.py runs inside a simulated node."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from nvct.cdi.read import load
from tests.integration import inside
from tests.integration.inside import configure
from tests.support.cpu import at_most
from tests.support.processes import captured

CHECKED = "gpus,module,driver,nvml,health,mig,specs,hooks,plans,folders,management"
"""What a simulated node has of its own; its engines and units are those of the test's host."""
UVM = "/dev/nvidia-uvm"
SPEC = "/var/run/cdi/nvidia.yaml"


def doctor(*words: str) -> tuple[int, dict[str, list[str]]]:
    """Return the exit status, and the reasons of the faults by check."""
    done = captured(["nvct", "doctor", "--only", CHECKED, "--json", *words])
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
    with at_most(2.0):
        subprocess.run(["nvct", "doctor"], check=False, capture_output=True)
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
    os.environ["NVCT_STATE_DIR"] = str(work / "state")
    assert doctor("--fix") == (0, {})
    assert os.stat(UVM).st_rdev == numbers

    subprocess.run(["nvct", "doctor", "--undo"], check=True, capture_output=True)
    assert not os.path.exists(UVM)
    assert doctor() == (status, faults)
    assert doctor("--fix") == (0, {})


def publishes_again(work: Path) -> None:
    configure(work)
    text = published()
    write(text.replace("580.159.04", "570.1.1"))

    status, faults = doctor()
    assert status == 1
    assert "SpecificationStale" in faults["specs"]

    undo_and_fix(work)
    with open(SPEC, encoding="utf-8") as file:
        assert file.read() == text
    container_has_gpus(work, 7 + 7)


def gives_hooks_an_environment(work: Path) -> None:
    configure(work)
    published()
    spec: dict[str, Any] = dict(load.load_file(SPEC))
    hooks = [*spec["containerEdits"]["hooks"]]
    for hook in hooks:
        hook.pop("env", None)
    write(json.dumps(spec))

    status, faults = doctor()
    assert (status, faults) == (1, {"hooks": ["HookWithoutEnvironment"] * len(hooks)})
    assert doctor("--security")[1] == faults

    os.environ["NVCT_STATE_DIR"] = str(work / "state")
    assert doctor("--fix") == (0, {})
    container_has_gpus(work, 7 + 7)


def gives_each_gpu(work: Path) -> None:
    configure(work)
    published()
    spec: dict[str, Any] = dict(load.load_file(SPEC))
    spec["devices"] = [one for one in spec["devices"] if one["name"] == "1"]
    write(json.dumps(spec))

    assert "SpecificationIncomplete" in doctor()[1]["specs"]

    os.environ["NVCT_STATE_DIR"] = str(work / "state")
    assert doctor("--fix") == (0, {})
    container_has_gpus(work, 7 + 7)


def tells_of_gpus_that_fail(work: Path) -> None:
    configure(work)
    done = captured(["nvct", "doctor", "--only", "health", "--json"])
    (told,) = json.loads(done.stdout)
    seen = {one["evidence"].rpartition(",")[0]: one["severity"] for one in told["findings"]}
    assert done.returncode == 1
    assert seen["GPU 0000:18:00: XID 79 (GPU has fallen off the bus)"] == "warning"
    assert seen["GPU 0000:2a:00: XID 31 (GPU memory page fault)"] == "note"
    evidence = [one["evidence"] for one in told["findings"]]
    assert "the driver has GPU 0000:5d:00.0, but NVML does not list it" in evidence


def published() -> str:
    """Publish a specification; return its text."""
    subprocess.run(["nvct", "publish"], check=True, capture_output=True)
    with open(SPEC, encoding="utf-8") as file:
        return file.read()


def undo_and_fix(work: Path) -> None:
    """Mend the specification, bring its fault back by --undo, and mend it again."""
    with open(SPEC, "rb") as file:
        broken = file.read()
    faults = doctor()
    os.environ["NVCT_STATE_DIR"] = str(work / "state")
    assert doctor("--fix") == (0, {})
    subprocess.run(["nvct", "doctor", "--undo"], check=True, capture_output=True)
    with open(SPEC, "rb") as file:
        assert file.read() == broken
    assert doctor() == faults
    assert doctor("--fix") == (0, {})


def write(text: str) -> None:
    with open(SPEC, "w", encoding="utf-8") as file:
        file.write(text)


def container_has_gpus(work: Path, number: int) -> None:
    """Run a container by the CDI devices of the specification that was mended."""
    asks = ["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"]
    done = inside.run(work, inside.make(work, "mended", "nvidia-smi -L", env=asks))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= number, done.stdout
