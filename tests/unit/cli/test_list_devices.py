# SPDX-License-Identifier: Apache-2.0
"""Command nvct list, on hosts of plain files."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from nvct.compile import live_host
from nvct.config import load
from nvct.errors import NvctError, UsageError
from nvct.host import listing
from tests.support.host_tree import LIB, VERSION
from tests.support.shim_lab import Lab


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=1)
    return lab


def run(lab: Lab, *args: str | Path) -> Result:
    return lab.invoke("nvct", "list", *args)


def shown(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + str(result.exception)
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_default_is_a_table_with_reasons(lab: Lab) -> None:
    lines = run(lab).stdout.splitlines()

    assert lines[0].split() == ["KIND", "CAPABILITY", "PATH", "REASON"]
    assert lines[1].split()[:3] == ["gpu", "0", lab.host.uuid(0)]
    (smi,) = [line for line in lines if line.startswith("binary ") and "nvidia-smi" in line]
    assert smi.split()[:3] == ["binary", "utility", f"{lab.home}/driver/usr/bin/nvidia-smi"]
    assert not [line for line in lines if line.startswith("left out")]


def test_a_terminal_is_as_wide_as_the_table(lab: Lab) -> None:
    inventory = live_host.discover(load.load(str(lab.config_toml), required=True))
    folded = listing.as_table(inventory, width=60)

    assert max(map(len, folded.splitlines())) <= 60
    squeezed = "".join(folded.split())
    assert inventory.files
    assert [file.host_path for file in inventory.files if file.host_path not in squeezed] == []
    assert listing.as_table(inventory, width=10_000) == listing.as_table(inventory)


def test_all_lists_excluded_files_too(lab: Lab) -> None:
    plain, whole = run(lab, "--format", "json"), run(lab, "--format", "json", "--all")

    assert "left_out" not in shown(plain)
    left_out = {entry["path"]: entry["reason"] for entry in shown(whole)["left_out"]}
    assert left_out[f"{lab.home}/driver/usr/bin/nvidia-settings"]
    assert [x for x in run(lab, "--all").stdout.splitlines() if x.startswith("left out")]


def test_capabilities_filter(lab: Lab) -> None:
    flag = shown(run(lab, "--format", "json", "--capabilities", "utility", "--all"))
    unknown = run(lab, "--capabilities", "fast")

    paths = [file["container_path"] for file in flag["files"]]
    assert "/usr/bin/nvidia-smi" in paths
    assert f"/{LIB}/libcuda.so.{VERSION}" not in paths
    excluded = f"{lab.home}/driver/{LIB}/libcuda.so.{VERSION}"
    assert [entry["path"] for entry in flag["left_out"] if entry["path"] == excluded] == [excluded]
    assert isinstance(unknown.exception, UsageError)


def test_modes_and_config_files_that_are_not_there_are_errors(lab: Lab) -> None:
    assert isinstance(run(lab, "--mode", "nosuch").exception, UsageError)
    assert isinstance(run(lab, "--config", "/no/such.toml").exception, NvctError)
    assert run(lab, "--format", "xml").exit_code == 2


def test_paths_without_a_bind_argument_are_reported_on_stderr(lab: Lab) -> None:
    (lab.home / "driver").rename(lab.home / "a:b")

    result = run(lab, "--format", "bind", "--driver-root", lab.home / "a:b")

    assert "warning: '/usr/bin/nvidia-smi' cannot be written as SRC:DST:OPTIONS" in result.stderr
    assert "nvidia-smi" not in result.stdout
    assert "/dev/nvidia0:rwm" in result.stdout
