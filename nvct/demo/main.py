# SPDX-License-Identifier: Apache-2.0
"""The demonstration: build a simulated node, go inside it, run the cases, leave nothing behind."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nvct import paths
from nvct.cdi import load
from nvct.demo import cases, run, show
from nvct.errors import HostError
from nvct.host import discover
from nvct.host.roots import Roots
from nvct.sim import attach, possible, rootfs, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.console import Console

PROFILE = "h100-mig"
DRIVER_ROOT = "/run/nvidia/driver"
SPEC = "/var/run/cdi/nvidia.yaml"


def demonstrate() -> int:
    """Run the demonstration; return 0 if every container was as expected."""
    reason = possible.can_run_containers()
    with tempfile.TemporaryDirectory(prefix="nvct-demo-") as folder:
        work = Path(folder)
        node = tree.create("demo", PROFILE, base=work / "nodes")
        if reason is not None:
            from nvct.demo import without

            return without.demonstrate(node, work, reason)
        inside = [sys.executable, "-I", "-m", "nvct.demo.main", str(work), str(node.tree)]
        return attach.exec_in(node, inside, _environment(work))


def _environment(work: Path) -> dict[str, str]:
    kept = ("HOME", "TERM", "COLORTERM", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "LANG", "LC_ALL")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    programs = str(Path(sys.executable).parent)
    env["PATH"] = ":".join([programs, *paths.DEFAULT_PATH_DIRS])
    env[paths.CONFIG_ENV] = str(work / "config.toml")
    return env


def _inside(work: Path) -> int:
    """Run in the node's mount namespace."""
    out = show.console()
    (work / "config.toml").write_text(
        f'accept-nvidia-visible-devices-as-volume-mounts = true\n'
        f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n',
        encoding="utf-8",
    )
    inventory = discover.discover(Roots(driver_root=DRIVER_ROOT))
    show.banner(out, inventory.driver_version)
    show.node(out, inventory)
    _generate(out)
    base = work / "rootfs"
    rootfs.build_rootfs(base)
    shim = Path(sys.executable).with_name("nvidia-container-runtime")
    runner = run.Runner(work, base, shim)
    show.heading(out, "3", f"Containers, by {shim.name} and {runner.bare.name}")
    wanted = cases.cases(inventory.gpus)
    runner.run(wanted[1])  # the first create compiles what the others reuse
    outcomes = []
    for number, case in enumerate(wanted, 1):
        outcomes.append(runner.run(case))
        show.outcome(out, number, outcomes[-1])
    show.heading(out, "4", "What was injected, and how long it took")
    show.summary(out, outcomes, runner.bare_seconds(wanted[0]), runner.shim_seconds(wanted[0]))
    return 0 if all(outcome.right for outcome in outcomes) else 1


def _generate(out: Console) -> None:
    """Run `nvidia-ctk cdi generate` as a user would, and show what it wrote."""
    words = ["nvidia-ctk", "cdi", "generate", "--output", SPEC]
    show.heading(out, "2", "Its CDI specification")
    show.command(out, shlex.join(words))
    program = shutil.which(words[0])
    if program is None:
        raise HostError("nvidia-ctk is not on PATH", hint="run make setup")
    subprocess.run([program, *words[1:]], check=True, stderr=subprocess.DEVNULL)
    show.spec(out, load.load_file(SPEC))


if __name__ == "__main__":
    sys.exit(_inside(Path(sys.argv[1])))
