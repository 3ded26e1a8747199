# SPDX-License-Identifier: Apache-2.0
"""CDI spec files that another user than root may have written."""

import json
import os
from pathlib import Path

import pytest

from nvct.cdi.read import registry

NOBODY = 12345


def spec_file(folder: Path) -> Path:
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "acme.com/gpu",
        "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
    }
    folder.mkdir(exist_ok=True)
    path = folder / "acme.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    path.chmod(0o644)
    return path


def refusal(folder: Path) -> str:
    registered = registry.scan([str(folder)])
    assert not registered.devices
    (error,) = registered.errors.values()
    return f"{error.message}; {error.hint}"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_spec_of_another_user_is_refused_and_named(tmp_path: Path) -> None:
    path = spec_file(tmp_path)
    os.chown(path, NOBODY, 0)
    message = refusal(tmp_path)
    assert str(path) in message
    assert f"uid {NOBODY}" in message
    assert "chown root" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_link_of_root_to_a_spec_of_another_user_is_refused(tmp_path: Path) -> None:
    path = spec_file(tmp_path / "home")
    os.chown(path, NOBODY, 0)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/acme.json").symlink_to(path)
    assert f"uid {NOBODY}" in refusal(tmp_path / "cdi")


def test_a_world_writable_spec_is_refused(tmp_path: Path) -> None:
    spec_file(tmp_path).chmod(0o666)
    assert "mode 666" in refusal(tmp_path)


def test_a_spec_of_the_same_user_is_used(tmp_path: Path) -> None:
    spec_file(tmp_path)
    assert list(registry.scan([str(tmp_path)]).devices) == ["acme.com/gpu=a"]
