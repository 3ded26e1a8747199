# SPDX-License-Identifier: Apache-2.0
"""Commands nvidia-ctk cdi list and validate."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from nvct.cdi import load
from nvct.cli.main import program
from nvct.paths import CONFIG_ENV
from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def lab() -> Generator[Lab]:
    made = Lab()
    yield made
    made.remove()


def run(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    runner = CliRunner()
    return runner.invoke(
        program("nvidia-ctk"), [str(arg) for arg in args], prog_name="nvidia-ctk", env=env
    )


# --- list ---


def listed(lab: Lab, *more: str) -> Result:
    return run("cdi", "list", "--spec-dir", f"{lab.home}/cdi,{lab.home}/cdi2", *more)


def test_devices_are_listed_one_a_line_and_sorted(lab: Lab) -> None:
    lab.spec()
    lab.spec("nic.json", folder="cdi2", kind="acme.com/nic")

    result = listed(lab)

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "acme.com/nic=0", "acme.com/nic=1", "nvidia.com/gpu=0", "nvidia.com/gpu=1",
    ]  # fmt: skip
    assert result.stderr == "found 4 CDI devices\n"


def test_the_folders_have_a_variable(lab: Lab) -> None:
    lab.spec()

    result = run(
        "cdi", "list", env={"NVIDIA_CTK_CDI_SPEC_DIRS": f"{lab.home}/cdi,{lab.home}/cdi2"}
    )

    assert result.stdout.splitlines() == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


def test_no_device_is_no_error(lab: Lab) -> None:
    result = listed(lab)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "found 0 CDI devices\n"


def test_what_cannot_be_used_is_told_on_stderr(lab: Lab) -> None:
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
    assert count == "found 1 CDI devices"


# --- validate ---


def test_valid_files_are_said_to_be_and_the_status_is_0(lab: Lab) -> None:
    lab.driver(gpus=2)
    path = lab.spec()
    env = {CONFIG_ENV: str(lab.config_toml)}
    run("cdi", "generate", "--output", lab.home / "own.yaml", env=env)

    result = run("cdi", "validate", path, lab.home / "own.yaml")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"valid: {path} (nvidia.com/gpu, 2 devices)",
        f"valid: {lab.home}/own.yaml (nvidia.com/gpu, 5 devices)",
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

    result = run("cdi", "validate", bad, good)

    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first.startswith(f"invalid: {bad}")
    assert second.startswith(f"valid: {good}")


def test_what_only_the_schema_refuses_is_invalid_too(lab: Lab) -> None:
    hooks = [{"hookName": "createContainer", "path": "relative", "env": ["A=b"]}]
    path = lab.spec(common={"hooks": hooks})
    load.load_file(str(path))

    result = run("cdi", "validate", path)

    assert result.exit_code == 1
    assert "containerEdits.hooks[0].path breaks the schema" in result.stdout


def test_a_file_that_is_not_there_is_invalid(lab: Lab) -> None:
    result = run("cdi", "validate", lab.home / "no.yaml")

    assert result.exit_code == 1
    assert result.stdout.startswith("invalid: ")


def test_no_file_is_a_usage_error() -> None:
    assert run("cdi", "validate").exit_code == 2
