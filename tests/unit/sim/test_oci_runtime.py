# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.oci_runtime: the hook that shows the node's files to containers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import BundleError, HostError
from nvct.linux.kernel import KERNEL
from nvct_sim import oci_runtime, run_folder
from nvct_sim.bundle import config
from nvct_sim.oci_runtime import python_command

OTHER = {"path": "/usr/bin/other", "args": ["other"]}


def write(folder: Path, **more: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**config(["/bin/true"]), **more}), encoding="utf-8")
    return path


def hooks(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return list(document.get("hooks", {}).get("createContainer", []))


def test_the_hook_is_the_first_and_has_the_root_as_argument(tmp_path: Path) -> None:
    path = write(tmp_path, hooks={"createContainer": [OTHER], "poststop": [OTHER]})

    oci_runtime.add_hook(str(path), KERNEL)

    first, *others = hooks(path)
    assert others == [OTHER]
    assert first["path"] == sys.executable
    assert first["args"][-1] == f"{tmp_path}/rootfs"
    assert json.loads(path.read_text())["hooks"]["poststop"] == [OTHER]


def test_an_absolute_root_stays(tmp_path: Path) -> None:
    path = write(tmp_path, root={"path": "/var/lib/merged"})

    oci_runtime.add_hook(str(path), KERNEL)

    assert hooks(path)[0]["args"][-1] == "/var/lib/merged"


def test_a_second_edit_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    oci_runtime.add_hook(str(path), KERNEL)
    before = path.read_bytes()

    oci_runtime.add_hook(str(path), KERNEL)

    assert path.read_bytes() == before
    assert len(hooks(path)) == 1


@pytest.mark.parametrize(
    "more", [{"linux": {"namespaces": [{"type": "pid"}]}}, {"linux": {}}, {"root": None}]
)
def test_a_config_without_a_mount_namespace_is_not_changed(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    path = write(tmp_path, **more)
    before = path.read_bytes()

    oci_runtime.add_hook(str(path), KERNEL)

    assert path.read_bytes() == before


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config\.json: No such file"):
        oci_runtime.add_hook(f"{tmp_path}/config.json", KERNEL)


def test_the_real_runtime_is_found_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "runc").touch(mode=0o755)

    assert (
        oci_runtime.find_runtime("runc", ("", run_folder.PROGRAMS, str(tmp_path)))
        == f"{tmp_path}/runc"
    )
    with pytest.raises(HostError, match="no crun in"):
        oci_runtime.find_runtime("crun", (str(tmp_path),))


def test_other_commands_are_passed_to_the_runtime_unchanged(tmp_path: Path) -> None:
    real = tmp_path / "runc"
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    real.chmod(0o755)
    command = python_command("oci_runtime.main()", "runc", "--root", "/r s", "delete", "create")

    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={"PATH": str(tmp_path)},
    )  # fmt: skip

    assert (done.stdout, done.stderr) == ("<--root></r s><delete><create>", "")
