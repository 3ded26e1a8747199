# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.cli.sim."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.sim import sim
from nvct.errors import UsageError
from nvct_sim import rootfs, tree
from tests.support.processes import captured


def run(base: Path, *words: str) -> str:
    done = CliRunner().invoke(sim, ["--base", str(base), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_node_is_made_listed_changed_and_destroyed(tmp_path: Path) -> None:
    assert run(tmp_path, "create", "lab", "--profile", "t4", "--plain") == f"{tmp_path}/lab\n"
    assert run(tmp_path, "list") == f"lab\tt4\t580.159.04\t1 GPUs\t{tmp_path}/lab\n"
    assert json.loads(run(tmp_path, "list", "--json")) == [
        {"name": "lab", "profile": "t4", "driver": "580.159.04", "gpus": 1,
         "folder": f"{tmp_path}/lab"}
    ]  # fmt: skip
    run(tmp_path, "set", "lab", "gpu", "0", "temp=77")
    assert tree.find(tmp_path, "lab").state().gpu(0).fields["temp"] == "77"
    run(tmp_path, "destroy", "lab")
    assert run(tmp_path, "list") == ""


def test_profiles_are_listed(tmp_path: Path) -> None:
    assert "h100-mig\n" in run(tmp_path, "list", "--profiles")
    assert "h100-mig" in json.loads(run(tmp_path, "list", "--profiles", "--json"))


def test_help_of_set_names_every_change(tmp_path: Path) -> None:
    out = run(tmp_path, "set", "--help")

    assert "mig-create GPU PROFILE" in out
    assert "reload" in out


def test_an_unknown_node_is_an_error_of_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no simulated node at"):
        run(tmp_path, "destroy", "nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("before", [[], ["--"]])
def test_options_after_the_node_belong_to_the_program(tmp_path: Path, before: list[str]) -> None:
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    run(tmp_path, "create", "lab", "--profile", "t4", "--plain")
    program = ["sh", "-c", "ls $1 /dev/nvidia0", "x", "--all"]
    words = ["--base", str(tmp_path), "exec", "lab", *before, *program]

    # A separate process, because programs on the node write to the real standard output.
    code = "import sys; from nvct.cli.sim import sim; sim(sys.argv[1:])"
    done = captured([sys.executable, "-c", code, *words])

    assert (done.returncode, done.stdout) == (0, "/dev/nvidia0\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_exec_of_a_missing_program_ends_as_in_a_shell(tmp_path: Path) -> None:
    reason = rootfs.can_run_containers()
    if reason is not None:
        pytest.skip(reason)
    run(tmp_path, "create", "lab", "--profile", "t4", "--plain")

    done = captured(
        [sys.executable, "-m", "nvct.cli", "nvct", "sim", "--base", tmp_path, "exec", "lab",
         "nosuchprogram"],
    )  # fmt: skip

    message = "nvct: cannot run 'nosuchprogram': No such file or directory [usage]\n"
    assert (done.returncode, done.stderr) == (127, message)


def test_a_double_dash_without_a_program_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "create", "lab", "--profile", "t4", "--plain")
    done = CliRunner().invoke(sim, ["--base", str(tmp_path), "exec", "lab", "--"])

    assert done.exit_code == 2
    assert "Missing argument 'COMMAND...'" in done.output
