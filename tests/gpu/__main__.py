# SPDX-License-Identifier: Apache-2.0
"""`make gpu`: specs by procfs and by NVML, and containers that use the GPU through them.

Needs root, and nothing from the network: what a machine may lack (runc, a static busybox) is taken
from the folder that NVCT_GPU_CARRY names, by default tests/gpu/carry, which
`python -m tests.gpu carry` fills on a machine that has it.

    python -m tests.gpu          on this machine's GPUs
    python -m tests.gpu --sim    on a simulated node: everything but the CUDA calls
    python -m tests.gpu carry    fill the folder
    python -m tests.gpu kit KIT HOT          build the GPU kit (make gpu-kit)
    python -m tests.gpu likeness FILE        compare a simulated node with a record (make likeness)
    python -m tests.gpu record FILE [--sim]  record this machine; tests/gpu/run.sh starts it

What it prints is redacted: UUIDs are hashed, the PCI bus ids stay. Exit status: 0 all is right,
1 something is not, 2 there is no GPU.
"""

import os
import sys
import tempfile
from pathlib import Path

from nvct.errors import NvctError, line
from nvct.host.roots import Roots
from nvct_sim import attach, tree
from nvct_sim.native import build
from tests.gpu import chain, likeness, machine, record

REPOSITORY = Path(__file__).parents[2]
PROFILE = "h100"
NO_GPU = 2


def main(argv: list[str]) -> int:
    """Run the command given by the arguments."""
    work = Path(tempfile.mkdtemp(prefix="nvct-gpu-"))
    carry = Path(os.environ.get("NVCT_GPU_CARRY") or machine.CARRY)
    try:
        match argv:
            case []:
                # The driver's root is /, unless the variable has another.
                root = os.environ.get("NVCT_GPU_ROOT", "/")
                return real(work, carry, Roots(driver_root=root))
            case ["--sim"]:
                return simulated(work, carry, ["--inside"], attach.DRIVER_ROOT)
            case ["--inside"]:
                node = Roots(driver_root=os.environ.get("NVCT_GPU_ROOT", "/"))
                return chain.run(node, machine.Tools(work, carry), simulated=True)
            case ["carry"]:
                print(*machine.fill(carry), sep="\n")
                return 0
            case ["kit", folder, hot]:
                from tests.gpu import kit

                size = kit.make(Path(folder), Path(hot))
                print(f"{folder}: {size / (1 << 20):.1f} MiB; use it with tests/gpu/run.sh")
                return 0
            case ["record", file]:
                if not machine.has_gpu(Roots(driver_root=os.environ.get("NVCT_GPU_ROOT", "/"))):
                    print("no NVIDIA GPU here: no /dev/nvidia0; SIM=1 records a simulated node")
                    return NO_GPU
                return record.run(Path(file), work)
            case ["record", file, "--sim"]:
                return simulated(work, carry, ["record", file], "/")
            case ["likeness", file]:
                return compared(work, carry, Path(file))
            case ["parts", file]:
                return record.run(Path(file), work, likeness.PARTS)
        print(__doc__)
        return 1
    except NvctError as error:
        print(line("make gpu", error))
        return 1
    finally:
        machine.remove(work)


def real(work: Path, carry: Path, roots: Roots) -> int:
    """Run the chain on this machine."""
    if not machine.has_gpu(roots):
        print(f"no NVIDIA GPU here: no {roots.proc}/driver/nvidia/gpus, no {roots.dev}/nvidia0")
        return NO_GPU
    if os.geteuid() != 0:
        print("containers that use a GPU are started as root: run it with sudo")
        return 1
    attach.make_private()  # mounts of a view end with this process
    return chain.run(roots, machine.Tools(work, carry), simulated=False)


def compared(work: Path, carry: Path, real: Path) -> int:
    """Print how a simulated node differs from a record of a real one."""
    file, texts = work / "simulated.tar.gz", record.read(real)
    words = ["parts", str(file)]
    status = simulated(work, carry, words, "/", likeness.profile_of(texts))
    if status == 0:
        found = likeness.differences(texts, record.read(file))
        print(*found, f"{len(found)} differences", sep="\n")
    return status


def simulated(
    work: Path, carry: Path, words: list[str], driver_root: str, profile: str = PROFILE
) -> int:
    """Run this program on a simulated node, in a private mount namespace."""
    if (carried := carry / machine.NATIVE).exists():
        build.SHIPPED = carried
    node = tree.create(
        f"gpu-{os.getpid()}",
        profile,
        base=work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )
    try:
        return attach.exec_in(
            node,
            [sys.executable, "-m", "tests.gpu", *words],
            {**os.environ, "NVCT_GPU_ROOT": driver_root, "NVCT_GPU_SIM": "1"},
            driver_root=driver_root,
            cwd=str(REPOSITORY),
        )
    finally:
        tree.destroy(node)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
