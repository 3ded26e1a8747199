# SPDX-License-Identifier: Apache-2.0
"""Creates that end otherwise: mode csv without a Tegra, and a kill while a root is changed."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.forked import run_forked
from tests.support.recording_kernel import RecordingKernel
from tests.support.shim_lab import Lab
from tests.unit.container.deliver.test_layout_classic import modes
from tests.unit.container.shim.images import IMAGES, Image


@pytest.fixture
def lab(lab: Lab) -> Lab:
    lab.driver(gpus=2)
    lab.configure(mode="csv", debug=str(lab.home / "log"))
    lab.keys["nvidia-container-runtime.modes.csv"] = {"mount-spec-path": str(lab.home / "csv")}
    lab.configure()
    return lab


@pytest.mark.parametrize("value", ["0", "all", "none"])
def test_in_csv_mode_off_tegra_a_container_starts_without_a_gpu(value: str, lab: Lab) -> None:
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={value}")

    result = lab.create()

    assert (result.status, result.stderr) == (0, "")
    document = lab.document()
    assert "devices" not in document["linux"]
    assert lab.container_env() == ["NVIDIA_VISIBLE_DEVICES=void"]
    if value != "none":
        log = (lab.home / "log").read_text(encoding="utf-8")
        assert "no GPU in mode csv, because this is not a Tegra: no CSV file lists" in log


def test_on_a_tegra_missing_lists_are_an_error(lab: Lab) -> None:
    lab.host.write("sys/devices/soc0/family", "Tegra\n")
    for folder in (lab.home / "proc/driver/nvidia/gpus").iterdir():
        (folder / "information").unlink()
        folder.rmdir()
    lab.asks("NVIDIA_VISIBLE_DEVICES=all")

    result = lab.create()

    assert result.status == 1
    assert "no CSV file lists" in result.stderr
    assert "mount-spec-path" in result.stderr


# After a create that was killed while it changed a root, the next create completes the root.


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a root that may write to a sealed folder")
def test_after_a_kill_at_any_point_the_next_create_completes_the_root(tmp_path: Path) -> None:
    def image(name: str) -> Image:
        new_image = Image(tmp_path / name)
        IMAGES["compat"](new_image)
        return new_image

    counting, complete = RecordingKernel(), image("whole")
    complete.create(kernel=counting)
    calls: dict[str, int] = {}
    for number, name in enumerate(counting.names()):
        calls[name] = calls.get(name, 0) + 1
        killed = image(str(number))
        kill_point = name, "before", calls[name]

        def child(killed: Image = killed, kill_point: tuple[str, str, int] = kill_point) -> None:
            killed.create(kernel=RecordingKernel(kill_at=kill_point))

        assert os.WTERMSIG(run_forked(child)) == signal.SIGKILL, kill_point

        assert killed.create()[1] == ["without a hook"], kill_point
        (*leftovers,) = killed.root.rglob(".nvct-*")
        assert len(leftovers) <= 1, kill_point
        for path in leftovers:
            path.unlink()
        assert killed.tree() == complete.tree(), kill_point
        assert modes(killed) == modes(complete), kill_point
    assert {"mkdir", "rename", "symlink"} <= set(calls)
