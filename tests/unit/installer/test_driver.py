# SPDX-License-Identifier: Apache-2.0
"""Which driver is found, by an nvidia-smi that works or does not; chroot is the kernel's."""

from __future__ import annotations

import os
import shutil

import pytest
from click.testing import CliRunner

from nvct.cli.main import program
from nvct.errors import DriverNotFoundError, HostError
from nvct.installer import driver, ready
from nvct.installer.driver import Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

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


def test_the_hosts_own_driver_comes_first(tmp_path: Path) -> None:
    host_driver = driver.find(places(tmp_path, host=True, container=True), "")
    assert host_driver.values() == {
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
    host_driver = driver.find(where, "")
    assert host_driver.values() == {
        "IS_HOST_DRIVER": "false",
        "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
        "DRIVER_ROOT_CTR_PATH": "/driver-root",
        "NVIDIA_DEV_ROOT": "/run/nvidia/driver" if own_dev else "/",
        "DEV_ROOT_CTR_PATH": "/driver-root" if own_dev else "/host",
    }


def test_a_failing_driver_is_reported_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="version mismatch") as caught:
        driver.find(places(tmp_path, host=None, container=False), "")
    assert "/host has no nvidia-smi" in caught.value.hint


def test_a_missing_driver_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DriverNotFoundError, match="has no nvidia-smi"):
        driver.find(places(tmp_path, host=None, container=None), "")


def test_windows_host_needs_no_program(tmp_path: Path) -> None:
    where = places(tmp_path, host=None, container=None)
    smi = tmp_path / "host/usr/lib/wsl/lib/nvidia-smi"
    smi.parent.mkdir(parents=True)
    smi.write_text("a Windows file", encoding="utf-8")
    assert driver.find(where, "").wsl


def test_a_driver_container_that_is_not_ready_is_waited_for(tmp_path: Path) -> None:
    where = places(tmp_path, host=None, container=True)
    marker = tmp_path / ".driver-ctr-ready"
    with pytest.raises(HostError, match="is not ready"):
        driver.find(where, str(marker))
    marker.write_text("GDRCOPY_ENABLED: true\nGDS_ENABLED: false\n", encoding="utf-8")
    assert not driver.find(where, str(marker)).is_host
    assert driver.components(str(marker), str(tmp_path)) == {"gdrcopy-ready": False}
    (tmp_path / "module/gdrdrv").mkdir(parents=True)
    assert driver.components(str(marker), str(tmp_path)) == {"gdrcopy-ready": True}


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
