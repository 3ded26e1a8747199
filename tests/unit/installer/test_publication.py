# SPDX-License-Identifier: Apache-2.0
"""The host's specification: published by the installed nvct, withdrawn, and others left alone."""

import json
from pathlib import Path

import pytest

from nvct.engine.command import Completed
from nvct.installer import publication
from tests.unit.installer.conftest import Ask

FORM = "/run/cdi/nvidia.yaml, with a mount for each file"


def spec(hook: str, kind: str = "nvidia.com/gpu") -> str:
    edits = {"hooks": [{"hookName": "createContainer", "path": hook, "args": ["x"]}]}
    devices = [{"name": "0", "containerEdits": {"env": ["A=b"]}}]
    document = {"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": edits}
    return json.dumps(document)


class Host:
    """A host's root, and what runs there."""

    def __init__(self, root: Path, ask: Ask) -> None:
        self.root, self.said, self.calls = root, list[str](), list[list[str]]()
        self.request = ask(
            toolkit="/usr/local/nvidia/toolkit", host_root=str(root),
            cdi_kind="management.nvidia.com/gpu",
        )  # fmt: skip
        (root / "run/cdi").mkdir(parents=True)
        self.file = root / "run/cdi/nvidia.yaml"
        self.done, self.writes = Completed(status=0), True

    def run(self, argv: list[str], _timeout_s: float) -> Completed:
        self.calls.append(argv)
        if self.writes:
            self.file.write_text(spec("/usr/local/nvidia/toolkit/nvidia-cdi-hook"))
        return self.done

    def publish(self) -> None:
        publication.publish(self.request, self.said.append, self.run)

    def withdraw(self) -> None:
        publication.withdraw(self.request, self.said.append)


@pytest.fixture
def host(tmp_path: Path, ask: Ask) -> Host:
    return Host(tmp_path / "host", ask)


def test_what_is_published_is_published_again_and_withdrawn(host: Host) -> None:
    host.publish()
    host.publish()
    program = "/usr/local/nvidia/toolkit/nvct"
    assert host.calls == [[program, "publish", "--output=/run/cdi/nvidia.yaml"]] * 2
    host.withdraw()
    host.withdraw()
    assert host.said == [f"published {FORM}"] * 2 + ["removed /run/cdi/nvidia.yaml"]
    assert not host.file.exists()


@pytest.mark.parametrize("path", ["etc/cdi/own.yaml", "run/cdi/nvidia.yaml"])
@pytest.mark.parametrize("hook", ["/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit-2/hook"])
def test_another_programs_specification_stays_alone(host: Host, path: str, hook: str) -> None:
    file = host.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(spec(hook))
    host.publish()
    host.withdraw()
    assert host.said == [
        f"/{path} describes nvidia.com/gpu already: nothing is published beside it"
    ]
    assert host.calls == []
    assert file.read_text() == spec(hook)


@pytest.mark.parametrize(
    ("name", "hook", "stays"),
    [
        ("management.nvidia.com-gpu.yaml", "/usr/local/nvidia/toolkit/hook", False),
        ("management.nvidia.com-gpu.yaml", "/usr/bin/nvidia-ctk", True),
        ("of-an-admin.yaml", "/usr/local/nvidia/toolkit/hook", True),
    ],
)
def test_the_specification_of_management_containers_goes_if_it_is_ours(
    host: Host, name: str, hook: str, *, stays: bool
) -> None:
    file = host.root / "run/cdi" / name
    file.write_text(spec(hook, "management.nvidia.com/gpu"))
    host.withdraw()
    assert file.exists() is stays


def test_other_kinds_and_malformed_files_are_not_in_the_way(host: Host) -> None:
    others = {
        "plugin.json": spec("/h", "k8s.device-plugin.nvidia.com/gpu"),
        "broken.yaml": "kind: [",
    }
    for name, text in others.items():
        (host.root / "run/cdi" / name).write_text(text)
    host.publish()
    host.withdraw()
    assert host.said == [f"published {FORM}", "removed /run/cdi/nvidia.yaml"]
    assert {file.name: file.read_text() for file in (host.root / "run/cdi").iterdir()} == others


@pytest.mark.parametrize(
    ("status", "err", "sentence"),
    [
        (
            1,
            "error: no",
            "warning: the CDI specification of this host was not published: error: no",
        ),
        (0, "no driver\n", "nothing was published: no driver"),
    ],
)
def test_without_a_specification_the_reason_is_said(
    host: Host, status: int, err: str, sentence: str
) -> None:
    host.writes, host.done = False, Completed(status=status, err=err)
    host.publish()
    assert host.said == [sentence]
