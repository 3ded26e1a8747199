# SPDX-License-Identifier: Apache-2.0
"""A quadlet: Podman's unit for a container with a GPU, under a real systemd."""

import shutil
from pathlib import Path

import pytest

from nvct_sim import rootfs, tree
from tests.callers.checks import SCRIPT
from tests.engines import configs, image
from tests.engines.checks import UUID
from tests.integration import systemd_box
from tests.support import bundled

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]
UNIT = """\
[Container]
Image=docker.io/library/plain:test
Pull=never
AddDevice=nvidia.com/gpu=0
Network=none
Volume=/lab/out:/out
Volume=/lab/script:/script:ro
Exec=/bin/sh -c "trap 'exit 0' TERM; sh /script > /out/said 2>&1; echo done >> /out/said; sleep 999 & wait"
"""
USABLE = "(: < /dev/nvidia0) 2>&1 | grep -o 'No such device'"
"""Without a driver, an allowed open finds no device; one that is not allowed is not permitted."""
INSIDE = f"""
set -u
export NVIDIA_CTK_CONFIG=/lab/config.toml PODMAN="podman --log-level=error"
/lab/bundle/bin/nvct publish --output=/etc/cdi/nvidia.yaml 2> /dev/null
mkdir -p /etc/containers/systemd /var/lib/containers
mount -t tmpfs images /var/lib/containers # no overlay lies on the tree's own
cp /lab/containers.conf /lab/policy.json /etc/containers/
cp /lab/gpu.container /etc/containers/systemd/
$PODMAN load --quiet --input /lab/plain.tar > /lab/log 2>&1 || cat /lab/log
systemctl daemon-reload
systemd-run --quiet --wait mount -t cgroup2 cgroup2 /sys/fs/cgroup # of its own namespace
systemctl start gpu.service || systemctl status --no-pager gpu.service
for _ in $(seq 600); do grep -qs done /lab/out/said && break; sleep 0.1; done
cat /lab/out/said
systemctl daemon-reload
$PODMAN exec systemd-gpu /bin/sh -c "{USABLE}"
systemctl stop gpu.service
echo "left: $($PODMAN ps --all --quiet | wc -l), $(systemctl is-active gpu.service)"
"""


def test_a_quadlet(tmp_path: Path) -> None:
    """Its device outlives a daemon-reload; its container goes with the unit."""
    machine = systemd_box.tree("trixie", "podman", "crun", "conmon", "catatonit")
    tree.create("node", "t4-4", tmp_path, native_cache=REPOSITORY / ".cache/native")
    shutil.copytree(bundled.tree(), tmp_path / "bundle", symlinks=True)
    text = systemd_box.config("/etc/cdi")
    text += 'hook-path = "/lab/bundle/bin/nvidia-cdi-hook"\n'
    (tmp_path / "out").mkdir()
    for name, content in (
        ("config.toml", text), ("gpu.container", UNIT), ("script", SCRIPT),
        ("containers.conf", configs.PODMAN), ("policy.json", configs.POLICY),
    ):  # fmt: skip
        (tmp_path / name).write_text(content, encoding="utf-8")
    rootfs.build_rootfs(tmp_path / "root")
    image.archive(tmp_path / "root", "plain:test", tmp_path / "plain.tar")

    lines = systemd_box.run(tmp_path, machine, "v2", INSIDE)

    print("\n".join(lines))
    assert lines[0] == "1"
    assert UUID.search(lines[1])
    assert lines[2].endswith("/libcuda.so.1")
    assert lines[3:] == ["done", "No such device", "left: 0, inactive"]
