# SPDX-License-Identifier: Apache-2.0
"""An engine that rejects its own files is not restarted into them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.engine.engine_control import EngineControl
from nvct.engine.model import EngineOptions, FileEdit
from nvct.errors import EngineError
from nvct.installer.host import ContainerReloader, HostPrograms
from tests.support.forked import may_unshare

ALREADY = "containerd refuses its files already as they are: bad plugin"


def check(folder: Path, restart: str) -> Sequence[str]:
    """Check an edit with an engine that takes no file."""
    program = folder / "containerd"
    program.write_text("#!/bin/sh\necho bad plugin >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    config = folder / "config.toml"
    config.write_bytes(b"old")
    options = EngineOptions(
        engine="containerd", handlers=(), config=str(config), executable=str(program)
    )
    reloader = ContainerReloader(engine="containerd", mode=restart, socket="")
    control = EngineControl(
        options=options, program=str(program), reloader=reloader, run=HostPrograms("/")
    )
    return control.check([FileEdit(path=str(config), before=b"old", after=b"new")])


@pytest.mark.skipif(not may_unshare(), reason="needs CAP_SYS_ADMIN")
@pytest.mark.parametrize("restart", ["signal", "systemd"])
def test_an_engine_that_refuses_its_files_is_not_reloaded(tmp_path: Path, restart: str) -> None:
    with pytest.raises(EngineError, match=ALREADY) as caught:
        check(tmp_path, restart)
    assert "--restart-mode=none" in caught.value.hint


@pytest.mark.skipif(not may_unshare(), reason="needs CAP_SYS_ADMIN")
def test_without_a_reload_the_files_are_still_written(tmp_path: Path) -> None:
    assert check(tmp_path, "none") == [ALREADY]


@pytest.mark.parametrize("mode", ["signal", "systemd"])
def test_a_platforms_own_command_reloads_the_engine(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "restarted"
    command = ("touch", str(file))
    reloader = ContainerReloader(engine="containerd", mode=mode, socket="", command=command)
    decision = reloader.choose(restart=True, removing=False)
    assert reloader.carry_out(decision, HostPrograms("/"), restored=False) == ""
    assert file.exists()


def test_no_command_is_run_where_nothing_is_to_be_restarted() -> None:
    reloader = ContainerReloader(
        engine="containerd", mode="none", socket="", command=("systemctl", "restart", "k3s")
    )
    assert not reloader.choose(restart=True, removing=False).argv
