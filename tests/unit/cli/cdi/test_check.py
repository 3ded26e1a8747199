# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-ctk cdi check, on hosts of plain files."""

import json
from pathlib import Path

from click.testing import Result

from nvct.errors import NvctError
from tests.support.host_tree import VERSION
from tests.support.shim_lab import Lab


def run(lab: Lab, *args: str | Path, **env: str) -> Result:
    return lab.invoke("nvidia-ctk", "cdi", *args, **env)


def generate(lab: Lab, name: str = "cdi/nvidia.yaml") -> Path:
    path = lab.home / name
    result = run(lab, "generate", "--output", path)
    assert result.exit_code == 0, result.output
    return path


def test_what_drifted_is_a_line_each_and_status_1(lab: Lab) -> None:
    lab.driver(gpus=2)
    path = generate(lab)
    (lab.home / "driver/usr/bin/nvidia-smi").unlink()
    lab.hook.unlink()
    lab.host.gpu(2)

    result = run(lab, "check")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{path}: {lab.home}/driver/usr/bin/nvidia-smi is gone",
        f"{path}: its hook {lab.hook} is missing",
        f"no CDI spec gives GPU 2 ({lab.host.uuid(2)})",
    ]
    assert result.stderr.splitlines()[-1] == (
        "1 spec, 5 devices: 3 differences from the host; run nvidia-ctk cdi generate to update "
        "NVIDIA's"
    )


def test_a_driver_that_is_gone_is_one_line(lab: Lab) -> None:
    lab.driver(gpus=1)
    path = generate(lab)
    (lab.home / "driver").rename(lab.home / "gone")
    (lab.home / "driver").mkdir()
    (lab.home / "proc/driver/nvidia/version").unlink()

    result = run(lab, "check")

    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    said = "and the kernel module nvidia is not loaded: modprobe nvidia; "
    assert line.startswith(f"{path}: it is for driver {VERSION}, {said}")
    assert line.endswith(" more differences with this cause")
    assert "warning: no NVIDIA driver" in result.stderr
    assert len(json.loads(run(lab, "check", "--json").stdout)["drift"]) > 2


def test_a_host_without_a_driver_has_nothing_to_say_about_other_vendors(lab: Lab) -> None:
    (lab.home / "driver").mkdir()
    lab.spec(kind="acme.com/nic")

    result = run(lab, "check")

    assert (result.exit_code, result.output) == (
        0,
        "1 spec, 2 devices: no difference from the host\n",
    )


def test_a_driver_root_that_is_named_has_a_driver(lab: Lab) -> None:
    result = run(lab, "check", "--driver-root", "/nonexistent/driver")

    assert isinstance(result.exception, NvctError)
    assert "/nonexistent/driver" in result.exception.message
    assert "--driver-root" in result.exception.hint


def test_json_has_the_same_in_parts(lab: Lab) -> None:
    lab.driver(gpus=1)
    path = generate(lab)
    smi = lab.home / "driver/usr/bin/nvidia-smi"
    smi.unlink()

    result = run(lab, "check", "--format", "json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "specs": 1,
        "devices": 3,
        "drift": [
            {
                "kind": "file-gone",
                "source": str(path),
                "path": str(smi),
                "devices": [],
                "sentence": f"{smi} is gone",
                "text": f"{path}: {smi} is gone",
                "reason": "SpecificationStale",
            }
        ],
    }


def test_the_folders_can_be_named(lab: Lab) -> None:
    lab.driver(gpus=1)
    generate(lab, "other/nvidia.yaml")
    folder = str(lab.home / "other")

    assert run(lab, "check").exit_code == 1
    assert run(lab, "check", "--spec-dir", folder).exit_code == 0
    assert run(lab, "check", NVIDIA_CTK_CDI_SPEC_DIRS=folder).exit_code == 0


def test_a_name_has_no_effect_on_a_terminal(lab: Lab) -> None:
    lab.driver(gpus=1)
    folder = lab.home / "low\x1b[2J"
    folder.mkdir()
    for place, name in ((folder, "\x1b]0;x\x07.yaml"), (lab.home / "cdi", "high.yaml")):
        path = place / name
        lab.spec(devices={"0": {"env": ["A=b"]}}).rename(path)

    result = run(lab, "check", f"--spec-dir={folder}", f"--spec-dir={lab.home}/cdi")

    assert "\\x1b[2J" in result.stdout + result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_a_name_of_a_file_stays_on_its_line(lab: Lab) -> None:
    (lab.home / "driver").mkdir()
    mount = {"hostPath": "/no/such\nfile", "containerPath": "/f"}
    path = lab.spec(devices={"0": {"mounts": [mount]}}, kind="acme.com/nic")

    assert run(lab, "check").stdout == f"{path}: /no/such\\nfile is gone\n"


def test_quiet_leaves_what_drifted(lab: Lab) -> None:
    lab.driver(gpus=1)

    result = lab.invoke("nvct", "--quiet", "cdi", "check")

    assert result.exit_code == 1
    assert result.output == f"no CDI spec gives GPU 0 ({lab.host.uuid(0)})\n"


def test_warnings_about_the_host_go_to_stderr_and_are_no_drift(lab: Lab) -> None:
    lab.driver(gpus=1)
    (lab.home / "dev/nvidia-uvm-tools").unlink()
    generate(lab)

    result = run(lab, "check")

    assert (result.exit_code, result.stdout) == (
        0,
        "1 spec, 3 devices: no difference from the host\n",
    )
    assert f"warning: {lab.home}/dev/nvidia-uvm-tools is not a device node" in result.stderr
