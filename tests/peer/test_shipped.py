# SPDX-License-Identifier: Apache-2.0
"""The names of NVIDIA's shipped configuration file, by nvct's own layers: the same states.

nvct has no copy of that file: a name is one of the hardware or of the built-in tables. Where
NVIDIA's program reports a success that its own `assert` denies, nvct fails and changes nothing.
It takes 10 s of CPU: 81 names, each resolved for 8 GPUs.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.mig.group import mig
from nvct.errors import NvctError
from nvct.mig.apply import Machine
from nvct_sim.tree import Node
from tests.peer import shipped
from tests.peer.__main__ import RECORDED
from tests.peer.test_mig_parted import machine  # noqa: F401 - a fixture

NOT_HERE = (
    "no MIG profile",
    "no room for",
    "there is no MIG configuration",
    "no GPU of this machine",
)
SUCCESS = {"apply": 0, "assert": 0}


@pytest.mark.slow
@pytest.mark.parametrize("node", [shipped.NODE], indirect=True)
def test_states_exports_and_checkpoints_are_the_incumbents(
    node: Node,
    machine: Machine,  # noqa: F811
    tmp_path: Path,
) -> None:
    errors: list[str] = []

    def run(*words: str) -> tuple[int, str]:
        try:
            done = CliRunner().invoke(
                mig, words, obj=machine, standalone_mode=False, catch_exceptions=False
            )
        except NvctError as error:
            errors.append(error.message)
            return 1, ""
        return 0, done.output

    path = RECORDED / node.name / "mig-parted" / shipped.RESULTS
    recorded = json.loads(path.read_text(encoding="utf-8"))
    successes = [name for name, theirs in recorded.items() if theirs.items() >= SUCCESS.items()]
    assert shipped.OFF in successes
    for name in recorded.keys() - set(successes):
        errors.clear()
        assert recorded[name]["apply"] == 0, name  # a false success, as `assert` tells
        assert [run(command, "-c", name)[0] for command in ("apply", "assert")] == [1, 1]
        assert any(reason in errors[0] for reason in NOT_HERE), (name, errors)
    assert shipped.exported(run) == recorded[shipped.OFF]["export"]
    for name in successes:
        ours = shipped.result(run, lambda name: ["-c", name], name, tmp_path)
        assert ours == recorded[name], name
