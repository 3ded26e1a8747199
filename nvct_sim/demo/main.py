# SPDX-License-Identifier: Apache-2.0
"""The demonstration: create a simulated node, run the cases inside it, remove everything.

If containers cannot run, nvct_sim.demo.without_containers shows the same cases up to the edited
config.json.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvct import paths
from nvct.errors import ContainerNotPossibleError
from nvct.host import discover
from nvct.host.roots import Roots
from nvct.launcher import cold
from nvct_sim import attach, container_support, rootfs, tree
from nvct_sim.demo import cases, run, show, without_containers, workspace
from nvct_sim.process import spawn

PROFILE = "h100-mig"
PROFILE_WITHOUT_NVML = "h100"
DRIVER_ROOT = "/run/nvidia/driver"
SPEC = "/var/run/cdi/nvidia.yaml"
RUNTIMES = ("runc", "crun")


def demonstrate() -> int:
    """Run the demonstration; return 0 if every container was as expected.

    Raises:
        NvctError: the node cannot be created on this machine.
        KeyboardInterrupt: a signal stops the demonstration; everything is removed then too.
    """
    with workspace.folder() as work:
        with show.working("building a simulated node"):
            runtime, reason = _runtime()
            node, more = _node(work / "nodes", contained=reason is None)
        reasons = [error for error in (reason, more) if error is not None]
        if reasons:
            return without_containers.demonstrate(
                node, work, [_sentence(error) for error in reasons]
            )
        on_node = [cold.interpreter(), "-I", "-m", __spec__.name, str(work), str(runtime)]
        env = workspace.environment(work, os.environ)
        return workspace.wait(spawn(on_node, lambda: attach.enter(node), env=env))


def _runtime() -> tuple[Path | None, ContainerNotPossibleError | None]:
    """Return a low-level runtime that can run containers here, or the reason why none can."""
    installed = [name for name in RUNTIMES if rootfs.find_program(name)] or RUNTIMES[:1]
    reasons = []
    for name in installed:
        try:
            container_support.check(runtime=name)
        except ContainerNotPossibleError as error:
            reasons.append(error)
        else:
            return rootfs.find_program(name), None
    return None, reasons[0]


def _node(base: Path, *, contained: bool) -> tuple[tree.Node, ContainerNotPossibleError | None]:
    """Create the node; return it, and the reason if it has no NVML and so no MIG devices."""
    # Plain files if no container runs: NVML does not report a device node that the device rules
    # of a container around this process forbid it to open.
    kind: tree.Nodes = "auto" if contained else "plain"
    try:
        return tree.create("demo", PROFILE, base=base, nodes=kind), None
    except ContainerNotPossibleError as error:
        node = tree.create("demo", PROFILE_WITHOUT_NVML, base=base, nodes="plain", native=False)
        message = f"no MIG device is shown: {error.message}"
        return node, ContainerNotPossibleError(message, hint="install gcc and libc6-dev")


def _sentence(reason: ContainerNotPossibleError) -> str:
    """Return the reason why no container runs here, and the hint, as one sentence."""
    hint = reason.hint
    if hint == "run as root":
        # Root without the capability is usually root in a container.
        program = Path(sys.executable).with_name("nvct")
        confined = "in a container, it takes one started with --privileged"
        sudo = "sudo " if rootfs.find_program("sudo") else ""
        hint = confined if os.geteuid() == 0 else f"as root, run: {sudo}{program} demo"
    return f"{reason.message}; {hint}" if hint else reason.message


def _inside(work: Path, runtime: Path) -> int:
    """Run the cases in the node's mount namespace; return the exit status."""
    out = show.console()
    settings = workspace.Settings(
        driver_root=DRIVER_ROOT, runtime=str(runtime), farm_dir=attach.farm_dir()
    )
    (work / "config.toml").write_text(settings.text(), encoding="utf-8")
    inventory = discover.discover(Roots(driver_root=DRIVER_ROOT))
    show.banner(out, inventory.driver_version, runtime.name)
    show.node(out, inventory)
    show.heading(out, "2", "Its CDI specification")
    workspace.generate(out, SPEC)
    base = work / "rootfs"
    rootfs.build_rootfs(base)
    shim = workspace.program(paths.SHIM_PROGRAM)
    runner = run.Runner(work, base, shim, runtime)
    show.heading(out, "3", f"Containers, by {shim.name} and {runtime.name}")
    out.print()
    all_cases = cases.cases(inventory.gpus)
    for case in cases.first_of_each_plan(all_cases):
        runner.run(case)  # the first case of each plan compiles it; the others reuse it
    outcomes = []
    for number, case in enumerate(all_cases, 1):
        outcomes.append(runner.run(case))
        show.outcome(out, number, outcomes[-1])
    show.heading(out, "4", "What was injected, and how long it took")
    show.summary(out, outcomes, runner.compare(all_cases[0]))
    return 0 if all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(workspace.inner(lambda: _inside(Path(sys.argv[1]), Path(sys.argv[2]))))
