# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.doctor.specifications."""

from nvct.cdi.check.conflicts import Drift, Kind
from nvct.doctor import specifications


def drift(kind: Kind, path: str = "", source: str = "/etc/cdi/a.yaml") -> Drift:
    return Drift(kind=kind, source=source, path=path, sentence=f"{path or kind} is gone")


def test_another_driver_is_the_cause_of_its_files_and_nodes() -> None:
    drifts = [
        drift("driver-version"), drift("file-gone", "/usr/lib/libcuda.so.1"),
        drift("node-gone", "/dev/nvidia0"), drift("hook-gone", "/usr/bin/hook"),
        drift("file-gone", "/opt/x", source="/etc/cdi/b.yaml"),
    ]  # fmt: skip

    assert specifications.lines(drifts) == [
        "/etc/cdi/a.yaml: driver-version is gone; 2 more differences with this cause",
        "/etc/cdi/a.yaml: /usr/bin/hook is gone",
        "/etc/cdi/b.yaml: /opt/x is gone",
    ]


def test_many_files_of_a_spec_are_one_line_with_the_first_of_them() -> None:
    drifts = [drift("file-gone", f"/usr/lib/{name}") for name in "abcde"]

    assert specifications.lines(drifts) == [
        "/etc/cdi/a.yaml: 5 files are gone: /usr/lib/a, /usr/lib/b, /usr/lib/c and 2 more"
    ]
    assert specifications.lines(drifts[:1]) == ["/etc/cdi/a.yaml: /usr/lib/a is gone"]


def test_a_lost_gpu_and_its_node_are_one_line() -> None:
    drifts = [drift("node-gone", "/dev/nvidia1"), drift("gpu-gone")]

    assert specifications.lines(drifts) == [
        "/etc/cdi/a.yaml: gpu-gone is gone; 1 more difference with this cause"
    ]
    assert specifications.lines(drifts[:1]) == ["/etc/cdi/a.yaml: /dev/nvidia1 is gone"]
    assert specifications.lines([]) == []


def test_devices_that_no_spec_gives_are_one_line() -> None:
    drifts = [
        Drift(kind="gpu-missing", source="", sentence=f"no CDI spec gives GPU {index}")
        for index in range(4)
    ]

    assert specifications.lines(drifts) == [
        "no CDI spec gives 4 devices of this host: GPU 0, GPU 1, GPU 2 and 1 more"
    ]
    assert specifications.lines(drifts[:1]) == ["no CDI spec gives GPU 0"]


def test_a_file_that_another_shadows_is_to_be_removed() -> None:
    shadowed = [drift("shadowed"), drift("shadowed", source="/etc/cdi/b.yaml")]

    assert specifications.advice(shadowed, "x") == "remove /etc/cdi/a.yaml and /etc/cdi/b.yaml"
    assert specifications.advice([*shadowed, drift("gpu-gone")], "x") == (
        "run x to update NVIDIA's, remove /etc/cdi/a.yaml and /etc/cdi/b.yaml"
    )


def test_a_node_that_is_gone_is_made_again_and_the_specification_stays() -> None:
    gone = [drift("node-gone", "/dev/nvidia-uvm"), drift("node-gone", "/dev/nvidiactl")]

    assert specifications.advice(gone, "x") == specifications.NODES
    assert specifications.advice([*gone, drift("file-gone", "/a")], "x") == (
        f"{specifications.NODES}, run x to update NVIDIA's"
    )


def test_nodes_that_go_with_a_gpu_or_a_driver_are_not_made_again() -> None:
    lost = [drift("node-gone", "/dev/nvidia1"), drift("gpu-gone")]
    replaced = [drift("node-gone", "/dev/nvidia1"), drift("driver-version")]

    assert specifications.advice(lost, "x") == "run x to update NVIDIA's"
    assert specifications.advice(replaced, "x") == "run x to update NVIDIA's"


def test_files_that_only_their_owner_can_mend_are_named() -> None:
    assert specifications.advice([drift("unreadable")], "x") == "correct or remove /etc/cdi/a.yaml"
    assert specifications.advice([drift("conflict")], "x") == (
        "remove either the other file or /etc/cdi/a.yaml"
    )
