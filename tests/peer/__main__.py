# SPDX-License-Identifier: Apache-2.0
"""`make record-peer PEER=DIR`: records what NVIDIA's programs answer on simulated nodes."""

import argparse
import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nvct.errors import NvctError
from nvct_sim import attach, run_folder, tree
from tests.peer import cases, cluster, gfd, mig, plugin

REPOSITORY = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded"
VERSIONS = "versions.txt"
OPERATOR_FACTS = RECORDED / "operator.json"
DRA_DRIVER_FACTS = RECORDED / "dra-driver.json"


def main() -> None:
    """Record the nodes named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="make record-peer", description=__doc__)
    parser.add_argument("programs", type=Path, help="folder of NVIDIA's programs")
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="all unless named")
    parser.add_argument("--target", type=Path, default=RECORDED, help="folder of the recordings")
    given = parser.parse_args()
    names = given.nodes or [*cases.NODES, *cases.IN_PODS]
    unknown = [name for name in names if name not in (*cases.NODES, *cases.IN_PODS)]
    if unknown:
        sys.exit(f"no such node: {', '.join(unknown)}; see tests/peer/cases.py")
    versions = _versions(given.programs.absolute())
    given.target.mkdir(exist_ok=True)
    if given.nodes:
        _check_part(given.target / VERSIONS, versions)
    for name in names:
        print(name, flush=True)
        _record(given.programs.absolute(), name, given.target.absolute())
    (given.target / VERSIONS).write_text(versions)


def _versions(programs: Path) -> str:
    """Return the versions that the programs print, and today's date."""
    lines = [f"recorded {dt.datetime.now(dt.timezone.utc):%Y-%m-%d}"]
    for name in (plugin.PROGRAM, gfd.PROGRAM, mig.PROGRAM):
        program = programs / name
        if not os.access(program, os.X_OK):
            sys.exit(f"there is no program {program}: see tests/peer/README.md")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        lines.append(f"{name}: {' '.join(said.stdout.split())}")
    return "".join(f"{line}\n" for line in lines)


def _check_part(recorded: Path, versions: str) -> None:
    """Exit if the kept recordings have other versions; only the date may differ."""
    if recorded.exists() and recorded.read_text().splitlines()[1:] != versions.splitlines()[1:]:
        sys.exit(f"{recorded} names other versions: record all nodes, without NODES")


def _record(programs: Path, name: str, target: Path) -> None:
    """Record one node again."""
    with tempfile.TemporaryDirectory(prefix="nvct-peer-") as folder:
        work = Path(folder)
        aside = work / "recorded"
        if name in cases.IN_PODS:
            cluster.record(programs, name, aside, work)
        else:
            _record_beside(programs, name, aside, work)
        place = target / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(aside, place)


def _record_beside(programs: Path, name: str, target: Path, work: Path) -> None:
    """Record a node in a separate mount namespace."""
    node = tree.create(
        name, cases.NODES[name].profile, work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )  # fmt: skip
    argv = [
        sys.executable, "-m", "tests.peer.inside", str(programs), name, str(target), str(work),
    ]  # fmt: skip
    env = {
        **os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0",
        "PATH": f"{run_folder.PROGRAMS}:{os.environ['PATH']}",
    }  # fmt: skip
    try:
        status = attach.exec_in(node, argv, env, driver_root="/", cwd=str(REPOSITORY))
        if status:
            sys.exit(f"{name} cannot be recorded: status {status}")
    finally:
        tree.destroy(node)


if __name__ == "__main__":
    try:
        main()
    except NvctError as error:
        sys.exit(error.message)
