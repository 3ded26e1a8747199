# SPDX-License-Identifier: Apache-2.0
"""Labels of GPUs that are passed through, with a /sys of a few files."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.agent.labels import compute, gather
from nvct.agent.labels.facts import is_key, is_value
from nvct.agent.labels.settings import Settings
from nvct.host.gpu import pci
from nvct.host.roots import Roots

WINDOWS = """\
0x0000000094000000 0x0000000094ffffff 0x0000000000040200
0x0000280000000000 0x00002fffffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000300000000000 0x0000300001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000000000000000 0x0000000000000000 0x0000000000000000
"""
PCI_IDS = """\
# names
10dd  Another
\t2330  Another's
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t\t10de 16c1  A board
\t2331  GH100 [H100 PCIe]
10df  The next
\t2332  Another's
"""


def add(root: Path, bus_id: str, driver: str = "vfio-pci", **files: str) -> Path:
    """Add an NVIDIA device to a /sys."""
    folder = root / f"sys/bus/pci/devices/{bus_id}"
    folder.mkdir(parents=True)
    content = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "resource": WINDOWS}
    for name, text in {**content, **files}.items():
        (folder / name).write_text(f"{text}\n")
    of_driver = root / f"sys/bus/pci/drivers/{driver}"
    of_driver.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(of_driver)
    return folder


def labels(root: Path) -> dict[str, str]:
    roots = Roots(driver_root=str(root), sys=f"{root}/sys", proc=f"{root}/proc")
    facts = replace(gather.passed_through(roots, pci.names(roots)), machine="A Server\n")
    found, warnings = compute.labels(facts, Settings(extra_labels=()))
    assert warnings == []
    assert all(is_key(key) and is_value(value) for key, value in found.items())
    return found


def test_they_have_the_incumbents_labels(tmp_path: Path) -> None:
    add(tmp_path, "0000:17:00.0")
    add(tmp_path, "0000:18:00.0")
    add(tmp_path, "0000:19:00.0", driver="nvidia")
    add(tmp_path, "0000:20:00.0", **{"class": "0x040300"})
    (add(tmp_path, "0000:21:00.0") / "physfn").symlink_to("../0000:17:00.0")
    (tmp_path / "usr/share/misc").mkdir(parents=True)
    (tmp_path / "usr/share/misc/pci.ids").write_text(PCI_IDS)

    found = labels(tmp_path)
    assert {key: value for key, value in found.items() if key.startswith("nvidia.com/gpu.")} == {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.family": "undefined",
        "nvidia.com/gpu.machine": "A-Server",
        "nvidia.com/gpu.memory": str(1 << 44),
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.product": "GH100-H100-SXM5-80GB",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
    }
    assert found["nvidia.com/cuda.runtime-version.full"] == "0.0"


def test_without_a_list_of_names_the_device_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.host.gpu.pci.FILES", ())
    add(tmp_path, "0000:17:00.0")

    assert labels(tmp_path)["nvidia.com/gpu.product"] == "UNKNOWN_DEVICE"


def test_without_such_a_gpu_there_are_no_labels_of_gpus(tmp_path: Path) -> None:
    add(tmp_path, "0000:17:00.0", driver="nvidia")

    assert labels(tmp_path) == {"nvidia.com/vgpu.present": "false"}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        ("0x0 0x0 0x0", 0),
        ("0x0 0xffffff 0x40200", 0),  # 32 bits
        ("0x0 0xffffff 0x14220c", 1 << 24),
        ("0x0 0xffffff 0x14220c\n0x0 0xffffff 0x14220c\n0x0 0x1 0x14220c", 1 << 26),
        ("nonsense\n0x0 0xffff 0x14220c 5", 0),
    ],
)
def test_memory_windows_are_added_and_rounded_up(text: str, size: int) -> None:
    assert gather.memory_windows(text) == size
