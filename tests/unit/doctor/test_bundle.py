# SPDX-License-Identifier: Apache-2.0
"""nvct doctor --bundle: what is in the archive, what is not, and that it can be replayed."""

import json
import os
import platform
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.main import program
from nvct.host.snapshot import document
from tests.support.shim_lab import Lab

HOST = "planted-host-7"
PLANTED = ("hunter2-planted", "10.99.88.77", "jane-planted")


pytestmark = pytest.mark.usefixtures("driver")


def bundle(lab: Lab, path: Path, *, env: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Return the files of the archive that doctor writes."""
    words = ("--only", "config,specs,agent", "--bundle", path)
    done = lab.invoke("nvct", "doctor", *words, **(env or {}))
    assert "read it before you send it" in done.output
    with tarfile.open(path) as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]


def test_it_has_the_checks_and_the_host(lab: Lab, tmp_path: Path) -> None:
    files = bundle(lab, tmp_path / "b.tar.gz")

    assert {
        "about.json", "agent.json", "config.toml", "decisions.jsonl", "doctor.json",
        "engines.json", "kernel.txt", "snapshot/snapshot.json",
        "snapshot/proc/driver/nvidia/version",
    } <= files.keys()  # fmt: skip
    names = [one["name"] for one in json.loads(files["doctor.json"])]
    assert names == ["config", "specs", "agent"]
    assert json.loads(files["about.json"])["kernel"].startswith(os.uname().release)
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


def test_planted_secrets_are_in_no_file(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: f"{HOST}.lab.example")
    password, address, user = PLANTED
    kmsg = tmp_path / "kmsg"
    told = f"nvidia: token={password} from {address} on {HOST}"
    kmsg.write_text(f"3,1,1,-;{told}\n", encoding="utf-8")
    text = lab.config_toml.read_text(encoding="utf-8")
    lab.config_toml.write_text(f"# password = {password}, {address}\n{text}", encoding="utf-8")
    lab.spec("mine.json", kind="acme.com/nic", devices={
        "0": {"mounts": [{"hostPath": f"/home/{user}/x", "containerPath": "/x"}]}
    })  # fmt: skip
    record = {
        "time": "1.0", "program": "x", "bundle": f"/home/{user}/b", "outcome": "refused",
        "error": f"API_TOKEN={password} of {address}", "code": "x",
    }  # fmt: skip
    path = lab.run_dir / "decisions.jsonl"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")

    env = {"NVCT_KMSG": str(kmsg), "SUDO_USER": user, "MY_TOKEN": password}
    files = bundle(lab, tmp_path / "b.tar.gz", env=env)

    assert b"token=(removed) from (address" in files["kernel.txt"]
    assert b"API_TOKEN=(removed)" in files["decisions.jsonl"]
    assert b"password = (removed)" in files["config.toml"]
    assert b"/home/user/x" in files["doctor.json"]
    for name, data in files.items():
        for secret in (*PLANTED, HOST):
            assert secret.encode() not in data, name


def test_a_replay_works_on_the_archive(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    bundle(lab, path)

    taken = document.load(str(path))
    done = CliRunner().invoke(program("nvct"), ["sim", "replay", str(path)])

    assert "doctor.json" not in taken.texts
    assert done.exit_code == 0, done.output
    assert "kind: nvidia.com/gpu" in done.output
    assert "/dev/nvidia1" in done.output


def test_a_folder_that_is_not_there_is_an_error(lab: Lab, tmp_path: Path) -> None:
    words = ["--config", str(lab.config_toml), "doctor", "--only", "config", "--bundle"]
    done = CliRunner().invoke(program("nvct"), [*words, str(tmp_path / "no/b.tgz")], env=lab.env)

    assert "cannot write" in str(done.exception)
