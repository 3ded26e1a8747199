# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.host.device_nodes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from nvct.errors import HostError
from nvct.host import device_nodes

NOTHING_LOADED = "/nonexistent"


class FakeRun:
    """Answers by the module's name; "" is success."""

    def __init__(self, **answers: str) -> None:
        self.answers = {name.replace("_", "-"): text for name, text in answers.items()}
        self.calls: list[str] = []

    def __call__(self, argv: Sequence[str]) -> tuple[int, str]:
        self.calls.append(" ".join(argv))
        text = self.answers.get(argv[-1], "")
        return (1 if text else 0), text


def test_all_three_modules_are_loaded() -> None:
    run = FakeRun()

    assert device_nodes.load("/", run, NOTHING_LOADED) == []
    assert run.calls == [
        "/sbin/modprobe nvidia", "/sbin/modprobe nvidia-uvm", "/sbin/modprobe nvidia-modeset",
    ]  # fmt: skip


def test_a_driver_root_uses_its_own_modprobe() -> None:
    run = FakeRun()

    device_nodes.load("/run/nvidia/driver", run, NOTHING_LOADED)

    assert run.calls[0] == "chroot /run/nvidia/driver /sbin/modprobe nvidia"


def test_a_required_module_that_cannot_be_loaded_is_an_error() -> None:
    run = FakeRun(nvidia_uvm="modprobe: FATAL: Module nvidia-uvm not found")

    with pytest.raises(HostError) as raised:
        device_nodes.load("/", run, NOTHING_LOADED)

    assert raised.value.message == (
        "cannot load module nvidia-uvm (/sbin/modprobe nvidia-uvm): "
        "modprobe: FATAL: Module nvidia-uvm not found"
    )


def test_a_driver_for_computing_alone_may_lack_modeset() -> None:
    assert device_nodes.load("/", FakeRun(nvidia_modeset="not found"), NOTHING_LOADED) == [
        "cannot load module nvidia-modeset (/sbin/modprobe nvidia-modeset): not found"
    ]


def test_a_missing_modprobe_is_reported_as_such() -> None:
    def run(argv: Sequence[str]) -> tuple[int, str]:
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    with pytest.raises(HostError, match=r"cannot load module nvidia .*No such file or directory"):
        device_nodes.load("/", run, NOTHING_LOADED)


def test_running_returns_the_status_and_the_last_line() -> None:
    assert device_nodes.run(["/bin/sh", "-c", "echo one; echo two >&2; exit 3"]) == (3, "two")
    assert device_nodes.run(["/bin/true"]) == (0, "")


def test_a_loaded_module_is_not_loaded_again(tmp_path: Path) -> None:
    for name in ("nvidia", "nvidia_uvm"):
        (tmp_path / "module" / name).mkdir(parents=True)
    run = FakeRun()

    assert device_nodes.load("/", run, str(tmp_path)) == []

    assert run.calls == ["/sbin/modprobe nvidia-modeset"]
