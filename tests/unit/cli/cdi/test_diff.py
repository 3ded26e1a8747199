# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-ctk cdi diff, on hosts of plain files."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from nvct.errors import NvctError
from tests.support.shim_lab import Lab

pytestmark = pytest.mark.usefixtures("driver")


def run(lab: Lab, *args: str | Path, stdin: bytes = b"") -> Result:
    return lab.invoke("nvidia-ctk", *args, stdin=stdin)


def written(lab: Lab, *args: str) -> Path:
    path = lab.home / "own.yaml"
    result = run(lab, "cdi", "generate", "--output", path, *args)
    assert result.exit_code == 0, result.output
    return path


def test_two_specs_are_compared_by_device(lab: Lab) -> None:
    old = lab.spec("a.json")
    new = lab.spec("b.json", devices={"0": {"env": ["GPU=zero"]}, "2": {"env": ["GPU=2"]}})

    result = run(lab, "cdi", "diff", old, new)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "device 0",
        "  ~ env GPU: 0 -> zero",
        "device 1",
        "  - the device",
        "device 2",
        "  + the device",
    ]
    assert result.stderr == ""


def test_one_spec_may_come_from_stdin(lab: Lab) -> None:
    path = lab.spec()

    same = run(lab, "cdi", "diff", path, "-", stdin=path.read_bytes())

    assert (same.exit_code, same.stdout) == (0, "")
    assert same.stderr == f"no difference between {path} and -\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--device-name-strategy", "uuid,index", "--vendor", "acme.com", "--class", "chip"],
        ["--disable-hook", "all"],
    ],
    ids=" ".join,
)
def test_a_spec_is_as_the_live_host_in_whatever_manner_it_was_made(
    options: list[str], lab: Lab
) -> None:
    path = written(lab, *options)

    for pair in ((path, "live"), ("live", path)):
        result = run(lab, "cdi", "diff", *pair)
        assert result.exit_code == 0, result.stdout


def test_changes_on_the_host_are_reported(lab: Lab) -> None:
    path = written(lab)
    lab.host.gpu(2)
    (lab.home / "dev/nvidia0").unlink()

    result = run(lab, "cdi", "diff", path, "live")

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    uuids = [lab.host.uuid(index) for index in range(3)]
    assert lines[lines.index(f"device 0, {uuids[0]}") + 1] == "  - the device"
    assert lines[lines.index(f"device 2, {uuids[2]}") + 1] == "  + the device"
    assert f"  + node /dev/nvidia2 ({lab.home}/dev/nvidia2)" in lines
    assert "nvidia0" in result.stderr


def test_the_host_can_be_looked_at_elsewhere(lab: Lab) -> None:
    path = written(lab)
    (lab.home / "driver").rename(lab.home / "moved")

    result = run(lab, "cdi", "diff", path, "live", "--driver-root", lab.home / "moved")

    assert result.exit_code == 1
    assert f"{lab.home}/driver/" in result.stdout
    assert f"-> {lab.home}/moved/" in result.stdout


@pytest.mark.parametrize("args", [("live", "live"), ("-", "-")])
def test_comparing_a_spec_with_itself_is_a_usage_error(args: tuple[str, str], lab: Lab) -> None:
    result = run(lab, "cdi", "diff", *args)

    assert isinstance(result.exception, NvctError)
    assert result.exception.code == "usage"


def test_json_has_the_differences_of_each_place(lab: Lab) -> None:
    old = lab.spec("a.json")
    new = lab.spec("b.json", devices={"0": {"env": ["GPU=zero"]}})

    result = run(lab, "cdi", "diff", old, new, "--json")
    same = run(lab, "cdi", "diff", old, old, "--json")

    assert json.loads(result.stdout) == [
        {"where": "device 0", "differences": ["~ env GPU: 0 -> zero"]},
        {"where": "device 1", "differences": ["- the device"]},
    ]
    assert (result.exit_code, same.exit_code, json.loads(same.stdout)) == (1, 0, [])
