# SPDX-License-Identifier: Apache-2.0
"""What the integration tests do inside a simulated node; each function is a process of its own."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvct.cdi.read import load
from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct.paths import CONFIG_ENV, OWN_CONFIG_ENV
from nvct_sim import attach, bundle, node_changes, tree
from tests.support.processes import captured

DRIVER_ROOT = "/run/nvidia/driver"
SPEC = "/var/run/cdi/nvidia.json"
UUID = re.compile(r"UUID: ((?:GPU|MIG)-[0-9a-f-]+)\)")
PROBE = (
    "cd /dev && find . -name '*nvidia*' -type c | sort; echo --; "
    "grep -o ' /[^ ]*nvidia[^ ]* ' /proc/self/mountinfo | wc -l; echo --; "
    "ldconfig -p | grep -c libcuda.so.1; echo --; nvidia-smi -L"
)
OLD_KERNEL = """
import ctypes, os, struct, sys

LAST = 313  # finit_module, the last call of Linux 3.8 to 3.13 on x86_64
LOAD, AT_LEAST, RETURN = 0x20, 0x35, 0x06
NO_CALL = 0x00050000 | 38  # SECCOMP_RET_ERRNO, ENOSYS
program = b"".join(
    struct.pack("HBBI", *line)
    for line in ((LOAD, 0, 0, 0), (AT_LEAST, 0, 1, LAST + 1), (RETURN, 0, 0, NO_CALL),
                 (RETURN, 0, 0, 0x7FFF0000))
)
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(22, 2, filter, 0, 0) == 0, "PR_SET_SECCOMP"
assert (libc.syscall(318, None, 0, 0), ctypes.get_errno()) == (-1, 38), "getrandom, of 3.17"
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Code that starts a program without the system calls that came after Linux 3.10."""
VERSIONS = "ls /usr/lib/*-linux-gnu/; nvidia-smi -L"
FARM_VERSIONS = "ls /usr/local/nvidia/lib64; nvidia-smi -L"


def shim() -> str:
    """Return the path of the installed shim."""
    return str(Path(sys.executable).with_name("nvidia-container-runtime"))


def configure(work: Path, extra: str = "", *, layout: str = "auto") -> None:
    """Write a config.toml for this node and point this process's children to it.

    Views are hard links, unless `extra` has a table [nvct] that says where else they are.
    """
    path = work / "config.toml"
    if "[nvct]" not in extra:
        extra += f'\n[nvct]\nfarm-dir = "{attach.farm_dir()}"\nlayout = "{layout}"\n'
    path.write_text(
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
        f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n{extra}',
        encoding="utf-8",
    )
    os.environ[CONFIG_ENV] = os.environ[OWN_CONFIG_ENV] = str(path)


def generate(path: str = SPEC) -> dict[str, Any]:
    """Write the node's CDI spec with the command line and return it."""
    ctk = Path(sys.executable).with_name("nvidia-ctk")
    subprocess.run([ctk, "cdi", "generate", "--output", path], check=True)
    return dict(load.load_file(path))


def make(work: Path, name: str, script: str, **asks: Any) -> Path:
    """Return a new bundle that runs a shell script."""
    return bundle.make_bundle(work / name, work / "rootfs", ["/bin/sh", "-c", script], **asks)


def leave_hybrid_cgroups() -> None:
    """Unmount cgroup v2 beside v1, which crun refuses; this mount namespace is our own."""
    unified = "/sys/fs/cgroup/unified"
    if os.path.ismount(unified):
        KERNEL.umount2(unified, MNT_DETACH)


def run(work: Path, folder: Path, program: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a bundle to its end."""
    return captured(command(work, folder, program), timeout=120, stdin=subprocess.DEVNULL)


def command(work: Path, folder: Path, program: str | None = None) -> list[str]:
    """Return the command line that runs a bundle to its end."""
    root = str(work / "runc")
    name = f"t{os.getpid()}-{folder.name}"
    return [program or shim(), "--root", root, "run", "--bundle", str(folder), name]


@dataclass
class Wish:
    """A request and what has to come of it."""

    env: list[str]
    annotations: dict[str, str]
    names: list[str]


def wishes(spec: dict[str, Any], count: int) -> list[Wish]:
    """Return different requests: subsets by index, UUID, MIG index, CDI name, all and none."""
    chosen = random.Random(7)
    plain = [d["name"] for d in spec["devices"] if d["name"] != "all"]
    made = []
    for number in range(count):
        names = chosen.sample(plain, chosen.randint(1, 4))
        if number % 10 == 8:
            names = ["all"]
        elif number % 10 == 9:
            names = []
        value = ",".join(names) or "none"
        annotations: dict[str, str] = {}
        env = [f"NVIDIA_VISIBLE_DEVICES={value}"]
        if names and number % 3 == 0:
            joined = ",".join(f"nvidia.com/gpu={n}" for n in names)
            env, annotations = [], {"cdi.k8s.io/test": joined}
        made.append(Wish(env, annotations, names))
    return made


def expected_nodes(spec: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Return the device nodes below /dev that a request must bring, as `find .` prints them."""
    common = [n["path"] for n in spec["containerEdits"]["deviceNodes"]]
    devices = {d["name"]: d["containerEdits"].get("deviceNodes", []) for d in spec["devices"]}
    nodes = common + [n["path"] for name in names for n in devices[name]]
    return sorted({f".{n.removeprefix('/dev')}" for n in nodes if "nvidia" in n})


def parallel(work: Path) -> None:
    """Create 200 containers at once; each must hold exactly what it asked for."""
    configure(work)
    spec = generate()
    nodes = {d["name"]: d for d in spec["devices"]}
    by_nodes = _uuids(spec)
    wanted = wishes(spec, 200)
    folders = [
        make(work, f"p{i}", PROBE, env=w.env, annotations=w.annotations)
        for i, w in enumerate(wanted)
    ]
    started = [
        subprocess.Popen(
            command(work, f), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            stdin=subprocess.DEVNULL,
        )
        for f in folders
    ]  # fmt: skip
    mounted: dict[str, set[str]] = {"view": set(), "spec": set()}
    for process, wish, folder in zip(started, wanted, folders, strict=True):
        said, _ = process.communicate(timeout=500)
        parts = said.split("--\n")
        assert len(parts) == 4, f"{wish}: {said}"
        assert parts[0].split() == expected_nodes(spec, wish.names), wish
        mounted["spec" if wish.annotations else "view"].add(parts[1].strip())
        assert parts[2].strip() == "1", f"{wish}: ldconfig -p does not list libcuda.so.1 once"
        seen = set(UUID.findall(parts[3]))
        asked = {by_nodes[name] for name in wish.names if name != "all"}
        if wish.names == ["all"]:
            asked = {n for n in nodes if n.startswith(("GPU-", "MIG-"))}
        parents = {u for u in seen if u.startswith("GPU-")} - asked
        assert asked <= seen, f"{wish}: {parts[3]}"
        assert seen - asked == parents, f"{wish}: {parts[3]}"
        assert all(_is_parent(parts[3], parent) for parent in parents), f"{wish}: {parts[3]}"
        shutil.rmtree(folder)
    assert {len(numbers) for numbers in mounted.values()} == {1}, f"mounts differ: {mounted}"


def _is_parent(listing: str, uuid: str) -> bool:
    """Tell whether a GPU is listed only as the parent of a MIG device."""
    lines = listing.splitlines()
    at = next(i for i, text in enumerate(lines) if uuid in text)
    return at + 1 < len(lines) and lines[at + 1].lstrip().startswith("MIG ")


def _uuids(spec: dict[str, Any]) -> dict[str, str]:
    """Return the UUID of each device name, by the equal edits of its two names."""
    edits = {json.dumps(d["containerEdits"], sort_keys=True): d["name"] for d in spec["devices"]
             if d["name"].startswith(("GPU-", "MIG-"))}  # fmt: skip
    return {
        d["name"]: edits[json.dumps(d["containerEdits"], sort_keys=True)]
        for d in spec["devices"]
        if d["name"] != "all"
    }


def missing_rule(work: Path) -> None:
    """A node whose device rule is missing is there, cannot be opened, and is not listed."""
    configure(work)
    folder = make(work, "rule", PROBE, env=["NVIDIA_VISIBLE_DEVICES=0,1"])
    noop = work / "noop"
    noop.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    noop.chmod(0o755)
    configure(work, f'[nvidia-container-runtime]\nruntimes = ["{noop}"]\n')
    subprocess.run([shim(), "create", "--bundle", folder, "x"], check=True)
    path = folder / "config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    node = next(d for d in document["linux"]["devices"] if d["path"] == "/dev/nvidia1")
    rules = document["linux"]["resources"]["devices"]
    number = (node["major"], node["minor"])
    kept = [r for r in rules if (r.get("major"), r.get("minor")) != number]
    assert len(kept) == len(rules) - 1
    document["linux"]["resources"]["devices"] = kept
    path.write_text(json.dumps(document), encoding="utf-8")
    said = run(work, folder, shutil.which("runc"))
    assert said.returncode == 0, said
    assert "./nvidia1" in said.stdout
    assert len(UUID.findall(said.stdout)) == 1, said.stdout


def changes_are_seen(work: Path) -> None:
    """A change of config.toml and spec files is seen by the next create."""
    configure(work)
    first = run(work, make(work, "c1", "nvidia-smi -L", env=["NVIDIA_VISIBLE_DEVICES=0"]))
    assert len(UUID.findall(first.stdout)) == 1, first
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "acme.com/gpu",
        "devices": [{"name": "a", "containerEdits": {"env": ["ACME=1"]}}],
    }
    Path("/etc/cdi").mkdir(exist_ok=True)
    path = Path("/etc/cdi/acme.json")
    asks = {"cdi.k8s.io/x": "acme.com/gpu=a"}
    for value in ("1", "2"):
        spec["devices"][0]["containerEdits"]["env"] = [f"ACME={value}"]  # type: ignore[index]  # plain data
        path.write_text(json.dumps(spec), encoding="utf-8")
        said = run(work, make(work, f"c-{value}", "echo $ACME", annotations=asks))
        assert said.stdout == f"{value}\n", said
    path.unlink()
    gone = run(work, make(work, "c-gone", "true", annotations=asks))
    assert gone.returncode == 1
    assert "acme.com/gpu" in gone.stderr
    configure(work, '[nvidia-container-runtime]\nruntimes = ["/nowhere/runc"]\n')
    broken = run(work, make(work, "c-runtime", "true"))
    assert broken.returncode == 127, broken


def refusals(work: Path) -> None:
    """What cannot be had fails the create with one line; what is not asked for never does."""
    configure(work)
    for number, value in enumerate(("9", "gpu0", "3", "0,foo", "MIG-nothing", "0-3")):
        said = run(work, make(work, f"r{number}", "true", env=[f"NVIDIA_VISIBLE_DEVICES={value}"]))
        assert said.returncode == 1, said
        assert said.stdout == ""
        lines = said.stderr.splitlines()
        assert len(lines) == 1, said
        assert len(lines[0]) <= 200
        assert value.split(",")[-1] in lines[0]
    for number, asks in enumerate(
        ([], ["NVIDIA_VISIBLE_DEVICES="], ["NVIDIA_VISIBLE_DEVICES=void"])
    ):
        said = run(work, make(work, f"n{number}", "ls /dev | grep -c nvidia", env=asks))
        assert said.stdout == "0\n", said
    Path(os.environ[CONFIG_ENV]).write_text("mode = [broken", encoding="utf-8")
    said = run(work, make(work, "n-broken", "echo fine"))
    assert said.stdout == "fine\n", said
    said = run(work, make(work, "r-broken", "true", env=["NVIDIA_VISIBLE_DEVICES=0"]))
    assert said.returncode == 1
    assert "config.toml" in said.stderr


def crun(work: Path) -> None:
    """The same by crun, with its own command line forms and its own hook state."""
    leave_hybrid_cgroups()
    found = shutil.which("crun")
    if not found:
        raise SystemExit("SKIP: crun is not installed")
    bare = run(work, make(work, "crun-bare", "echo runs"), found)
    if bare.returncode:
        raise SystemExit(f"SKIP: crun does not run here: {bare.stderr.strip()}")
    configure(work, f'[nvidia-container-runtime]\nruntimes = ["{found}"]\n')
    folder = make(work, "crun-gpu", PROBE, env=["NVIDIA_VISIBLE_DEVICES=0,3:1"])
    said = run(work, folder)
    assert said.returncode == 0, said
    assert "./nvidia0\n" in said.stdout
    assert len(UUID.findall(said.stdout)) == 3, said  # a GPU, a MIG device and its parent
    assert "\n--\n1\n--\n" in said.stdout, said


def node_changes_are_seen(work: Path) -> None:
    """A MIG device destroyed through NVML, and a driver upgrade, are seen by the next create.

    Until the module of the new driver is loaded, containers have the one that fits, or none.
    """
    configure(work)
    (node,) = tree.list_nodes(work / "nodes")
    asks = ["NVIDIA_VISIBLE_DEVICES=3:6"]
    before = run(work, make(work, "m-before", "nvidia-smi -L", env=asks))
    assert "MIG 1g.10gb" in before.stdout, before

    smi = f"{DRIVER_ROOT}/usr/bin/nvidia-smi"
    library_path = {"LD_LIBRARY_PATH": f"{DRIVER_ROOT}/usr/lib/{os.uname().machine}-linux-gnu"}
    gi = node.state().find("ci")[-1].fields["gi"]
    for words in (["-dci", "-ci", "0", "-gi", str(gi)], ["-dgi", "-gi", str(gi)]):
        subprocess.run([smi, "mig", *words, "-i", "3"], env=library_path, check=True)
    after = run(work, make(work, "m-after", "true", env=asks))
    assert after.returncode == 1
    assert "'3:6'" in after.stderr, after
    others = run(work, make(work, "m-all", "nvidia-smi -L", env=["NVIDIA_VISIBLE_DEVICES=all"]))
    assert others.stdout.count("MIG 1g.10gb") == 6, others

    upgraded = node_changes.upgrade(node, "590.48.01")  # on disk; the old module is still loaded
    kept = run(work, make(work, "u-kept", FARM_VERSIONS, env=["NVIDIA_VISIBLE_DEVICES=0"]))
    assert kept.returncode == 0, kept
    assert f"libcuda.so.{node.installed}\n" in kept.stdout, kept
    assert len(UUID.findall(kept.stdout)) == 1, kept
    configure(work, layout="classic")
    stale = run(work, make(work, "u-stale", "true", env=["NVIDIA_VISIBLE_DEVICES=0"]))
    assert stale.returncode == 1, "libraries that do not fit the module were injected"
    node_changes.reload_module(upgraded)
    new = run(work, make(work, "u-new", VERSIONS, env=["NVIDIA_VISIBLE_DEVICES=0"]))
    assert new.returncode == 0, new
    assert "libcuda.so.590.48.01" in new.stdout
    assert len(UUID.findall(new.stdout)) == 1, new


def on_old_kernel(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command whose newer system calls fail."""
    return captured(
        [sys.executable, "-c", OLD_KERNEL, *words], timeout=60, stdin=subprocess.DEVNULL
    )


def old_kernel(work: Path) -> None:
    """On a kernel with the system calls of Linux 3.10, both layouts give a container its GPUs."""
    try:
        bare = on_old_kernel(command(work, make(work, "old-bare", "true"), shutil.which("runc")))
    except subprocess.TimeoutExpired:
        raise SystemExit(
            "SKIP: that kernel is too old for this engine, without a GPU too"
        ) from None
    assert bare.returncode == 0, bare
    for layout in ("auto", "classic", "farm"):
        configure(work, layout=layout)
        folder = make(work, f"old-{layout}", PROBE, env=["NVIDIA_VISIBLE_DEVICES=0,1"])
        said = on_old_kernel(command(work, folder))
        assert said.returncode == 0, said
        assert len(UUID.findall(said.stdout)) == 2, said
