# SPDX-License-Identifier: Apache-2.0
import ctypes
import errno
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.nvml_node import NvmlNode, code_of, gpu_record, gpu_uuid, make_node


def handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]


# --- initialisation -------------------------------------------------------------------------


def test_every_function_of_nvidia_ml_py_exists_and_needs_initialisation(nvml: Any) -> None:
    text = Path(pynvml.__file__).read_text()
    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text)))
    special = {"nvmlErrorString", "nvmlInitWithFlags"}
    scratch = ctypes.create_string_buffer(8192)  # for any argument of the function

    codes = {
        name: getattr(nvml.nvmlLib, name)(*[scratch] * 5) for name in names if name not in special
    }

    assert len(names) > 300
    expected = {nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH}
    assert {name: code for name, code in codes.items() if code not in expected} == {}


def test_versions_and_error_strings_are_those_of_the_real_library(nvml: Any) -> None:
    assert nvml.nvmlErrorString(nvml.NVML_SUCCESS) == "Success"
    assert nvml.nvmlErrorString(nvml.NVML_ERROR_GPU_IS_LOST) == "GPU is lost"
    assert nvml.nvmlErrorString(18) == "Driver/library version mismatch"
    assert nvml.nvmlErrorString(4711) == "Unknown Error"
    nvml.nvmlInit()
    assert nvml.nvmlSystemGetDriverVersion() == "580.159.04"
    assert nvml.nvmlSystemGetNVMLVersion() == "13.580.159.04"
    assert nvml.nvmlSystemGetCudaDriverVersion() == 13000
    # functions that are not simulated
    assert nvml.nvmlLib.nvmlDeviceGetGridLicensableFeatures_v4(None, None) == 3
    assert code_of(nvml.nvmlDeviceGetNvLinkState, handles(nvml)[0], 0) == 3


def test_each_initialisation_needs_a_shutdown(nvml: Any) -> None:
    nvml.nvmlInit()
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetCount() == 4
    nvml.nvmlShutdown()

    assert code_of(nvml.nvmlDeviceGetCount) == nvml.NVML_ERROR_UNINITIALIZED
    assert nvml.nvmlLib.nvmlShutdown() == nvml.NVML_ERROR_UNINITIALIZED


@pytest.mark.parametrize("missing", ["dev/nvidiactl", "state"])
def test_without_the_control_node_or_a_state_no_driver_is_loaded(
    node: NvmlNode, nvml: Any, missing: str
) -> None:
    (node.state_file if missing == "state" else node.dev / "nvidiactl").unlink()

    assert code_of(nvml.nvmlInit) == nvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_a_module_of_another_version_is_a_mismatch_and_too_many_gpus_an_error(
    node: NvmlNode, nvml: Any
) -> None:
    before = node.lines()
    node.write([line.replace("580.159.04", "575.1") for line in before])
    assert code_of(nvml.nvmlInit) == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    node.write(before)
    node.add(*(gpu_record(n) for n in range(4, 80)))
    assert code_of(nvml.nvmlInit) == nvml.NVML_ERROR_UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 100,
        b"nvct-sim\t2\t1\nend\t1\n",
        b"nvct-sim\t1\t1\ndriver\t580.159.04\nend\t2\n",
        b"nvct-sim\t1\t1\ndriver\t580.159.04\n",
        b"nvct-sim\t1\t1\ngpu\tname=without index\nend\t1\n",
        b"nvct-sim\t1\t1\ncuda\tthirteen\nend\t1\n",
        b"x" * 122880,
    ],
    ids=["empty", "zeros", "version", "torn", "no end", "gpu without index", "no number", "full"],
)
def test_a_damaged_state_is_an_error_and_no_crash(node: NvmlNode, nvml: Any, text: bytes) -> None:
    node.write_text(text)

    assert code_of(nvml.nvmlInit) == nvml.NVML_ERROR_UNKNOWN


# --- visibility -----------------------------------------------------------------------------


def test_a_gpu_without_its_node_is_skipped_in_the_numbering(node: NvmlNode, nvml: Any) -> None:
    (node.dev / "nvidia1").unlink()
    nvml.nvmlInit()

    visible = handles(nvml)

    assert [nvml.nvmlDeviceGetUUID(h) for h in visible] == [gpu_uuid(n) for n in (0, 2, 3)]
    assert [nvml.nvmlDeviceGetMinorNumber(h) for h in visible] == [0, 2, 3]
    assert [nvml.nvmlDeviceGetIndex(h) for h in visible] == [0, 1, 2]
    assert code_of(nvml.nvmlDeviceGetHandleByIndex, 3) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(nvml.nvmlDeviceGetHandleByUUID, gpu_uuid(1)) == nvml.NVML_ERROR_NOT_FOUND
    assert code_of(nvml.nvmlDeviceGetHandleBySerial, "1320000001") == nvml.NVML_ERROR_NOT_FOUND
    assert code_of(nvml.nvmlDeviceGetHandleByPciBusId, "0000:28:00.0") == 4


def test_nodes_are_found_by_minor_number_not_by_index(
    tmp_path: Path, built: dict[str, Path]
) -> None:
    node = make_node(tmp_path / "other", built, gpus=2)
    node.write([line.replace("minor=1", "minor=7") for line in node.lines()])
    assert node.smi("-L").stdout.count("GPU ") == 1

    (node.dev / "nvidia7").touch()

    assert gpu_uuid(1) in node.smi("-L").stdout


def test_a_gpu_whose_node_cannot_be_opened_is_hidden(node: NvmlNode, nvml: Any) -> None:
    (node.dev / "nvidia0").unlink()
    (node.dev / "nvidia0").mkdir()
    (node.dev / "nvidia2").unlink()
    (node.dev / "nvidia2").symlink_to("nvidia2")
    nvml.nvmlInit()

    assert [nvml.nvmlDeviceGetUUID(h) for h in handles(nvml)] == [gpu_uuid(1), gpu_uuid(3)]


def test_a_character_node_without_a_driver_behind_it_is_visible(node: NvmlNode, nvml: Any) -> None:
    path = node.dev / "nvidia0"
    path.unlink()
    try:
        os.mknod(path, 0o020666, os.makedev(508, 0))
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        if error.errno != errno.ENXIO:
            pytest.skip(f"needs root, and a device major that no driver has: {error.strerror}")
    nvml.nvmlInit()

    assert nvml.nvmlDeviceGetCount() == 4


@pytest.mark.parametrize(("name", "status"), [("nvidiactl", 4), ("nvidia2", 0)])
def test_a_node_that_must_not_be_opened_does_not_count(
    built: dict[str, Path], name: str, status: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = make_node(Path(folder) / "node", built)
        smi = Path(folder) / "nvidia-smi"  # in a folder that the other user may enter
        smi.write_bytes(built["nvidia-smi"].read_bytes())
        smi.chmod(0o755)
        for path in node.dev.iterdir():
            path.chmod(0o777)
        (node.dev / name).chmod(0)
        other = {"user": 65534, "group": 65534} if os.geteuid() == 0 else {}

        done = subprocess.run(
            [smi, "-L"],
            env=node.environment,
            capture_output=True,
            text=True,
            check=False,
            **other,  # type: ignore[call-overload]
        )

    assert done.returncode == status
    if status:
        assert done.stdout == "Failed to initialize NVML: Insufficient Permissions\n"
    else:
        assert [gpu_uuid(n) in done.stdout for n in range(4)] == [True, True, False, True]


# --- values of a GPU ------------------------------------------------------------------------


def test_a_gpu_is_found_by_index_uuid_serial_and_bus_id(nvml: Any) -> None:
    nvml.nvmlInit()
    third = nvml.nvmlDeviceGetHandleByIndex(2)
    by_name = [
        nvml.nvmlDeviceGetHandleByUUID(gpu_uuid(2)),
        nvml.nvmlDeviceGetHandleByUUIDV(gpu_uuid(2).encode(), nvml.NVML_UUID_TYPE_ASCII),
        nvml.nvmlDeviceGetHandleByUUIDV(
            bytes.fromhex(gpu_uuid(2)[4:].replace("-", "")), nvml.NVML_UUID_TYPE_BINARY
        ),
        nvml.nvmlDeviceGetHandleBySerial("1320000002"),
        nvml.nvmlDeviceGetHandleByPciBusId("00000000:38:00.0"),
        nvml.nvmlDeviceGetHandleByPciBusId("0000:38:00"),
    ]

    addresses = {ctypes.cast(h, ctypes.c_void_p).value for h in (third, *by_name)}

    assert len(addresses) == 1


@pytest.mark.parametrize(
    "name", ["", "GPU-", "18:00.0", "0000:18:00.1", "0000:xx:00.0", "0000:18:00.0 "]
)
def test_a_malformed_bus_id_is_refused(nvml: Any, name: str) -> None:
    nvml.nvmlInit()

    assert code_of(nvml.nvmlDeviceGetHandleByPciBusId, name) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_identity_of_a_gpu(nvml: Any) -> None:
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(1)

    pci = nvml.nvmlDeviceGetPciInfo(gpu)

    assert nvml.nvmlDeviceGetName(gpu) == "NVIDIA H100 80GB HBM3"
    assert nvml.nvmlDeviceGetSerial(gpu) == "1320000001"
    assert (pci.busId, pci.busIdLegacy) == ("00000000:28:00.0", "0000:28:00.0")
    assert (pci.domain, pci.bus, pci.device) == (0, 0x28, 0)
    assert (pci.pciDeviceId, pci.pciSubSystemId) == (0x233010DE, 0x16C110DE)
    assert nvml.nvmlDeviceGetCudaComputeCapability(gpu) == (9, 0)
    assert nvml.nvmlDeviceGetArchitecture(gpu) == nvml.NVML_DEVICE_ARCH_HOPPER
    assert nvml.nvmlDeviceGetBrand(gpu) == nvml.NVML_BRAND_NVIDIA
    assert nvml.nvmlDeviceGetPersistenceMode(gpu) == 1


def test_memory_in_both_versions_and_no_other(nvml: Any) -> None:
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)

    first = nvml.nvmlDeviceGetMemoryInfo(gpu)
    second = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)

    assert first.total == second.total == 85520809984
    assert first.used + first.free == first.total
    assert second.used + second.free + second.reserved == second.total
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total == 1 << 37
    code = code_of(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu, version=0x03000028))
    assert code == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_wrong_pointers_and_too_small_buffers_are_refused(nvml: Any) -> None:
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    address = ctypes.cast(gpu, ctypes.c_void_p).value
    assert address is not None

    for value in (0, 1, address + 4, address + (1 << 30), 2**63):
        out = ctypes.c_uint()
        code = nvml.nvmlLib.nvmlDeviceGetMinorNumber(ctypes.c_void_p(value), ctypes.byref(out))
        assert code == nvml.NVML_ERROR_INVALID_ARGUMENT, hex(value)
    buffer = ctypes.create_string_buffer(b"untouched", 64)
    code = nvml.nvmlLib.nvmlDeviceGetUUID(gpu, buffer, ctypes.c_uint(40))
    assert (code, buffer.value) == (nvml.NVML_ERROR_INSUFFICIENT_SIZE, b"untouched")
