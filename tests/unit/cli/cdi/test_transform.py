# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-ctk cdi transform root."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from nvct.cdi.read import load
from nvct.errors import NvctError
from tests.support.commands import invoke

NODE = {"path": "/driver/dev/x"}
MOUNT = {"hostPath": "/driver/lib/l.so", "containerPath": "/driver/lib/l.so"}
HOOK = {"hookName": "createContainer", "path": "/driver/hook", "args": ["hook", "/driver/lib"]}


def document(**more: Any) -> dict[str, Any]:
    return {
        "cdiVersion": "0.3.0",
        "kind": "acme.com/chip",
        "devices": [{"name": "x", "containerEdits": {"deviceNodes": [NODE]}}],
        "containerEdits": {"mounts": [MOUNT], "hooks": [HOOK]},
        **more,
    }


def run(*args: str, stdin: str = "") -> Result:
    return invoke("nvidia-ctk", ["cdi", "transform", "root", *args], input=stdin)


def test_a_spec_goes_from_stdin_to_stdout() -> None:
    result = run("--from", "/driver", "--to", "/", stdin=json.dumps(document()))

    assert result.exit_code == 0, result.output
    moved = yaml.safe_load(result.stdout)
    assert moved["containerEdits"]["mounts"] == [{**MOUNT, "hostPath": "/lib/l.so"}]
    assert moved["containerEdits"]["hooks"] == [{**HOOK, "path": "/hook"}]
    assert moved["devices"][0]["containerEdits"]["deviceNodes"] == [{**NODE, "hostPath": "/dev/x"}]


def test_the_version_is_the_lowest_that_the_result_needs() -> None:
    up = run("--from", "/driver", "--to", "/", stdin=json.dumps(document()))
    down = run(
        "--from", "/driver", "--to", "/", "--relative-to", "container",
        stdin=json.dumps(document(cdiVersion="1.0.0", devices=[
            {"name": "x", "containerEdits": {"deviceNodes": [{**NODE, "hostPath": "/dev/x"}]}},
        ])),
    )  # fmt: skip

    assert yaml.safe_load(up.stdout)["cdiVersion"] == "0.5.0"
    assert yaml.safe_load(down.stdout)["cdiVersion"] == "0.3.0"


@pytest.mark.parametrize(
    ("name", "start"), [("out.json", "{"), ("out.yaml", "---"), ("out", "---")]
)
def test_files_are_read_and_written(name: str, start: str, tmp_path: Path) -> None:
    source = tmp_path / "in.yaml"
    source.write_text(yaml.safe_dump(document()))

    result = run(
        "--from=/driver", "--to=/d", "--relative-to=container",
        "--input", str(source), "--output", str(tmp_path / "out" / name),
    )  # fmt: skip

    (written,) = (tmp_path / "out").iterdir()
    assert result.stdout == ""
    assert result.stderr == f"wrote 1 device to {written}\n"
    assert written.read_text().startswith(start)
    spec = load.load_file(str(written))
    assert spec["containerEdits"]["mounts"] == [{**MOUNT, "containerPath": "/d/lib/l.so"}]


def test_the_same_file_may_be_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(document()))

    run("--from=/driver", "--to=/d", "--input", str(path), "--output", str(path))
    run("--from=/d", "--to=/driver", "--input", str(path), "--output", str(path))

    assert os.listdir(tmp_path) == ["x.yaml"]
    assert load.load_file(str(path)) == document()


@pytest.mark.parametrize(
    ("args", "stdin", "arguments"),
    [
        ([], "", "stdin is empty"),
        ([], json.dumps(document(extra=1)), "unknown field 'extra'"),
        (["--input", "/no/such.yaml"], "", "/no/such.yaml cannot be read"),
        (["--output", "/dev/null/x.yaml"], json.dumps(document()), "/dev/null/x.yaml"),
    ],
)
def test_unreadable_and_unwritable_files_are_errors(
    args: list[str], stdin: str, arguments: str
) -> None:
    result = run(*args, stdin=stdin)

    assert isinstance(result.exception, NvctError)
    assert arguments in result.exception.message
    assert result.stdout == ""


def test_an_unknown_side_is_a_usage_error() -> None:
    assert run("--relative-to", "moon", stdin=json.dumps(document())).exit_code == 2
