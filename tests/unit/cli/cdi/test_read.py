# SPDX-License-Identifier: Apache-2.0
"""Commands nvidia-ctk cdi list and validate."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from nvct.cdi.read import load
from nvct.errors import UsageError
from tests.support.shim_lab import Lab


def run(lab: Lab, *args: str | Path, **more: Any) -> Result:
    return lab.invoke("nvidia-ctk", "cdi", *args, **more)


# --- list ---


def listed(lab: Lab, *more: str) -> Result:
    return run(lab, "list", "--spec-dir", f"{lab.home}/cdi,{lab.home}/cdi2", *more)


def test_devices_are_listed_one_a_line_and_sorted(lab: Lab) -> None:
    lab.spec()
    lab.spec("nic.json", folder="cdi2", kind="acme.com/nic")

    result = listed(lab)

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "acme.com/nic=0", "acme.com/nic=1", "nvidia.com/gpu=0", "nvidia.com/gpu=1",
    ]  # fmt: skip
    assert result.stderr == "Found 4 CDI devices\n"


def test_unusable_files_are_reported_on_stderr(lab: Lab) -> None:
    lab.spec("a.json")
    lab.spec("b.json", devices={"0": {"env": ["A=b"]}})
    (lab.home / "cdi/bad.yaml").write_text("kind: [")

    result = listed(lab)

    assert result.stdout.splitlines() == ["nvidia.com/gpu=1"]
    bad, conflict, count = result.stderr.splitlines()
    assert bad.startswith(f"warning: {lab.home}/cdi/bad.yaml")
    assert conflict == (
        f"warning: nvidia.com/gpu=0 is defined by {lab.home}/cdi/a.json and {lab.home}/cdi/b.json"
    )
    assert count == "Found 1 CDI devices"


# --- validate ---

# What a spec of 0.5.0 is too new for.
WHY = "will refuse it: 0.5.0 because of a device name that begins with a digit"
OLD = [f"  CRI-O before 1.25.0 {WHY}", f"  Podman before 4.3.0 {WHY}"]


def test_valid_files_are_reported_and_the_status_is_0(lab: Lab) -> None:
    lab.driver(gpus=2)
    path = lab.spec()
    run(lab, "generate", "--output", lab.home / "own.yaml")

    result = run(lab, "validate", path, lab.home / "own.yaml")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"valid: {path} (nvidia.com/gpu, 2 devices)",
        *OLD,
        f"valid: {lab.home}/own.yaml (nvidia.com/gpu, 5 devices)",
        *OLD,
    ]


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"cdiVersion": "9.9.9", "kind": "a.com/b", "devices": []}'],
    ids=["no json", "empty", "version"],
)
def test_one_invalid_file_makes_the_status_1_and_the_others_are_checked(
    text: str, lab: Lab
) -> None:
    good, bad = lab.spec(), lab.home / "bad.json"
    bad.write_text(text)

    result = run(lab, "validate", bad, good)

    assert result.exit_code == 1
    first, second, *_notes = result.stdout.splitlines()
    assert first.startswith(f"invalid: {bad}")
    assert second.startswith(f"valid: {good}")


def test_what_only_the_schema_refuses_is_invalid_too(lab: Lab) -> None:
    hooks = [{"hookName": "createContainer", "path": "relative", "env": ["A=b"]}]
    path = lab.spec(common={"hooks": hooks})
    load.load_file(str(path))

    result = run(lab, "validate", path)

    assert result.exit_code == 1
    assert "containerEdits.hooks[0].path breaks the schema" in result.stdout


GIDS = {"additionalGids": [44]}


def newer(lab: Lab, name: str = "gpu.json") -> Path:
    """Write a spec that needs CDI 0.7.0."""
    path = lab.spec(name, common=GIDS)
    path.write_text(path.read_text().replace("0.5.0", "0.7.0"))
    return path


def test_engines_that_are_too_old_are_a_note(lab: Lab) -> None:
    result = run(lab, "validate", newer(lab))

    assert result.exit_code == 0
    assert (
        "  Docker before 25.0.17 and from 26.0.0 before 26.1.0 will refuse it: "
        "0.7.0 because of additionalGids"
    ) in result.stdout.splitlines()


def test_an_engine_that_is_named_and_refuses_makes_the_status_1(lab: Lab) -> None:
    path = newer(lab)

    result = run(lab, "validate", path, NVIDIA_CTK_CDI_VALIDATE_ENGINES="docker=26.0,podman=5.4")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"valid: {path} (nvidia.com/gpu, 2 devices)",
        "  Docker 26.0 will refuse it: 0.7.0 because of additionalGids",
    ]


def test_an_engine_that_is_named_and_reads_it_is_no_note(lab: Lab) -> None:
    path = newer(lab)

    result = run(lab, "validate", path, "--engine", "docker=26.1", "--engine=containerd=2.1")
    unknown = run(lab, "validate", path, "--engine", "lxc=5")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"valid: {path} (nvidia.com/gpu, 2 devices)"]
    assert isinstance(unknown.exception, UsageError)


def test_a_file_whose_name_no_engine_looks_at_is_noted(lab: Lab) -> None:
    path = newer(lab, "x.yml")

    result = run(lab, "validate", path, "--engine", "docker=29.2")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == [
        "  no engine reads it: its name does not end in .json or .yaml"
    ]


def test_a_spec_can_come_from_stdin(lab: Lab) -> None:
    data = newer(lab).read_bytes()

    good = run(lab, "validate", "-", stdin=data)
    bad = run(lab, "validate", "-", stdin=b"kind: [")

    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert good.stdout.startswith("valid: stdin (nvidia.com/gpu, 2 devices)\n")
    assert bad.stdout.startswith("invalid: stdin ")
