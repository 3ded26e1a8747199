# SPDX-License-Identifier: Apache-2.0
"""The committed modules are those that the compiler makes of the .proto files.

`pytest --update-golden tests/unit/agent/kubelet` makes them again.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from nvct.agent.kubelet import kubelet_pb2 as api
from tests.peer import api as peer

REPOSITORY = Path(__file__).parents[4]
PROTOS = sorted(REPOSITORY.glob("nvct/**/*.proto"))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.name)
def test_the_modules_are_fresh(
    proto: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    update = request.config.getoption("--update-golden")
    target = REPOSITORY if update else tmp_path
    name = str(proto.relative_to(REPOSITORY))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{REPOSITORY}"]
    subprocess.run(
        [*command, f"--python_out={target}", f"--pyi_out={target}", name],
        check=True, cwd=REPOSITORY,
    )  # fmt: skip

    for ending in ("_pb2.py", "_pb2.pyi"):
        module = f"{name.removesuffix('.proto')}{ending}"
        assert (REPOSITORY / module).read_text("utf-8") == (target / module).read_text("utf-8")


@pytest.mark.parametrize("name", [name for name in peer.MESSAGES if name != "Empty"])
def test_the_messages_are_those_that_the_recorder_speaks(name: str) -> None:
    """The recorder's table was written apart from the .proto file, from the same public API."""
    theirs = peer.message(name).DESCRIPTOR
    ours = getattr(api, name).DESCRIPTOR

    assert [(f.name, f.number, f.type) for f in ours.fields] == [
        (f.name, f.number, f.type) for f in theirs.fields
    ]
