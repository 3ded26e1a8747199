# SPDX-License-Identifier: Apache-2.0
"""The parts of `make gpu` that need no GPU."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct.host.roots import Roots
from nvct_sim import rootfs
from tests.gpu import __main__ as command
from tests.gpu import chain, machine
from tests.support.host_tree import HostTree

CUDA_CALL = Path(machine.__file__).with_name("cuda_call.py")
# The functions of libcuda that cuda_call.py calls; the memory of the GPU is the program's.
FAKE_CUDA = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned f) { return FAILS; }
int cuGetErrorName(int e, const char **n) { *n = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuDriverGetVersion(int *v) { *v = 13010; return 0; }
int cuDeviceGetCount(int *c) { *c = 1; return 0; }
int cuDeviceGet(int *d, int o) { *d = o; return 0; }
int cuDeviceGetName(char *n, int l, int d) { strncpy(n, "Fake GPU", l); return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = 0; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { *p = (size_t)malloc(n); return 0; }
int cuMemFree_v2(unsigned long long p) { free((void *)p); return 0; }
int cuMemcpyHtoD_v2(unsigned long long d, void *s, size_t n) {
  memcpy((void *)d, s, n); ((char *)d)[n / 2] ^= SPOILS; return 0; }
int cuMemcpyDtoH_v2(void *d, unsigned long long s, size_t n) {
  memcpy(d, (void *)s, n); return 0; }
"""


def call_fake_cuda(folder: Path, *, fails: int = 0, spoils: int = 0) -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = folder / "cuda.c"
    source.write_text(FAKE_CUDA)
    flags = [f"-DFAILS={fails}", f"-DSPOILS={spoils}", "-shared", "-fPIC"]
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, *flags, "-o", library, source], check=True)
    return subprocess.run(
        [machine.interpreter(), "-I", "-S", CUDA_CALL],
        env={"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_cuda_calls_copy_memory_there_and_back(tmp_path: Path) -> None:
    done = call_fake_cuda(tmp_path)

    assert done.stdout.splitlines() == [
        f"CUDA 13.1 from {tmp_path}/libcuda.so.1",
        "CUDA device 0, Fake GPU: 64 MiB there and back, the same bytes",
        "CUDA devices: 1",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_gpu_that_returns_other_bytes_is_a_fault(tmp_path: Path) -> None:
    done = call_fake_cuda(tmp_path, spoils=1)

    assert (done.returncode, done.stderr) == (1, "GPU 0 gave other bytes back\n")


def test_a_call_that_fails_is_named(tmp_path: Path) -> None:
    done = call_fake_cuda(tmp_path, fails=100)

    assert (done.returncode, done.stderr) == (1, "cuInit failed: 100 CUDA_ERROR_NO_DEVICE\n")


def test_a_gpu_is_detected_by_procfs_or_by_its_node(tmp_path: Path) -> None:
    by_procfs, by_node, by_nothing = (HostTree(tmp_path / name) for name in "abc")
    by_procfs.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: X\n")
    by_node.write("dev/nvidia3")
    by_nothing.write("dev/nvidiactl")

    assert machine.has_gpu(by_procfs.roots)
    assert machine.has_gpu(by_node.roots)
    assert not machine.has_gpu(by_nothing.roots)


def test_without_a_gpu_there_is_a_message_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = Roots(dev_root=str(tmp_path), proc=str(tmp_path))

    assert command.real(tmp_path, tmp_path, roots) == 2
    assert capsys.readouterr().out == (
        f"no NVIDIA GPU here: no {tmp_path}/driver/nvidia/gpus, no {tmp_path}/dev/nvidia0\n"
    )


def test_uuids_are_hashed_and_bus_ids_stay() -> None:
    uuid = "12345678-aaaa-bbbb-cccc-000000000000"
    text = f"GPU 0: H100 (UUID: GPU-{uuid}) 0000:18:00.0 MIG-{uuid} GPU-{uuid}"

    redacted = chain.redact(text)

    assert uuid not in redacted
    assert redacted.count("GPU-#") == 2
    words = redacted.split()
    assert words[4].rstrip(")") == words[7]
    assert "0000:18:00.0" in words


def test_the_difference_between_two_specs_is_shown() -> None:
    first: Any = {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}
    second: Any = {"kind": "nvidia.com/gpu", "devices": [{"name": "1"}]}

    assert chain.difference(first, first) == ""
    assert [line.split() for line in chain.difference(first, second).splitlines()] == [
        ["-", '"name":', '"0"'],
        ["+", '"name":', '"1"'],
    ]


def test_an_interpreter_is_copied_with_its_libraries() -> None:
    mounts = machine.interpreter_mounts()
    program = machine.interpreter()

    assert all(path.exists() for path in mounts)
    assert any(path == program or path in program.parents for path in mounts)
    assert not {path.name for path in mounts} & set(rootfs.LIBRARIES)


def test_without_a_runtime_the_error_tells_how_to_carry_one(tmp_path: Path) -> None:
    with pytest.raises(ContainerNotPossibleError) as caught:
        machine.Tools(tmp_path, tmp_path / "carry", folders=())

    assert caught.value.message == "no runc or crun on this host"
    assert caught.value.hint == "carry one: python -m tests.gpu carry"


def test_a_carried_runtime_starts_with_its_own_libraries(tmp_path: Path) -> None:
    if rootfs.find_program("runc") is None:
        pytest.skip("no runc")
    carry = tmp_path / "carry"
    names = {path.name for path in machine.fill(carry)}

    tools = machine.Tools(tmp_path, carry, folders=())

    assert {"runc", "busybox"} <= names
    assert "libc.so.6" not in names
    done = subprocess.run([tools.runtime, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("runc version")
    assert f"LD_LIBRARY_PATH={carry}/lib" in tools.runtime.read_text()
