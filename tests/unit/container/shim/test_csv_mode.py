# SPDX-License-Identifier: Apache-2.0
"""Mode csv on a machine that is no Tegra: containers start without a GPU, and the log says why."""

from __future__ import annotations

import pytest

from tests.support.shim_lab import Lab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    made.driver(gpus=2)
    made.configure(mode="csv", debug=str(made.home / "log"))
    made.keys["nvidia-container-runtime.modes.csv"] = {"mount-spec-path": str(made.home / "csv")}
    made.configure()
    yield made
    made.remove()


@pytest.mark.parametrize("value", ["0", "all", "none"])
def test_off_tegra_a_container_starts_without_a_gpu(value: str, lab: Lab) -> None:
    lab.asks(f"NVIDIA_VISIBLE_DEVICES={value}")

    said = lab.create()

    assert (said.status, said.stderr) == (0, "")
    document = lab.document()
    assert "devices" not in document["linux"]
    assert lab.container_env() == ["NVIDIA_VISIBLE_DEVICES=void"]
    if value != "none":
        log = (lab.home / "log").read_text(encoding="utf-8")
        assert "no GPU in mode csv, as this is no Tegra: no CSV file says" in log


def test_off_tegra_lists_whose_nodes_are_not_there_are_none(lab: Lab) -> None:
    lab.host.write("csv/devices.csv", "dev, /dev/nvhost-gpu\n")
    lab.asks("NVIDIA_VISIBLE_DEVICES=all")

    assert lab.create().status == 0
    assert "no device node" in (lab.home / "log").read_text(encoding="utf-8")


def test_an_index_that_no_board_has_is_still_refused(lab: Lab) -> None:
    lab.asks("NVIDIA_VISIBLE_DEVICES=1")

    assert "has no device '1'" in lab.create().stderr


def test_on_a_tegra_missing_lists_are_an_error(lab: Lab) -> None:
    lab.host.write("sys/devices/soc0/family", "Tegra\n")
    for folder in (lab.home / "proc/driver/nvidia/gpus").iterdir():
        (folder / "information").unlink()
        folder.rmdir()
    lab.asks("NVIDIA_VISIBLE_DEVICES=all")

    said = lab.create()

    assert said.status == 1
    assert "no CSV file says" in said.stderr
    assert "mount-spec-path" in said.stderr
