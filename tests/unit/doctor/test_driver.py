# SPDX-License-Identifier: Apache-2.0
"""Which driver is found, by an nvidia-smi that works or does not; chroot is the kernel's."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nvct.cli.main import program
from nvct.doctor import driver, messages
from nvct.doctor.driver import Driver, Places
from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason
from nvct.installer import ready
from nvct.installer.host import HostPrograms

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


def root(folder: Path, *, works: bool | None) -> Path:
    """Return a root with an nvidia-smi that is static: true or false."""
    folder.mkdir(parents=True)
    if works is not None:
        (folder / "usr/bin").mkdir(parents=True)
        shutil.copy(static(folder.parent, works=works), folder / "usr/bin/nvidia-smi")
    return folder


def static(folder: Path, *, works: bool) -> Path:
    import subprocess

    path = folder / f"smi-{works}"
    if not path.exists():
        error = "" if works else "Driver/library version mismatch"
        source = f'#include <stdio.h>\nint main(void) {{ puts("{error}"); return {0 if works else 18}; }}'
        subprocess.run(
            ["cc", "-static", "-x", "c", "-", "-o", str(path)], input=source, text=True, check=True
        )
    return path


def places(tmp_path: Path, *, host: bool | None, container: bool | None) -> Places:
    root(tmp_path / "host", works=host)
    if container is not None:
        root(tmp_path / "driver", works=container)
    return Places(host_here=str(tmp_path / "host"), driver_here=str(tmp_path / "driver"))


def find(where: Places, ready: str = "") -> Driver:
    found = driver.find(where, ready, HostPrograms)
    assert isinstance(found, Driver)
    return found


def fault(where: Places, ready: str = "") -> Finding:
    found = driver.find(where, ready, HostPrograms)
    assert isinstance(found, Finding)
    assert found.severity == "error"
    return found


def test_the_hosts_own_driver_comes_first(tmp_path: Path) -> None:
    found = find(places(tmp_path, host=True, container=True))
    assert found.values() == {
        "IS_HOST_DRIVER": "true",
        "NVIDIA_DRIVER_ROOT": "/",
        "DRIVER_ROOT_CTR_PATH": "/host",
        "NVIDIA_DEV_ROOT": "/",
        "DEV_ROOT_CTR_PATH": "/host",
    }


@pytest.mark.parametrize("own_dev", [False, True])
def test_a_driver_containers_driver_is_next(*, own_dev: bool, tmp_path: Path) -> None:
    where = places(tmp_path, host=None, container=True)
    (tmp_path / "driver/dev").mkdir()
    if own_dev:
        (tmp_path / "driver/dev/nvidiactl").touch()
    found = find(where)
    assert found.values() == {
        "IS_HOST_DRIVER": "false",
        "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
        "DRIVER_ROOT_CTR_PATH": "/driver-root",
        "NVIDIA_DEV_ROOT": "/run/nvidia/driver" if own_dev else "/",
        "DEV_ROOT_CTR_PATH": "/driver-root" if own_dev else "/host",
    }


def test_a_driver_that_fails_is_told_with_what_it_says(tmp_path: Path) -> None:
    found = fault(places(tmp_path, host=None, container=False))
    assert found.reason is Reason.DriverNotWorking
    assert "version mismatch" in found.evidence
    assert "/host has no nvidia-smi" in found.context
    assert messages.to_error(found).code == "host"


def test_no_driver_at_all_is_told(tmp_path: Path) -> None:
    found = fault(places(tmp_path, host=None, container=None))
    assert found.reason is Reason.DriverNotFound
    assert "has no nvidia-smi" in found.evidence
    assert messages.to_error(found).code == "driver-not-found"


def test_windows_host_needs_no_program(tmp_path: Path) -> None:
    where = places(tmp_path, host=None, container=None)
    smi = tmp_path / "host/usr/lib/wsl/lib/nvidia-smi"
    smi.parent.mkdir(parents=True)
    smi.write_text("a Windows file", encoding="utf-8")
    assert find(where).wsl


def test_a_driver_container_that_is_not_ready_is_waited_for(tmp_path: Path) -> None:
    where = places(tmp_path, host=None, container=True)
    marker = tmp_path / ".driver-ctr-ready"
    found = fault(where, str(marker))
    assert found.reason is Reason.DriverContainerNotReady
    assert "is not ready" in found.evidence
    marker.write_text("GDRCOPY_ENABLED: true\nGDS_ENABLED: false\n", encoding="utf-8")
    assert not find(where, str(marker)).is_host
    (gdrcopy,) = driver.components(str(marker), str(tmp_path)).values()
    assert (gdrcopy.reason, gdrcopy.severity) == (Reason.ModuleNotLoaded, "error")
    assert gdrcopy.evidence == "the module of gdrcopy-ready is not loaded yet"
    (tmp_path / "module/gdrdrv").mkdir(parents=True)
    loaded = driver.components(str(marker), str(tmp_path))
    assert {name: one.severity for name, one in loaded.items()} == {"gdrcopy-ready": "ok"}


def validate(tmp_path: Path, *args: str, **env: str) -> Result:
    return CliRunner().invoke(
        program("nvct"), ["validate", *args, f"--output-dir={tmp_path}/ready"], prog_name="nvct",
        env=env,
    )  # fmt: skip


def test_driver_ready_is_written_for_a_shell_to_read(tmp_path: Path) -> None:
    places(tmp_path, host=True, container=None)
    arguments = (f"--host-root-ctr-path={tmp_path}/host", "--disable-dev-char-symlink-creation")
    completed = validate(tmp_path, "driver", *arguments)
    assert completed.exit_code == 0, completed.output
    path = tmp_path / "ready/driver-ready"
    assert ready.read(str(path))["DRIVER_ROOT_CTR_PATH"] == "/host"
    assert path.read_text(encoding="utf-8").startswith(
        "IS_HOST_DRIVER=true\nNVIDIA_DRIVER_ROOT=/\n"
    )


def test_a_driver_that_stops_working_is_no_longer_ready(tmp_path: Path) -> None:
    places(tmp_path, host=None, container=None)
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready/driver-ready").write_text("IS_HOST_DRIVER=true\n", encoding="utf-8")
    completed = validate(tmp_path, "driver", f"--host-root-ctr-path={tmp_path}/host",
                    f"--driver-install-dir-ctr-path={tmp_path}/none")  # fmt: skip
    assert completed.exit_code == 1
    assert not (tmp_path / "ready/driver-ready").exists()


@pytest.mark.parametrize("works", [True, False])
def test_toolkit_ready_is_written_where_nvidia_smi_works(*, works: bool, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    shutil.copy(static(tmp_path, works=works), tmp_path / "bin/nvidia-smi")
    completed = validate(tmp_path, "toolkit", PATH=str(tmp_path / "bin"))
    assert (completed.exit_code == 0) == works, completed.output
    assert (tmp_path / "ready/toolkit-ready").exists() == works
    if not works:
        assert "version mismatch" in str(completed.exception)


def test_without_nvidia_smi_the_container_was_given_nothing(tmp_path: Path) -> None:
    completed = validate(tmp_path, "toolkit", PATH=str(tmp_path))
    assert completed.exit_code == 1
    assert "is not on PATH" in str(completed.exception)
    assert validate(tmp_path, "toolkit", "--skip-validation", PATH=str(tmp_path)).exit_code == 0
    assert (tmp_path / "ready/toolkit-ready").read_bytes() == b""
