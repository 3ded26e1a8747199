# SPDX-License-Identifier: Apache-2.0
"""Libraries, programs, firmware and sockets of a driver."""

import os
import socket
from pathlib import Path

import pytest

from nvct.host.driver import libraries, programs
from nvct.host.driver.libraries import Search
from nvct.host.driver.tree import Tree
from nvct.host.model import DriverFile, Findings
from tests.support.host_tree import LIB, VERSION, HostTree, elf_bytes


def find_libraries(host: HostTree, *, version: str = VERSION) -> tuple[list[DriverFile], Findings]:
    findings = Findings()
    with Tree(str(host.driver)) as tree:
        search = libraries.Search(tree, host.roots, "x86_64", findings)
        return libraries.find_libraries(search, version, libraries.directories(search)), findings


def find_one(host: HostTree, stem: str) -> DriverFile:
    files, _ = find_libraries(host)
    return next(f for f in files if f.container_path.rpartition("/")[2].startswith(f"{stem}.so."))


def test_library_of_another_machine_is_left_out_with_a_reason(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.write(
        f"driver/{LIB}/libnvidia-odd.so.{VERSION}", elf_bytes("libnvidia-odd.so.1", "aarch64")
    )

    files, findings = find_libraries(host)

    assert not [file for file in files if "libnvidia-odd" in file.container_path]
    library = f"{host.driver}/{LIB}/libnvidia-odd.so.{VERSION}"
    assert findings.left_out[library].reason == "for aarch64, not x86_64"


def test_a_link_in_a_driver_root_stays_inside_it(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    far = host.write(
        f"driver/opt/real/libnvidia-far.so.{VERSION}", elf_bytes("libnvidia-far.so.1")
    )
    outside = host.write(f"outside/libnvidia-out.so.{VERSION}", elf_bytes("libnvidia-out.so.1"))
    up = "../" * 12 + str(outside).lstrip("/")
    targets = {"far": f"/opt/real/{far.name}", "out": str(outside), "up": up}
    for name, target in targets.items():
        host.link(f"driver/{LIB}/libnvidia-{name}.so.{VERSION}", target)

    file = find_one(host, "libnvidia-far")

    assert (file.host_path, file.container_path) == (str(far), f"/opt/real/{far.name}")
    paths = [file.host_path for file in find_libraries(host)[0]]
    assert not [path for path in paths if "libnvidia-out" in path or "libnvidia-up" in path]


def test_programs_come_from_the_driver_root_only(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.write("driver/usr/bin/nvidia-debugdump", "not executable", mode=0o644)

    findings = Findings()

    with Tree(str(host.driver)) as tree:
        files = programs.find_binaries(Search(tree, host.roots, "x86_64", findings))

    assert [file.container_path for file in files] == [
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-control",
    ]
    assert {path: entry.reason for path, entry in findings.left_out.items()} == {
        f"{host.driver}/usr/bin/nvidia-debugdump": "not executable",
        f"{host.driver}/usr/bin/nvidia-settings": "a program for the host's desktop",
    }


def test_programs_of_fabric_imex_mps_and_display_are_included_with_their_class(
    tmp_path: Path,
) -> None:
    host = HostTree(tmp_path)
    names = ("nv-fabricmanager", "nvidia-imex", "nvidia-imex-ctl", "nvidia-persistenced",
             "nvidia-cuda-mps-server", "nvidia-xconfig")  # fmt: skip
    for name in names:
        host.write(f"driver/usr/bin/{name}", "ELF", mode=0o755)

    with Tree(str(host.driver)) as tree:
        files = programs.find_binaries(Search(tree, host.roots, "x86_64", Findings()))

    by_name = {os.path.basename(file.container_path): file.capability for file in files}
    assert by_name == {
        "nv-fabricmanager": "utility", "nvidia-imex": "utility", "nvidia-imex-ctl": "utility",
        "nvidia-persistenced": "utility", "nvidia-cuda-mps-server": "compute",
        "nvidia-xconfig": "graphics",
    }  # fmt: skip


def test_setuid_program_is_left_out_whatever_its_name(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    path = host.write("driver/usr/bin/nvidia-smi", "ELF", mode=0o4755)
    findings = Findings()

    with Tree(str(host.driver)) as tree:
        assert programs.find_binaries(Search(tree, host.roots, "x86_64", findings)) == []

    assert findings.left_out[str(path)].reason == "setuid or setgid"


def test_a_script_stands_for_the_program_that_it_starts(tmp_path: Path) -> None:
    """A host of which /usr/bin has scripts for the programs of the driver's own folder."""
    host = HostTree(tmp_path)
    host.write("driver/usr/bin/nvidia-smi", "#!/bin/sh\nexec .../nvidia-smi", mode=0o755)
    host.write("driver/usr/bin/nvidia-debugdump", "#!/bin/sh\n", mode=0o755)
    host.write("driver/usr/local/nvidia/bin/nvidia-smi", elf_bytes(""), mode=0o755)

    with Tree(str(host.driver)) as tree:
        smi, debugdump = programs.find_binaries(Search(tree, host.roots, "x86_64", Findings()))

    assert smi.container_path == "/usr/bin/nvidia-smi"
    assert smi.host_path == f"{host.driver}/usr/local/nvidia/bin/nvidia-smi"
    assert debugdump.host_path == f"{host.driver}/usr/bin/nvidia-debugdump"


def test_only_gsp_firmware_is_included_and_each_file_once(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.write("sys/module/firmware_class/parameters/path", "/lib/firmware\n")

    findings = Findings()

    with Tree(str(host.driver)) as tree:
        files = programs.find_firmware(Search(tree, host.roots, "x86_64", findings), VERSION)

    assert [file.container_path for file in files] == [
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
    ]
    other = f"{host.driver}/lib/firmware/nvidia/{VERSION}/other.bin"
    assert findings.left_out[other].reason == "no GSP firmware"


def test_firmware_of_another_driver_is_left_out_with_its_version(tmp_path: Path) -> None:
    host = HostTree(tmp_path).user_space()
    host.write("driver/lib/firmware/nvidia/570.10.01/gsp_ga10x.bin", "firmware")
    host.write("driver/lib/firmware/nvidia/ga102/gsp/booter.bin", "nouveau's firmware")
    findings = Findings()

    with Tree(str(host.driver)) as tree:
        programs.find_firmware(Search(tree, host.roots, "x86_64", findings), VERSION)

    reasons = {path: entry.reason for path, entry in findings.left_out.items()}
    folder = f"{host.driver}/lib/firmware/nvidia"
    assert reasons[f"{folder}/570.10.01"] == f"firmware of driver 570.10.01, not {VERSION}"
    assert f"{folder}/ga102" not in reasons


def test_firmware_directories_are_the_kernels_in_its_order(tmp_path: Path) -> None:
    host = HostTree(tmp_path).module()
    host.write("sys/module/firmware_class/parameters/path", "/custom\n")

    assert programs.directories(host.roots) == [
        "/custom",
        "/lib/firmware/updates/6.1.0-40-amd64",
        "/lib/firmware/updates",
        "/lib/firmware/6.1.0-40-amd64",
        "/lib/firmware",
    ]


def bind_socket(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True)
    server = socket.socket(socket.AF_UNIX)
    folder_fd = os.open(path.parent, os.O_PATH)
    try:  # the path itself may be longer than sun_path
        server.bind(f"/proc/self/fd/{folder_fd}/{path.name}")
    finally:
        os.close(folder_fd)
    return server


@pytest.mark.parametrize("folder", ["driver/run", "driver/var/run", "run"])
def test_socket_is_at_run_in_the_container(tmp_path: Path, folder: str) -> None:
    host = HostTree(tmp_path)

    with bind_socket(tmp_path / folder / "nvidia-persistenced/socket"):
        (file,) = programs.find_sockets(host.roots, Findings())

    assert file.container_path == "/run/nvidia-persistenced/socket"
    assert file.host_path == f"{tmp_path}/{folder}/nvidia-persistenced/socket"
    assert file.kind == "socket"


def test_a_file_or_link_at_the_path_of_a_socket_or_of_mps_is_left_out(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    host.write("driver/run/nvidia-persistenced/socket", "")
    host.link("driver/run/nvidia-fabricmanager/socket", "/etc/passwd")
    host.link("driver/tmp/nvidia-mps", "/etc")

    assert programs.find_sockets(host.roots, Findings()) == []


def test_the_mps_directory_must_belong_to_root(tmp_path: Path) -> None:
    host = HostTree(tmp_path)
    (tmp_path / "driver/tmp/nvidia-mps").mkdir(parents=True)
    findings = Findings()

    files = programs.find_sockets(host.roots, findings)

    if os.geteuid() == 0:
        assert [file.container_path for file in files] == ["/tmp/nvidia-mps"]
    else:
        assert files == []
        assert "not to root" in findings.warnings[0]
