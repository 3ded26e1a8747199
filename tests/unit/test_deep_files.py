# SPDX-License-Identifier: Apache-2.0
"""JSON of others that is nested without end is no bug of nvct's: each reader takes it for damaged."""

from pathlib import Path

import pytest

from nvct.agent.device_plugin import list_strategy
from nvct.agent.labels import gather
from nvct.cli import explain
from nvct.container.request import kubelet_record
from nvct.doctor import incumbent, kubelet
from nvct.engine import engine_files
from nvct.errors import DocumentError, NvctError
from nvct.installer import settings
from nvct_sim import play, tree

DEEP = '{"a":' * 100_000
TOML = "a = " + "[" * 5000


def test_a_hooks_file_names_no_program(tmp_path: Path) -> None:
    (tmp_path / "hook.json").write_text(DEEP)
    assert incumbent.hook_program(str(tmp_path / "hook.json")) == ""


def test_a_list_of_containers_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "containers.json").write_text(DEEP)
    assert engine_files.podman_names(str(tmp_path / "containers.json")) == {}


def test_it_is_no_checkpoint_of_a_kubelet(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text(DEEP)
    assert "is not a checkpoint" in str(kubelet._record(str(tmp_path / "checkpoint"), ""))
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    (folder / "kubelet_internal_checkpoint").write_text(DEEP)
    with pytest.raises(DocumentError):
        kubelet_record.read(str(tmp_path), "uid")


def test_a_text_to_explain_is_a_log() -> None:
    assert explain._is_log(DEEP)


def test_an_engine_does_not_tell_its_configuration() -> None:
    told = list_strategy._containerd("2.0.0", (2, 0), DEEP)
    assert told == "containerd 2.0.0 does not tell its configuration"


def test_the_probe_of_a_tegra_has_failed() -> None:
    with pytest.raises(NvctError, match="its answer is malformed"):
        gather.of_probe(DEEP.encode())


def test_a_simulated_node_is_damaged(tmp_path: Path) -> None:
    (tmp_path / tree.NODE_FILE).write_text(DEEP)
    with pytest.raises(NvctError, match="is damaged"):
        tree.load(tmp_path)


def test_what_happens_to_a_simulated_node_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "steps.toml").write_text(TOML)
    with pytest.raises(NvctError, match="is not TOML"):
        play.read(tmp_path / "steps.toml")


def test_a_file_of_a_policy_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(TOML)
    with pytest.raises(NvctError, match="is not TOML"):
        settings.read_policy(str(tmp_path / "policy.toml"))
