# SPDX-License-Identifier: Apache-2.0
"""`make bench`: everything in one run, on one simulated node, as milliseconds and ratios.

NVCT_BENCH_PEER names a folder with the incumbent's programs; NVCT_BENCH_ROUNDS the number of
rounds (default 40).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from nvct.errors import NvctError, line
from nvct.paths import DEFAULT_PATH_DIRS
from nvct.sim import attach, possible, tree


def main() -> int:
    """Build a node, go inside it and measure."""
    reason = possible.can_run_containers()
    if reason is not None:
        print(f"make bench needs real containers: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="nvct-bench-") as folder:
        work = Path(folder)
        node = tree.create("bench", "h100", base=work / "nodes")
        env = {
            key: os.environ[key] for key in ("TERM", "COLUMNS", "NO_COLOR") if key in os.environ
        }
        env |= {k: v for k, v in os.environ.items() if k.startswith("NVCT_BENCH_")}
        env["PATH"] = ":".join([str(Path(sys.executable).parent), *DEFAULT_PATH_DIRS])
        repository = str(Path(__file__).parents[2])
        code = f"import sys;sys.path.insert(0,{repository!r});from tests.bench.inside import main;main()"
        return attach.exec_in(node, [sys.executable, "-c", code, str(work)], env)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NvctError as error:
        sys.exit(line("bench", error))
