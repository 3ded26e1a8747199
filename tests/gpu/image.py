# SPDX-License-Identifier: Apache-2.0
"""Containers of an image with CUDA: this machine's own root, without the driver's folder.

The image is an overlay on /, which does not show the file systems that are mounted below it: where
the driver is one of these, the image has none, as an image of CUDA. Its programs run through the
shim, the hook, and the engine's own CDI, with both layouts, runc and crun.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from nvct import paths
from nvct.cdi.make import generate, store
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.roots import Roots
from nvct.linux.kernel import KERNEL
from nvct_sim import attach, bundle, rootfs
from tests.gpu import machine
from tests.gpu.chain import CUDA_CALL, LAYOUTS
from tests.support import cdi_engine

TIMEOUT_S = 60
AT_ONCE = 6 if "NVCT_GPU_SIM" in os.environ else 20
FIRST_ID = 100000
"""Of a user namespace."""
TORCH = """
import torch
a = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
print(torch.cuda.get_device_name(0), torch.cuda.device_count(), float((a @ a).sum()) > 0)
"""
TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, n: tl.constexpr):
    i = tl.arange(0, n); tl.store(y + i, tl.load(x + i) + 1)
x = torch.zeros(1024, device="cuda"); y = torch.empty_like(x)
add[(1,)](x, y, 1024); print(float(y.sum()))
"""
NUMBA = """
import numpy
from numba import cuda
@cuda.jit
def add(x): x[cuda.grid(1)] += 1
x = cuda.to_device(numpy.zeros(1024, dtype=numpy.float32)); add[4, 256](x); print(x.copy_to_host().sum())
"""
SCRIPT = 'echo "$0" > /tmp/a.py && python3 /tmp/a.py'  # compilers of kernels read their source
GCC = """
echo 'int cuInit(unsigned); int main(void) { return cuInit(0); }' > /tmp/a.c
folder=$(dirname "$(ldconfig -p | sed -n 's/.*libcuda.so.1 .*=> //p' | head -n 1)")
gcc /tmp/a.c -L"$folder" -lcuda -o /tmp/a && /tmp/a && echo "cuInit by gcc -lcuda: 0"
"""


class Program(NamedTuple):
    """A program of the image, and a text that it prints if all is right."""

    name: str
    args: list[str]
    prints: str


PROGRAMS = (
    Program("smi", ["nvidia-smi", "-L"], "UUID: GPU-"),
    Program("params", ["cat", "/proc/driver/nvidia/params"], "ModifyDeviceFiles: "),
    Program("cuda", ["python3", "-I", CUDA_CALL], "the same bytes"),
    Program("gcc", ["sh", "-c", GCC], "cuInit by gcc -lcuda: 0"),
    Program("torch", ["sh", "-c", SCRIPT, TORCH], " 1 True"),
    Program("triton", ["sh", "-c", SCRIPT, TRITON], "1024.0"),
    Program("numba", ["sh", "-c", SCRIPT, NUMBA], "1024.0"),
)
NVCT = f"{sys.executable} -m nvct.cli nvct"
"""The checkout and its libraries are part of the image."""
WORDS = ("list", "doctor", "ps", "explain --env NVIDIA_VISIBLE_DEVICES=99")
SAYS = "; ".join(f"{NVCT} {words}" for words in WORDS)
ABOUT = Program("nvct", ["sh", "-c", f"cd {machine.REPOSITORY}; {SAYS}; true"], "99")


class Lab:
    """One machine's containers of the image.

    Attributes:
        log: what each container printed.
        faults: the names of those that were not right.
    """

    def __init__(self, work: Path, roots: Roots, tools: machine.Tools, log: Path) -> None:
        """Make a private mount namespace, the specification and the image."""
        attach.make_private()
        work.chmod(0o755)  # for user namespaces
        self.work, self.roots, self.tools, self.log = work, roots, tools, log
        self.shim = tools.shim()
        self.faults: list[str] = []
        self.count = 0
        options = generate.Options(hook_path=str(self.shim.with_name(paths.HOOK_PROGRAM)))
        self.inventory = modes.discover("nvml", roots, DiscoveryOptions())
        self.spec = work / "cdi/nvidia.json"
        self.spec.parent.mkdir()
        self.spec.write_bytes(store.dumps(generate.generate(self.inventory, options), "json"))
        layers = work / "layers"
        layers.mkdir()
        KERNEL.mount("layers", str(layers), "tmpfs", 0, "mode=755")

    def root(self) -> str:
        """Return a fresh root of the image."""
        self.count += 1
        folders = [self.work / "layers" / f"{name}{self.count}" for name in ("up", "work", "root")]
        for folder in folders:
            folder.mkdir()
        up, scratch, root = map(str, folders)
        options = f"lowerdir=/,upperdir={up},workdir={scratch}"
        KERNEL.mount("image", root, "overlay", 0, options)
        (Path(root) / CUDA_CALL[1:]).write_bytes(
            Path(__file__).with_name("cuda_call.py").read_bytes()
        )
        return root

    def owned_root(self) -> str:
        """Return a small root that belongs to a user namespace, as engines make one."""
        self.count += 1
        root = self.work / f"root{self.count}"
        rootfs.build_rootfs(root, programs=self.tools.programs)
        subprocess.run(["chown", "-R", "-h", f"{FIRST_ID}:{FIRST_ID}", root], check=True)
        return str(root)

    def environment(self, layout: str, runtime: str) -> dict[str, str]:
        """Return the environment of an engine: a config.toml for a layout and a runtime."""
        work = self.work / f"{layout}-{runtime}"
        work.mkdir(exist_ok=True)
        config = work / "config.toml"
        program = self.tools.runtime_of(runtime)
        config.write_text(
            f"[nvidia-container-cli]\nroot = {json.dumps(self.roots.driver_root)}\n"
            f"[nvidia-container-runtime]\nruntimes = [{json.dumps(str(program))}]\n"
            f"modes.cdi.spec-dirs = [{json.dumps(str(self.spec.parent))}]\n"
            f"[nvct]\nlayout = {json.dumps(layout)}\nfarm-dir = {json.dumps(str(work / 'farm'))}\n"
        )
        return {
            "PATH": f"{self.shim.parent}:{os.environ['PATH']}",
            paths.CONFIG_ENV: str(config),
            paths.RUN_DIR_ENV: str(work / "run"),
        }

    def start(self, way: str, layout: str, runtime: str, args: list[str]) -> subprocess.Popen[str]:
        """Start a container that asks for all GPUs: by shim, hook, or the engine's own CDI."""
        env = self.environment(layout, runtime)
        root = self.owned_root() if way == "userns" else self.root()
        folder = self.work / f"bundle{self.count}"
        folder.mkdir()
        asks = [] if way in ("cdi", "bare") else ["NVIDIA_VISIBLE_DEVICES=all"]
        document: dict[str, Any] = bundle.config(
            args,
            env=[
                *asks,
                "NVIDIA_DRIVER_CAPABILITIES=all",
                f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
                f"PATH={os.environ['PATH']}",
                "HOME=/tmp",
            ],
        )
        document["process"]["env"] = document["process"]["env"][1:]
        document["root"]["path"] = root
        if way == "cdi":
            cdi_engine.inject(document, str(self.spec), ["all"])
        if way == "hook":
            hook = str(self.shim.with_name(paths.RUNTIME_HOOK_PROGRAM))
            passed = [f"{key}={value}" for key, value in env.items()]
            document["hooks"] = {
                "prestart": [{"path": hook, "args": [hook, "prestart"], "env": passed}]
            }
        if way == "userns":
            document["linux"]["namespaces"].append({"type": "user"})
            mapping = [{"containerID": 0, "hostID": FIRST_ID, "size": 65536}]
            document["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
            document["mounts"] = [m for m in document["mounts"] if m["destination"] != "/dev/pts"]
        (folder / "config.json").write_text(json.dumps(document))
        bare = way in ("cdi", "hook", "bare")
        program = self.tools.runtime_of(runtime) if bare else self.shim
        command = [str(program), "--root", str(self.work / "state"), "run", "--bundle",
                   str(folder), f"nvct-image-{os.getpid()}-{self.count}"]  # fmt: skip
        return subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def check(self, way: str, layout: str, runtime: str, program: Program) -> None:
        """Run a program in a container, and keep what it printed."""
        since = time.monotonic()
        process = self.start(way, layout, runtime, program.args)
        try:
            output = process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0] + f"\nnot ended after {TIMEOUT_S} s"
        right = process.returncode == 0 and program.prints in output
        name = f"{way} {layout} {runtime} {program.name}"
        self.say(name, right=right, seconds=time.monotonic() - since, output=output)

    def say(self, name: str, *, right: bool, seconds: float, output: str) -> None:
        """Keep a result."""
        self.faults += [] if right else [name]
        with self.log.open("a") as log:
            log.write(f"{'ok   ' if right else 'FAULT'} {seconds:6.2f} s {name}\n{output}\n")

    def at_once(self) -> None:
        """Start many containers at the same time; all of them see the GPUs."""
        since = time.monotonic()
        started = [
            self.start("shim", "farm", "runc", ["nvidia-smi", "-L"]) for _ in range(AT_ONCE)
        ]
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in started]
        wrong = [text for text in outputs if "UUID: GPU-" not in text]
        self.say(f"{AT_ONCE} at once", right=not wrong, seconds=time.monotonic() - since,
                 output="\n".join(wrong))  # fmt: skip

    def first_call(self) -> str:
        """Return how long CUDA's first copy takes on the host and in a container, in seconds."""
        since = time.monotonic()
        call = Path(__file__).with_name("cuda_call.py")
        subprocess.run(["python3", "-I", call], check=True, capture_output=True)
        host_s = time.monotonic() - since
        since = time.monotonic()
        self.start("shim", "farm", "runc", ["python3", "-I", CUDA_CALL]).communicate()
        return (
            f"CUDA's first copy: host {host_s:.2f} s, container {time.monotonic() - since:.2f} s"
        )


def run(work: Path, roots: Roots, carry: Path, log: Path) -> tuple[list[str], str]:
    """Run all programs; return the names of the wrong ones, and a summary."""
    lab = Lab(work, roots, machine.Tools(work, carry), log)
    has_torch = shutil.which("nvcc") is not None
    for program in PROGRAMS if has_torch else PROGRAMS[:1]:
        lab.check("shim", "farm", "runc", program)
    for runtime in machine.RUNTIMES:
        said = lab.start("bare", "classic", runtime, ["uname"]).communicate(timeout=TIMEOUT_S)[0]
        if said != "Linux\n":
            lab.say(f"{runtime} starts no container here", right=True, seconds=0, output=said)
            continue
        for layout in LAYOUTS:
            for way in ("shim", "hook", "cdi"):
                lab.check(way, layout, runtime, PROGRAMS[0])
                if has_torch:
                    lab.check(way, layout, runtime, PROGRAMS[2])
    lab.check("shim", "farm", "runc", ABOUT)
    lab.check("userns", "farm", "runc", PROGRAMS[0])
    lab.at_once()
    summary = lab.first_call() if has_torch else ""
    return lab.faults, summary
