# SPDX-License-Identifier: Apache-2.0
"""The demonstration without containers: the same cases, up to the edited config.json.

The real shim handles every create, with a low-level runtime that does nothing. It reads the node
as files. Plain files stand for device nodes, so that neither root nor a namespace is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nvct import paths
from nvct.compile import live_host
from nvct.config import load
from nvct.errors import HostError
from nvct.host.model import Inventory
from nvct.launcher import cold
from nvct_sim import bundle, remove, tree
from nvct_sim.demo import cases, show, workspace
from nvct_sim.demo.cases import Case

TIMEOUT_S = 60
NO_HOOK = (
    f"{paths.HOOK_PROGRAM} is missing, since building it takes a C compiler; the specification"
    " names a stand-in"
)


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes of a create to a bundle.

    Attributes:
        status: exit status of the create.
        error: output of the create, "" if none.
        changed: whether the create changed config.json.
        nodes: paths of the added device nodes.
        ruled: those added device nodes that the device rules allow.
        mounts: (source, destination) of the added mounts.
        hooks: (path, first two arguments) of the added hooks.
        env: variables that were added or replaced.
        links: number of symbolic links in the rootfs; a hook makes its links later.
    """

    status: int = 0
    error: str = ""
    changed: bool = False
    nodes: tuple[str, ...] = ()
    ruled: frozenset[str] = frozenset()
    mounts: tuple[tuple[str, str], ...] = ()
    hooks: tuple[tuple[str, str], ...] = ()
    env: tuple[str, ...] = ()
    links: int = 0


def demonstrate(node: tree.Node, work: Path, reasons: Sequence[str]) -> int:
    """Show the result of each create on a node of plain files; return 0 if all are as expected.

    Args:
        node: a node with plain files for device nodes.
        work: working folder.
        reasons: reasons why containers cannot run here, and other missing parts.

    Raises:
        KeyboardInterrupt: a signal stops the demonstration.
    """
    nothing = next((p for p in ("/bin/true", "/usr/bin/true") if os.access(p, os.X_OK)), None)
    if nothing is None:
        raise HostError("neither /bin/true nor /usr/bin/true is a program")
    hook = Path(sys.executable).with_name(paths.HOOK_PROGRAM)
    if not os.access(hook, os.X_OK):
        reasons = [*reasons, NO_HOOK]
        hook = work / paths.HOOK_PROGRAM
        hook.symlink_to(nothing)  # no container starts, so no hook runs
    text = settings(node, work, nothing, hook).text()
    (work / "config.toml").write_text(text, encoding="utf-8")
    env = workspace.environment(work, os.environ)
    env[paths.RUN_DIR_ENV] = str(work / "run")
    env[paths.SIM_DEV_ENV] = str(node.dev)
    inside = [cold.interpreter(), "-I", "-m", __spec__.name, str(work), *reasons]
    return workspace.wait(subprocess.Popen(inside, env=env))


def settings(node: tree.Node, work: Path, runtime: str, hook: Path) -> workspace.Settings:
    """Return a configuration with the folders of a node as the host's roots."""
    q = workspace.quoted
    return workspace.Settings(
        driver_root=str(node.driver_root),
        runtime=runtime,
        farm_dir=str(work / "farm"),
        nvct=(
            f"plain-nodes = true\ndev-root = {q(str(node.tree))}\n"
            f"proc-root = {q(str(node.proc))}\nsys-root = {q(str(node.sys))}\n"
            f"hook-path = {q(str(hook))}\n"
            'layout = "classic"\n'  # a view needs programs in the root; this root is empty
        ),
        more=f"[nvidia-container-runtime.modes.cdi]\nspec-dirs = [{q(str(work / 'cdi'))}]\n",
    )


def _inside(work: Path, reasons: Sequence[str]) -> int:
    """Run the cases with the environment of the simulated node; return the exit status."""
    out = show.console()
    inventory = live_host.discover(load.load(str(work / "config.toml"), required=True))
    show.banner_without(out, inventory.driver_version, reasons)
    show.node(out, inventory)
    show.heading(out, "2", "Its CDI specification")
    (work / "cdi").mkdir()
    workspace.generate(out, str(work / "cdi" / "nvidia.yaml"))
    shim = workspace.program(paths.SHIM_PROGRAM)
    show.heading(out, "3", f"What each container would get, by {shim.name} create")
    wanted = cases.cases(inventory.gpus)
    out.print()
    table = show.counts("env")
    right = 0
    for number, case in enumerate(wanted, 1):
        changes = create(shim, work, case)
        fits = judge(case, changes, inventory)
        right += fits
        show.would_get(out, number, case, parts(changes, inventory), right=fits)
        show.count(
            table, case, (changes.nodes, changes.mounts, changes.hooks, changes.env), right=fits
        )
    show.heading(out, "4", "Counted")
    show.verdict(out, table, right, "bundles")
    return 0 if right == len(wanted) else 1


def create(shim: Path, work: Path, case: Case) -> Changes:
    """Run the shim's create for a case, and return its changes to the bundle."""
    (work / "empty").mkdir(exist_ok=True)
    folder = bundle.make_bundle(
        work / "bundle", work / "empty", ["/bin/sh"], env=case.env, mounts=case.mounts,
        annotations=case.annotations,
    )  # fmt: skip
    before = (folder / "config.json").read_bytes()
    try:
        done = subprocess.run(
            [shim, "create", "--bundle", folder, "demo"], check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        after = (folder / "config.json").read_bytes()
        links = sum(path.is_symlink() for path in (folder / "rootfs").rglob("*"))
    finally:
        remove.remove(folder)
    return replace(difference(before, after, done.returncode, done.stdout.strip()), links=links)


def difference(before: bytes, after: bytes, status: int = 0, error: str = "") -> Changes:
    """Return the additions of an edit to a config.json."""
    old, new = json.loads(before), json.loads(after)
    nodes = _added(old, new, "linux", "devices")
    rules = _added(old, new, "linux", "resources", "devices")
    allowed = {(r["type"], r["major"], r["minor"]) for r in rules if r["allow"]}
    points = new.get("hooks") or {}
    hooks = [hook for point in points for hook in _added(old, new, "hooks", point)]
    return Changes(
        status=status,
        error=error,
        changed=before != after,
        nodes=tuple(node["path"] for node in nodes),
        ruled=frozenset(
            n["path"] for n in nodes if (n["type"], n["major"], n["minor"]) in allowed
        ),
        mounts=tuple((m["source"], m["destination"]) for m in _added(old, new, "mounts")),
        hooks=tuple((hook["path"], " ".join(hook["args"][:2])) for hook in hooks),
        env=tuple(_added(old, new, "process", "env")),
    )


def _added(old: Any, new: Any, *keys: str) -> list[Any]:  # noqa: ANN401 - documents of any kind
    for key in keys:
        old, new = (old or {}).get(key), (new or {}).get(key)
    return [entry for entry in new or () if entry not in (old or ())]


def expected_nodes(case: Case, inventory: Inventory) -> set[str]:
    """Return the device nodes that a request must add: its devices' and the control nodes.

    They come from the node's inventory, not from its CDI spec.
    """
    asked = set(case.expected or ())
    if not asked:
        return set()
    nodes = {node.path for node in inventory.control_nodes}
    for gpu in inventory.gpus:
        parts = [node for mig in gpu.mig if mig.uuid in asked for node in mig.nodes]
        whole = gpu.uuid in asked
        if whole or parts:
            nodes |= {node.path for node in (gpu.node, *parts) if node is not None}
        if whole:
            nodes |= {node.path for node in gpu.drm_nodes} | {link.path for link in gpu.by_path}
    return nodes


def judge(case: Case, changes: Changes, inventory: Inventory) -> bool:
    """Report whether a create made exactly the changes that the request must cause."""
    if case.error:
        one_line = len(changes.error.splitlines()) == 1 and case.error in changes.error
        return changes.status != 0 and one_line and not changes.changed
    if changes.status != 0 or changes.error:
        return False
    if not case.expected:
        return not changes.changed
    expected = expected_nodes(case, inventory)
    exact = len(changes.nodes) == len(expected) and set(changes.nodes) == expected == changes.ruled
    mounted = dict(changes.mounts)
    files = {file.host_path: file.container_path for file in inventory.files}
    return exact and bool(changes.hooks or changes.links) and mounted == files


def parts(changes: Changes, inventory: Inventory) -> dict[str, str]:
    """Return kind -> text of the additions; an error or "nothing" has the key ""."""
    if changes.error:
        return {"": changes.error}
    if not changes.changed:
        return {"": "nothing: its config.json stays as it is"}
    control = {node.path for node in inventory.control_nodes}
    devices = [path for path in changes.nodes if path not in control]
    shared = [path for path in changes.nodes if path in control]
    example = next((to for _, to in changes.mounts if "libcuda.so" in to), "")
    return {
        "nodes": f"{show.nodes(devices)}; {show.nodes(shared)}",
        "mounts": f"{show.several(len(changes.mounts), 'file')} of the driver, such as {example}",
        "hooks": ", ".join(words for _path, words in changes.hooks)
        or f"none; its root has {show.several(changes.links, 'link')} already",
        "env": ", ".join(sorted(changes.env)),
    }


if __name__ == "__main__":
    sys.exit(workspace.inner(lambda: _inside(Path(sys.argv[1]), sys.argv[2:])))
