# SPDX-License-Identifier: Apache-2.0
import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvct.errors import ContainerNotPossibleError, HostError
from nvct_sim.native import build as native
from tests.support.processes import captured

# C type of nvml_abi.h -> nvidia-ml-py's class; the fields have the same names.
LAYOUTS: dict[str, Any] = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlPciInfo_v2_t": pynvml.nvmlPciInfo_v2_t,
    "nvmlPciInfoExt_t": pynvml.nvmlPciInfoExt_v1_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlEccErrorCounts_t": pynvml.c_nvmlEccErrorCounts_t,
    "nvmlViolationTime_t": pynvml.c_nvmlViolationTime_t,
    "nvmlRowRemapperHistogramValues_t": pynvml.c_nvmlRowRemapperHistogramValues,
    "nvmlFBCStats_t": pynvml.c_nvmlFBCStats_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessUtilizationSample_t": pynvml.c_nvmlProcessUtilizationSample_t,
    "nvmlGpmMetric_t": pynvml.c_nvmlGpmMetric_t,
    "nvmlGpmMetricsGet_t": pynvml.c_nvmlGpmMetricsGet_t,
    "nvmlUUID_t": pynvml.c_nvmlUUID_t,
    "nvmlVersioned32_t": pynvml.c_nvmlDeviceAddressingMode_t,
    "nvmlTemperature_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlGpuFabricInfo_t": pynvml.c_nvmlGpuFabricInfo_t,
    "nvmlGpuFabricInfoV_t": pynvml.c_nvmlGpuFabricInfo_v3_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlPlacement_t": pynvml.c_nvmlGpuInstancePlacement_t,
    "nvmlGpuInstanceProfileInfo_t": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "nvmlGpuInstanceProfileInfo_v2_t": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    "nvmlGpuInstanceInfo_t": pynvml.c_nvmlGpuInstanceInfo_t,
    "nvmlComputeInstanceProfileInfo_t": pynvml.c_nvmlComputeInstanceProfileInfo_t,
    "nvmlComputeInstanceInfo_t": pynvml.c_nvmlComputeInstanceInfo_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
}


def fields_of(layout: Any) -> list[str]:
    return [f[0] for f in layout._fields_ if not f[0].startswith("reserved") or f[0] == "reserved"]


def test_structs_have_the_layout_of_nvidia_ml_py(tmp_path: Path) -> None:
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    lines = [
        "#include <stddef.h>",
        "#include <stdio.h>",
        '#include "nvml_abi.h"',
        "int main(void){",
    ]
    expected = []
    for name, layout in LAYOUTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(layout)}")
        for field in fields_of(layout):
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            expected.append(f"{name}.{field} {getattr(layout, field).offset}")
    source.write_text("\n".join([*lines, "return 0;}"]))

    compiler = native.find_compiler()
    subprocess.run([compiler, f"-I{native.FOLDER}", "-o", program, source], check=True)

    printed = captured([program], check=True).stdout
    assert printed.splitlines() == expected


def test_both_files_load_with_the_c_library_of_2020(built: dict[str, Path]) -> None:
    readelf = shutil.which("readelf")
    if not readelf:
        pytest.skip("needs readelf (binutils)")
    for path in (built["libnvidia-ml.so"], built["nvidia-smi"]):
        text = captured([readelf, "--wide", "--version-info", path], check=True).stdout
        versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", text)]
        assert versions
        assert max(versions) <= (2, 31), path


def test_they_need_the_c_library_and_nothing_else(built: dict[str, Path]) -> None:
    readelf = shutil.which("readelf")
    if not readelf:
        pytest.skip("needs readelf (binutils)")
    needed = {}
    for path in (built["libnvidia-ml.so"], built["nvidia-smi"]):
        text = captured([readelf, "--wide", "--dynamic", path], check=True).stdout
        needed[path.name] = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
        if path == built["libnvidia-ml.so"]:
            assert re.findall(r"\(SONAME\).*\[(.*)\]", text) == ["libnvidia-ml.so.1"]

    assert needed == {
        "libnvidia-ml.so": {"libc.so.6"}, "nvidia-smi": {"libc.so.6", "libdl.so.2"},
    }  # fmt: skip


def test_only_nvml_functions_and_the_reset_are_exported(built: dict[str, Path]) -> None:
    nm = shutil.which("nm")
    if not nm:
        pytest.skip("needs nm (binutils)")
    text = captured(
        [nm, "--dynamic", "--defined-only", built["libnvidia-ml.so"]], check=True
    ).stdout

    names = [line.split()[-1] for line in text.splitlines()]

    assert len(names) > 400
    assert [name for name in names if not name.startswith("nvml")] == ["nvctDeviceReset"]


def test_without_a_compiler_the_error_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(ContainerNotPossibleError, match="no C compiler") as caught:
        native.build(tmp_path / "out", search_path=str(tmp_path))

    assert "gcc" in caught.value.hint


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    compiler = tmp_path / "bin/cc"
    compiler.parent.mkdir()
    compiler.write_text(
        "#!/bin/sh\necho 'noise'; echo 'core.c:1: error: out of ideas' >&2; exit 1\n"
    )
    compiler.chmod(0o755)

    with pytest.raises(HostError, match="out of ideas"):
        native.build(tmp_path / "out", search_path=str(compiler.parent))

    assert list((tmp_path / "out").rglob("*.so")) == []


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the archive of built files that packages have; a checkout has none."""
    assert not native.SHIPPED.exists()
    path = tmp_path_factory.mktemp("shipped") / "built.zip"
    native.ship(path)
    return path


@pytest.fixture
def shipped(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the archive."""
    monkeypatch.setattr(native, "SHIPPED", archive)
    return archive


def test_shipped_files_need_no_compiler(shipped: Path, tmp_path: Path) -> None:
    del shipped

    built = native.build(tmp_path / "here", search_path="/nonexistent")

    assert native.build(tmp_path / "here", search_path="/nonexistent") == built
    assert {path.name for path in built["libnvidia-ml.so"].parent.iterdir()} == set(native.PARTS)
    assert ctypes.CDLL(str(built["libnvidia-ml.so"])).nvmlShutdown() == 1  # uninitialised
    assert subprocess.run([built["nvidia-smi"], "-h"], check=False, capture_output=True).stdout
    assert not list((tmp_path / "here").rglob("tmp*"))


def test_files_shipped_with_other_sources_are_not_used(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del shipped
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))

    with pytest.raises(ContainerNotPossibleError, match="no C compiler"):
        native.build(tmp_path / "here", search_path="/nonexistent")


def test_the_same_sources_give_the_same_bytes(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shipped == native.SHIPPED
    monkeypatch.setattr(native, "SHIPPED", tmp_path / "none")
    native.ship(tmp_path / "built.zip.2")

    assert (tmp_path / "built.zip.2").read_bytes() == shipped.read_bytes()


# The C files of the simulation call each other in one direction.
