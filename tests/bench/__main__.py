# SPDX-License-Identifier: Apache-2.0
"""`make bench`: all measurements in one run, on simulated nodes, as milliseconds and ratios.

`python -m tests.bench agents` measures the agents alone, `scrape` the exporter, `dra` the DRA
driver, `pods` pods on a real kubelet. NVCT_BENCH_PEER names a folder with the incumbent's programs;
NVCT_BENCH_ROUNDS the number of rounds (default 40).
"""

import os
import sys
import tempfile
from pathlib import Path

from nvct.errors import NvctError, line
from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim import attach, rootfs, tree
from tests.bench import dra, fragmentation, generation, pods, scrape

AGENTS = {"h100": "device plugin, 8 GPUs", "a100-16": "device plugin, 16 GPUs"}
"""Profiles of nodes and the titles of their tables."""


def main() -> int:
    """Build simulated nodes and measure inside each; return the exit status."""
    measure = {
        "scrape": scrape.measure,
        "dra": dra.measure,
        "fragmentation": fragmentation.measure,
        "pods": pods.measure,
    }.get("".join(sys.argv[1:]))
    if measure is not None:  # the parts that need no containers
        with tempfile.TemporaryDirectory(prefix="nvct-bench-") as folder:
            return measure(Path(folder))
    reason = rootfs.can_run_containers()
    if reason is not None:
        print(f"make bench needs real containers: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="nvct-bench-") as folder:
        work = Path(folder)
        if sys.argv[1:] == ["agents"]:
            return _agents(work)
        status = _inside(tree.create("bench", "h100", base=work / "nodes"), "inside", str(work))
        for profile, title in generation.PROFILES.items():
            node = tree.create(f"bench-{profile}", profile, base=work / "nodes")
            status = status or _inside(node, "generation", str(work), title, driver_root="/")
        status = status or _agents(work) or scrape.measure(work) or dra.measure(work)
        return status or pods.measure(work)


def _agents(work: Path) -> int:
    """Measure the agents on each of their nodes; return the exit status."""
    status = 0
    for profile, title in AGENTS.items():
        node = tree.create(f"agents-{profile}", profile, base=work / "nodes")
        status = status or _inside(node, "agents", str(work), title, driver_root="/")
    return status


def _inside(
    node: tree.Node, module: str, *words: str, driver_root: str = attach.DRIVER_ROOT
) -> int:
    """Run main() of a module of this folder on a node; return its exit status."""
    env = {key: os.environ[key] for key in ("TERM", "COLUMNS", "NO_COLOR") if key in os.environ}
    env |= {k: v for k, v in os.environ.items() if k.startswith("NVCT_BENCH_")}
    env["GRPC_VERBOSITY"] = "ERROR"
    env["PATH"] = ":".join([str(Path(sys.executable).parent), *DEFAULT_PATH_DIRS])
    repository = str(Path(__file__).parents[2])
    code = f"import sys;sys.path.insert(0,{repository!r});from tests.bench.{module} import main;main()"
    command = [sys.executable, "-c", code, *words]
    return attach.exec_in(node, command, env, driver_root=driver_root)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NvctError as error:
        sys.exit(line("bench", error))
