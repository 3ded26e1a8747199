# SPDX-License-Identifier: Apache-2.0
"""What a subPath of a volume shows of the host, by the mounts that the plugin sees."""

from __future__ import annotations

import pytest

from nvct.nri.container import source_of

KUBELET = "/var/lib/kubelet"
SUBPATH = f"{KUBELET}/pods/1/volume-subpaths/v/main/0"
ON_HOST = f"""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:5 / /dev rw - devtmpfs udev rw
22 20 0:25 / /run rw - tmpfs tmpfs rw
23 21 0:26 / /dev/shm rw - tmpfs tmpfs rw
90 20 {{}} {SUBPATH} rw - x x rw
"""
IN_POD = f"""\
120 1 0:90 / / rw - overlay overlay rw
121 120 0:5 / /dev rw - devtmpfs udev rw
122 120 0:25 /nri /run/nri ro - tmpfs tmpfs rw
122 120 0:25 /nri /var/run/nri ro - tmpfs tmpfs rw
123 120 8:1 /etc/cdi /etc/cdi ro - ext4 /dev/sda1 rw
124 120 8:1 /var/lib/kubelet {KUBELET} ro - ext4 /dev/sda1 rw
190 124 {{}} {SUBPATH} ro - x x rw
"""


@pytest.mark.parametrize("mounts", [ON_HOST, IN_POD], ids=["on the host", "in a pod"])
@pytest.mark.parametrize(
    ("mounted", "source"),
    [
        ("0:5 /", "/dev"),
        ("0:5 /nvidia0", "/dev/nvidia0"),
        ("0:25 /", "/run/cdi"),
        ("0:25 /containerd", "/run/containerd/containerd.sock"),
        ("0:25 /containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("0:25 /cdi/own", "/run/cdi/own"),
        ("8:1 /etc", "/etc/cdi"),
        ("8:1 /var/lib/kubelet/device-plugins", f"{KUBELET}/device-plugins"),
        ("8:1 /", "/etc/cdi"),
        ("8:1 /var/lib/kubelet/pods/1/volumes/e/x", SUBPATH),
        ("8:1 /etc/cdi.d", SUBPATH),
        ("0:25 /user/1", SUBPATH),
        ("0:77 /", SUBPATH),
    ],
)
def test_a_subpath_is_known_by_its_file_system(mounted: str, source: str, mounts: str) -> None:
    assert source_of(SUBPATH, KUBELET, mounts.format(mounted)) == source


@pytest.mark.parametrize("mounts", [ON_HOST, IN_POD])
def test_a_subpath_whose_mount_is_not_seen_could_be_everything(mounts: str) -> None:
    seen = mounts.format("8:1 /data")
    assert source_of(f"{SUBPATH}1", KUBELET, seen) == "/"
    assert source_of(SUBPATH, KUBELET, "") == "/"
