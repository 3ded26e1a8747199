# SPDX-License-Identifier: Apache-2.0
"""Record what nvidia-ctk, another program, generates on simulated nodes.

Run as root: `python -m tests.golden.incumbent.record /usr/bin/nvidia-ctk`, version 1.20.0 for the
files that are here. Each spec is reduced (reduce.py) before it is written.
"""

import json
import sys
import tempfile
from pathlib import Path

from nvct_sim import attach, tree
from tests.golden.incumbent.reduce import reduce
from tests.support.on_node import run_in

RECORDED = "nvidia-container-toolkit 1.20.0 on a simulated node, reduced by reduce.py"
NODE = "incumbent"
FOLDER = Path(__file__).parent
MODES = ("management", "gdrcopy", "gds", "imex", "mofed", "nvswitch")
CASES = {
    "h100": ("h100", "nvml"),
    "h100-mig": ("h100-mig", "nvml"),
    "hgx-h100": ("hgx-h100", "nvml"),
    **{mode: ("hgx-h100", mode) for mode in MODES},
}
"""File name: profile of the node, and mode."""


def record(program: str, profile: str, mode: str) -> dict[str, object]:
    """Return the reduced spec of one node."""
    with tempfile.TemporaryDirectory() as folder:
        node = tree.create(NODE, profile, Path(folder))
        argv = [
            program, "--quiet", "cdi", "generate", "--format", "json", "--mode", mode,
            "--driver-root", attach.DRIVER_ROOT, "--dev-root", "/",
        ]  # fmt: skip
        done = run_in(node, argv, {"PATH": "/usr/bin:/bin"}, driver_root=attach.DRIVER_ROOT)
        if done.returncode:
            raise SystemExit(done.stderr)
        gids = tree.groups()
        text = json.dumps(reduce(json.loads(done.stdout), {attach.DRIVER_ROOT: "$ROOT"},
                                 node.installed))  # fmt: skip
    assert (gids.get("video", 44), gids.get("render", 105)) == (44, 105), "another group file"
    reduced: dict[str, object] = json.loads(text)
    return reduced


def main() -> None:
    """Write every file."""
    for name, (profile, mode) in CASES.items():
        content = {"recorded": RECORDED, "mode": mode, **record(sys.argv[1], profile, mode)}
        (FOLDER / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
