# SPDX-License-Identifier: Apache-2.0
"""CRI-O: one drop-in, merged with the files, that inherits the low-level runtime's settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.engine import crio, modules
from nvct.engine.model import EngineOptions, Files, Handler

SHIM = "/usr/bin/nvidia-container-runtime"
NVIDIA = Handler(name="nvidia", path=SHIM)
OPTIONS = EngineOptions(engine="crio", handlers=(NVIDIA,), config=crio.CONFIG)


def test_drop_ins_are_read_in_cri_os_order_whatever_their_suffix(tmp_path: Path) -> None:
    folder = tmp_path / "etc/crio/crio.conf.d"
    (folder / "20-x").mkdir(parents=True)
    (tmp_path / "etc/crio/crio.conf").write_text('[crio.runtime]\ndefault_runtime = "a"\n')
    (folder / "10-first.toml").write_text('[crio.runtime]\ndefault_runtime = "b"\n')
    (folder / "20-x/deep").write_text('[crio.runtime]\ndefault_runtime = "c"\n')
    (folder / "15-none").write_text('[crio.runtime]\ndefault_runtime = "d"\n')
    state = crio.state(OPTIONS, Files(str(tmp_path)))
    assert state.default == "c"
    assert [Path(path).name for path in state.files] == [
        "crio.conf", "10-first.toml", "15-none", "deep",
    ]  # fmt: skip


def test_cdi_is_on_since_the_version_that_supports_it(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    versions = [(), (1, 22, 9), (1, 23, 0), (1, 34, 1)]
    result = [crio.state(replace(OPTIONS, engine_version=one), files).cdi for one in versions]
    assert result == [None, False, True, True]


@pytest.mark.parametrize("program", ["/usr/bin/nvidia-container-runtime-hook", "/opt/x/hook"])
def test_a_hook_file_has_its_programs_folder_on_path(program: str) -> None:
    data = modules.hook_file(program)
    hook = json.loads(data)["hook"]
    assert hook["path"] == program
    assert hook["args"] == [program.rpartition("/")[2], "prestart"]
    assert hook["env"][0].split(":").count(program.rpartition("/")[0]) == 1
    assert data.startswith(b'{\n  "version": "1.0.0",\n  "hook": {\n')
