# SPDX-License-Identifier: Apache-2.0
"""Command lines of scripts in the wild end as they end with the incumbent.

The table is in invocations.txt. What is printed is other tests' business; here a script's `set -e`
and its pipes are.
"""

import os
import shlex
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from nvct.cli import main
from nvct.cli.container import main as container_cli
from nvct.container.cdi_hook import main as hooks
from nvct.host.nvml.session import NvmlSession
from nvct.paths import CONFIG_ENV, RUN_DIR_ENV
from tests.support.shim_lab import Lab

TABLE = Path(__file__).with_name("invocations.txt")
ROWS = [
    row.split(maxsplit=2)
    for row in TABLE.read_text(encoding="utf-8").splitlines()
    if row and not row.startswith("#")
]


@pytest.fixture(scope="module")
def host() -> Generator[Lab]:
    """Two GPUs, and a CDI specification."""
    new_lab = Lab()
    new_lab.driver(gpus=2)
    new_lab.spec()
    yield new_lab
    new_lab.remove()


def ended(command: str, tmp: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command line in this process; return the exit status."""
    program, *arguments = shlex.split(command.replace("{tmp}", str(tmp)))
    if "runtime configure" in command:
        arguments.append(f"--state-dir={tmp}/state")
    if program == "nvidia-cdi-hook":
        return hooks.main(arguments, os.open(os.devnull, os.O_RDONLY))
    if program == "nvidia-container-cli":
        return container_cli.main(arguments, os.environ)
    assert program == "nvidia-ctk"
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    with pytest.raises(SystemExit) as caught:
        main.run(program)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def place(host: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder beside the host's config.toml."""
    config = tmp_path / "in-force.toml"
    config.write_bytes(host.config_toml.read_bytes())
    monkeypatch.setenv(CONFIG_ENV, str(config))
    monkeypatch.setenv(RUN_DIR_ENV, str(host.run_dir))
    monkeypatch.delenv("NVCT_DEBUG", raising=False)
    # NVML works: the libraries of a host of plain files cannot be loaded.
    monkeypatch.setattr(NvmlSession, "check", lambda _: None)
    monkeypatch.setattr(NvmlSession, "properties", lambda _: {})
    return tmp_path


@pytest.mark.parametrize("row", ROWS, ids=[row[2] for row in ROWS])
def test_a_script_sees_what_the_incumbent_shows(
    row: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, streams, command = row

    completed = ended(command, place, monkeypatch)

    out, err = capfd.readouterr()
    assert str(completed) == status, err
    assert ("out" if out.strip() else "-") == streams, out[:200]
    assert "Traceback" not in err
    if completed:
        assert err.strip()


def test_there_are_enough_of_them_and_each_is_there_once() -> None:
    commands = [row[2] for row in ROWS]

    assert len(commands) > 120
    assert len(set(commands)) == len(commands)
