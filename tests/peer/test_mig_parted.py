# SPDX-License-Identifier: Apache-2.0
"""nvct's nvidia-mig-parted answers as NVIDIA's did on the same nodes, command by command.

What differs on purpose: where NVIDIA's `apply` fails, or reports a success that its own `assert`
denies, nvct's fails and leaves the layout alone. On a node of which one GPU has no MIG mode
(`mixed`), a configuration for all GPUs counts as applied when the others have it.
"""

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.cli.mig import parted
from nvct.host.nvml.session import NvmlSession
from nvct.mig.apply import Machine
from nvct.mig.journal import Journal
from nvct_sim.tree import Node
from tests.peer import mig
from tests.peer.__main__ import RECORDED
from tests.unit.mig.conftest import library_of, roots_of

COMMAND = "$ nvidia-mig-parted "
ORDERINGS = re.compile(r'^error: "Error creating GPU instance for .*\n', re.MULTILINE)
"""NVIDIA's program tries orders on the GPU; nvct searches on paper."""
LEVEL = re.compile(r"level=(\w+) msg=(.*)")
OK = "exit status 0"
APPLIED = f"Selected MIG configuration currently applied\n{OK}"
REFUSED = 'fatal: "Error applying MIG configuration with hooks: '
STATE = ("export", f"checkpoint -f {mig.PLACEMENTS}", mig.PLACEMENTS)
FOR_ALL = ("all-enabled", "all-1g.10gb", "all-balanced", "small-compute-instances")
CONFIGS = list(yaml.safe_load(mig.CONFIGS.read_text(encoding="utf-8"))["mig-configs"])


@pytest.fixture(scope="module")
def machine(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if not (RECORDED / node.name / "mig-parted").is_dir():
        pytest.skip("nothing is recorded of this node")
    before = os.environ.get("NVCT_SIM_DEV")
    os.environ["NVCT_SIM_DEV"] = str(node.dev)
    session = NvmlSession(library_of(node))
    journal = Journal(str(tmp_path_factory.mktemp("run")))
    yield Machine(session=session, roots=roots_of(node), journal=journal, reset=lambda _: None)
    session.close()
    os.environ.pop("NVCT_SIM_DEV")
    if before is not None:
        os.environ["NVCT_SIM_DEV"] = before


def run(machine: Machine, words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = parted.run(words, machine)
    return status, out.getvalue(), err.getvalue()


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return the commands or names of files of a transcript, each with its answer or content."""
    blocks = []
    for block in ORDERINGS.sub("", text).rstrip("\n").split("\n\n"):
        first, _, rest = block.partition("\n")
        blocks.append((first.removeprefix(COMMAND).removesuffix(":"), rest))
    return blocks


def answer(machine: Machine, name: str, files: dict[str, str]) -> str:
    """Return our answer to a command, or the content of a file, as a transcript has it."""
    if name in files:
        with open(files[name], encoding="utf-8") as file:
            return file.read()
    status, out, err = run(machine, [files.get(word, word) for word in name.split()])
    messages = [f"{level}: {text}" for level, text in LEVEL.findall(err)]
    return "\n".join([*out.splitlines(), *messages, f"exit status {status}"])


def without_places(text: str) -> Any:
    """Return a checkpoint without the places of instances: nvct's stay where they can."""
    gpus = json.loads(text)["MigState"]["Devices"] or []
    for gpu in gpus:
        for instance in gpu["GpuInstances"] or []:
            del instance["Placement"]
        gpu["GpuInstances"] = sorted(gpu["GpuInstances"] or [], key=json.dumps)
    return gpus


def test_answers_are_the_incumbents(node: Node, machine: Machine, tmp_path: Path) -> None:
    files = {mig.CONFIG: str(mig.CONFIGS)}
    files |= {name: str(tmp_path / f"{name}.json") for name in (mig.CHECKPOINT, mig.PLACEMENTS)}
    folder = RECORDED / node.name / "mig-parted"
    for name in ["state", *CONFIGS, "restore"]:
        recorded = blocks_of((folder / f"{name}.txt").read_text(encoding="utf-8"))
        before = [answer(machine, words, files) for words in STATE]
        ours = [answer(machine, words, files) for words, _ in recorded]
        theirs = [text for _, text in recorded]
        if name in CONFIGS and not theirs[2].endswith(OK):  # the assert after apply
            if node.name == "mixed" and name in FOR_ALL:
                assert ours[2] == APPLIED
                del ours[2], theirs[2]
            else:
                assert ours[1].startswith(REFUSED)
                assert ours[1].endswith("\nexit status 1")
                assert "nothing was changed" in ours[1]
                assert ours[-1] == before[-1]  # the checkpoint
                assert ours[3] == before[0]  # the export
                del ours[1], theirs[1], ours[2:], theirs[2:]
        for (words, _), our, their in zip(recorded, ours, theirs, strict=False):
            if words == mig.PLACEMENTS or their.startswith('{"Version"'):
                assert without_places(our) == without_places(their), (name, words)
            else:
                assert our == their, (name, words)


@pytest.mark.parametrize("name", ["all-1g.10gb", "all-balanced", "by-index", "by-filter"])
def test_on_empty_gpus_instances_lie_where_the_incumbent_puts_them(
    name: str, node: Node, machine: Machine, tmp_path: Path
) -> None:
    if node.name not in ("a100-80", "hgx-h100"):
        pytest.skip("placements are recorded for empty GPUs of two nodes")
    former = str(tmp_path / "former.json")
    files = {mig.CONFIG: str(mig.CONFIGS), mig.PLACEMENTS: str(tmp_path / "placements.json")}
    recorded = blocks_of((RECORDED / node.name / f"mig-parted/{name}.txt").read_text("utf-8"))
    assert run(machine, ["checkpoint", "-f", former])[0] == 0
    try:
        answer(machine, "apply -f CONFIG -c all-enabled", files)
        answer(machine, f"apply -f CONFIG -c {name}", files)
        answer(machine, f"checkpoint -f {mig.PLACEMENTS}", files)
        assert answer(machine, mig.PLACEMENTS, files) == recorded[-1][1]
    finally:
        assert run(machine, ["restore", "-f", former])[0] == 0  # the node is also another test's
