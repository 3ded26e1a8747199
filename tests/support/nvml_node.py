# SPDX-License-Identifier: Apache-2.0
"""A simulated node of plain files, with only what the NVML library needs: a state and nodes.

Contract: written from the description of the state file, without nvct_sim, so that tests can
compare the two.
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pynvml

CACHE = Path(__file__).parents[2] / ".cache/native"  # built once, not once a session
OFFSET, SIZE = 8192, 262144
VERSION = "580.159.04"
EIGHTHS = "0:1,1:1,2:1,3:1,4:1,5:1,6:1"
H100_PROFILES = (
    f"id=19\tname=1g.10gb\tslices=1\tmedia=0\tsm=16\tmemory=9856\tmax=7\tplacements={EIGHTHS}",
    f"id=20\tname=1g.10gb+me\tslices=1\tmedia=1\tsm=16\tmemory=9856\tmax=1\tplacements={EIGHTHS}",
    "id=15\tname=1g.20gb\tslices=1\tmedia=0\tsm=26\tmemory=20096\tmax=4\tplacements=0:2,2:2,4:2,6:2",
    "id=14\tname=2g.20gb\tslices=2\tmedia=0\tsm=32\tmemory=20096\tmax=3\tplacements=0:2,2:2,4:2",
    "id=9\tname=3g.40gb\tslices=3\tmedia=0\tsm=60\tmemory=40448\tmax=2\tplacements=0:4,4:4",
    "id=5\tname=4g.40gb\tslices=4\tmedia=0\tsm=64\tmemory=40448\tmax=1\tplacements=0:4",
    "id=0\tname=7g.80gb\tslices=7\tmedia=1\tsm=132\tmemory=81152\tmax=1\tplacements=0:8",
)


def gpu_uuid(index: int) -> str:
    return f"GPU-00000000-1111-5222-8333-{index:012x}"


def gpu_record(index: int, **changes: object) -> str:
    fields: dict[str, object] = {
        "index": index, "minor": index, "uuid": gpu_uuid(index), "name": "NVIDIA H100 80GB HBM3",
        "bus": f"00000000:{0x18 + 16 * index:02X}:00.0", "memory": 85520809984, "cc": "9.0",
        "arch": 9, "brand": 14, "device": "0x233010DE", "subsystem": "0x16C110DE",
        "serial": 1320000000 + index, "migcapable": 1, "mig": 0, "lost": 0, "power": 700000,
        "temp": 34,
    }  # fmt: skip
    return "\t".join(["gpu", *(f"{key}={value}" for key, value in {**fields, **changes}.items())])


@dataclass
class NvmlNode:
    """The paths of a node, and its state as lines of text."""

    tree: Path
    built: dict[str, Path]
    version: str = VERSION

    @property
    def library(self) -> Path:
        return self.tree / f"lib/libnvidia-ml.so.{self.version}"

    @property
    def state_file(self) -> Path:
        return self.tree / f"lib/libnvidia-simstate.so.{self.version}"

    @property
    def dev(self) -> Path:
        return self.tree / "dev"

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.tree / "lib"), "NVCT_SIM_DEV": str(self.dev)}

    def lines(self) -> list[str]:
        """Return the records between the first line and the last."""
        data = self.state_file.read_bytes()
        assert len(data) == SIZE
        lines = data[OFFSET:].rstrip(b"\0").decode().split("\n")
        assert lines.pop() == ""
        generation = lines[0].removeprefix("nvct-sim\t1\t")
        assert lines[-1] == f"end\t{generation}"
        return lines[1:-1]

    def generation(self) -> int:
        head = self.state_file.read_bytes()[OFFSET : OFFSET + 64].split(b"\n")[0]
        return int(head.split(b"\t")[2])

    def write_text(self, text: bytes) -> None:
        """Replace the text in place, without a check."""
        with self.state_file.open("r+b") as file:
            os.pwrite(file.fileno(), text.ljust(SIZE - OFFSET, b"\0"), OFFSET)

    def write(self, lines: list[str]) -> None:
        """Write a new generation, as another process does."""
        with self.state_file.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            number = self.generation() + 1
            text = "\n".join([f"nvct-sim\t1\t{number}", *lines, f"end\t{number}\n"])
            os.pwrite(file.fileno(), text.encode().ljust(SIZE - OFFSET, b"\0"), OFFSET)

    def add(self, *lines: str) -> None:
        self.write([*self.lines(), *lines])

    def set_gpus(self, *records: str) -> None:
        """Replace all GPUs."""
        self.write([*(line for line in self.lines() if not line.startswith("gpu\t")), *records])

    def change_gpu(self, index: int, key: str, value: object) -> None:
        """Set one field of one GPU."""
        pattern, start = re.compile(rf"\t{key}=[^\t]*"), f"gpu\tindex={index}\t"
        self.write(
            [
                pattern.sub(f"\t{key}={value}", x) if x.startswith(start) else x
                for x in self.lines()
            ]
        )

    def add_mig_devices(self, gpu: int, count: int) -> list[str]:
        """Add 1g.10gb instances with their capability nodes to a GPU; return their UUIDs."""
        uuids, records = [], []
        for n in range(count):
            gi, minor = 7 + n, 3 + gpu * 135 + (7 + n) * 9
            uuids.append(f"MIG-{gpu:08x}-1111-5222-8333-{n:012x}")
            records += [
                f"gi\tgpu={gpu}\tid={gi}\tprofile=19\tstart={n}\tsize=1",
                f"ci\tgpu={gpu}\tgi={gi}\tid=0\tprofile=0\tuuid={uuids[-1]}",
                f"cap\tgpu={gpu}\tgi={gi}\tminor={minor}",
                f"cap\tgpu={gpu}\tgi={gi}\tci=0\tminor={minor + 1}",
            ]
            for cap in (minor, minor + 1):
                (self.dev / f"nvidia-caps/nvidia-cap{cap}").touch()
        self.change_gpu(gpu, "mig", 1)
        self.add(*records)
        return uuids

    def smi(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run nvidia-smi on this node."""
        return subprocess.run(  # type: ignore[call-overload, no-any-return]
            [self.built["nvidia-smi"], *arguments],
            env=self.environment, capture_output=True, text=True, check=False, timeout=10, **options,
        )  # fmt: skip


def make_node(
    tree: Path, built: dict[str, Path], *, gpus: int = 4, driver: str = VERSION
) -> NvmlNode:
    """Write a node with H100s; `driver` is the version in the state."""
    node = NvmlNode(tree, built)
    (tree / "lib").mkdir(parents=True)
    (tree / "dev/nvidia-caps").mkdir(parents=True)
    (tree / "proc/driver/nvidia/capabilities").mkdir(parents=True)
    shutil.copyfile(
        built["libnvidia-ml.so"], node.library
    )  # a copy: the loader identifies libraries by inode
    (tree / "lib/libnvidia-ml.so.1").symlink_to(node.library.name)
    for name in ("nvidiactl", *(f"nvidia{n}" for n in range(gpus))):
        (node.dev / name).touch()
    lines = [
        "nvct-sim\t1\t1", f"driver\t{driver}", "cuda\t13000", f"tree\t{tree}",
        "major\tnvidia=195\tnvidia-caps=236\tnvidia-uvm=508",
        *(gpu_record(n) for n in range(gpus)),
        *(f"profile\tgpu=*\t{fields}" for fields in H100_PROFILES), "end\t1\n",
    ]  # fmt: skip
    node.state_file.write_bytes((b"\x7fELF".ljust(OFFSET, b"\0")).ljust(SIZE, b"\0"))
    node.write_text("\n".join(lines).encode())
    return node


def code_of(call: Callable[..., object], *arguments: object) -> int:
    """Call a function of nvidia-ml-py and return NVML's result."""
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return int(error.args[0])
    return 0
