# SPDX-License-Identifier: Apache-2.0
"""What package managers call while they replace NVIDIA's driver."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import captured

SCRIPT = Path(__file__).parents[2] / "packaging/files/driver-packages"
ARCHIVES = "/var/cache/apt/archives"


class Host:
    """A host with an agent, and an nvct that notes how it is called."""

    def __init__(self, folder: Path) -> None:
        self.run, self.calls = folder / "run", folder / "calls"
        (self.run / "nvct-agent").mkdir(parents=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.run / "nvct-agent/agent.sock"))
        self.program = folder / "nvct"
        self.answer(0)

    def answer(self, status: int) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$*" >>{self.calls}\nexit {status}\n')
        self.program.chmod(0o755)

    def call(self, word: str, packages: str = "") -> str:
        """Call the script; return what it says."""
        path = f"{self.program.parent}:{os.environ['PATH']}"
        done = captured(
            ["sh", str(SCRIPT), word], env={"PATH": path, "NVCT_RUN": str(self.run)},
            input=packages, check=True, timeout=20,
        )  # fmt: skip
        assert not done.stdout
        return done.stderr

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path is short
        made = Host(Path(folder))
        yield made
        made.listener.close()


@pytest.mark.parametrize(
    "package",
    ["nvidia-dkms-580_580.95.05-1_amd64.deb", "libnvidia-compute-580_1_amd64.deb",
     "cuda-drivers_580.1-1_amd64.deb", "nvidia-kernel-open-dkms_580-1_amd64.deb",
     "linux-modules-nvidia-580-6.8.0-50-generic_1_amd64.deb"],
)  # fmt: skip
def test_the_agent_lets_go_while_the_driver_is_replaced(package: str, host: Host) -> None:
    host.call("apt", f"{ARCHIVES}/curl_8_amd64.deb\n{ARCHIVES}/{package}\n")
    assert host.called == ["agent release"]
    host.call("after")
    host.call("after")  # of a later transaction, perhaps while somebody has released it by hand
    assert host.called == ["agent release", "agent resume"]


@pytest.mark.parametrize(
    "packages",
    ["", f"{ARCHIVES}/curl_8_amd64.deb\n", f"{ARCHIVES}/nvidia-container-toolkit_1_amd64.deb\n",
     f"{ARCHIVES}/libnvidia-container1_1_amd64.deb\n/home/nvidia-driver/a_1_all.deb\n"],
)  # fmt: skip
def test_other_packages_are_none_of_its_business(packages: str, host: Host) -> None:
    host.call("apt", packages)
    host.call("after")
    assert host.called == []


def test_rpm_says_itself_that_it_is_the_driver(host: Host) -> None:
    host.call("before")
    assert host.called == ["agent release"]


def test_a_host_without_an_agent_is_left_alone(host: Host) -> None:
    (host.run / "nvct-agent/agent.sock").unlink()
    host.call("before")
    assert host.called == []


def test_an_agent_that_does_not_let_go_stops_no_package_manager(host: Host) -> None:
    host.answer(1)
    assert "still uses the driver, which is replaced nevertheless" in host.call("before")
    assert "run nvct agent resume" in host.call("after")
