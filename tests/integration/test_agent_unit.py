# SPDX-License-Identifier: Apache-2.0
"""packaging/agent/nvct-agent.service under systemd: its sandbox lets gRPC and NVML work."""

import json
import re
import sys
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim import tree
from tests.integration import systemd_box

REPOSITORY = Path(__file__).parents[2]
EXPOSURE = 4.5
"""What `systemd-analyze security` may say of the service; 10 is no sandbox at all."""
INSIDE = r"""
set -u
# A virtual environment of the checkout, as `python3 -m venv /opt/nvct` and pip make one.
mkdir -p /opt/nvct/bin /opt/nvct/lib/PYTHON/site-packages /etc/nvct /var/lib/kubelet/device-plugins
ln -s /usr/bin/PYTHON /opt/nvct/bin/python
echo "home = /usr/bin" > /opt/nvct/pyvenv.cfg
printf '/host\n/host/.venv/lib/PYTHON/site-packages\n' > /opt/nvct/lib/PYTHON/site-packages/nvct.pth
printf '#!/bin/sh\nexec /opt/nvct/bin/python -I -m nvct.cli nvct "$@"\n' > /opt/nvct/bin/nvct
chmod 755 /opt/nvct/bin/nvct
/opt/nvct/bin/python -c 'import grpc' 2> /dev/null || { echo "SKIP: no PYTHON with grpc in the box"; exit; }
cp /host/packaging/agent/nvct-agent.service /etc/systemd/system/
cp /lab/agent.env /etc/nvct/agent.env
systemctl daemon-reload
until_() { for _ in $(seq 50); do eval "$1" && return; sleep 0.2; done; echo "not: $1"; journalctl --no-pager -u nvct-agent | tail -n 8; }
status() { /opt/nvct/bin/nvct agent --status; }

systemctl enable --quiet --now nvct-agent.service
echo "started: $(systemctl is-active nvct-agent), $(status | grep -m 1 -o '"state.*')"
systemctl stop nvct-agent
mkdir /etc/systemd/system/nvct-agent.service.d
printf '[Service]\nBindReadOnlyPaths=/lab/node/proc/driver:/proc/driver\n' > /etc/systemd/system/nvct-agent.service.d/node.conf
systemctl daemon-reload
systemctl start nvct-agent
until_ 'status | grep -q nvidia.com/gpu'
status > /lab/status.json
until_ '[ -S /var/lib/kubelet/device-plugins/nvidia-gpu.sock ]'
kill -9 $(systemctl show -p MainPID --value nvct-agent)
until_ '[ "$(systemctl show -p NRestarts --value nvct-agent)" = 1 ] && systemctl --quiet is-active nvct-agent'
systemctl reload nvct-agent
until_ 'journalctl -u nvct-agent | grep -q "reading the settings again"'
systemctl stop nvct-agent
echo "stopped: $(systemctl show -p Result --value nvct-agent), $(ls /var/lib/kubelet/device-plugins | wc -l), $(echo /run/nvct-agent/*)"
echo "NVCT_AGENT_LISTEN=here" >> /etc/nvct/agent.env
systemctl start nvct-agent 2> /dev/null
sleep 6
echo "refused: $(systemctl is-active nvct-agent), $(systemctl show -p NRestarts --value nvct-agent)"
systemd-analyze security --no-pager nvct-agent.service | tail -n 1
systemd-analyze verify --man=no nvct-agent.service 2>&1 | grep nvct-agent && echo "not: a right unit"
""".replace("PYTHON", f"python{sys.version_info.major}.{sys.version_info.minor}")


@pytest.mark.slow
def test_the_unit_serves_its_node(tmp_path: Path) -> None:
    try:
        machine = systemd_box.tree()
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    node = tree.create("node", "t4-4", tmp_path, native_cache=REPOSITORY / ".cache/native")
    (tmp_path / "agent.env").write_text(
        "FAIL_ON_INIT_ERROR=false\nDRIVER_ROOT_CTR_PATH=/lab/node/driver\n"
        "NVCT_SIM_DEV=/lab/node/dev\n"
    )
    assert node.driver_root == tmp_path / "node/driver"

    lines = systemd_box.run(tmp_path, machine, "v2", INSIDE)

    print("\n".join(lines))
    if lines and lines[0].startswith("SKIP: "):
        pytest.skip(lines[0].removeprefix("SKIP: "))
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert found["started"] == 'active, "state": "waiting",'
    status = json.loads((tmp_path / "status.json").read_text())
    (resource,) = status["tasks"][0]["detail"]
    assert (resource["resource"], resource["devices"]) == ("nvidia.com/gpu", 4)
    files = ("agent.lock", "agent.sock", "devices.json")
    left = " ".join(f"/run/nvct-agent/{name}" for name in files)
    assert found["stopped"] == f"success, 0, {left}"
    assert found["refused"] == "failed, 0"
    assert not [line for line in lines if line.startswith("not: ")]
    exposure = next(line for line in lines if "Overall exposure level" in line)
    assert float(re.findall(r"[0-9]+\.[0-9]+", exposure)[-1]) < EXPOSURE
