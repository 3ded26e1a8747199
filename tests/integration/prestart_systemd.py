# SPDX-License-Identifier: Apache-2.0
"""Containers with device rules, under a real systemd that is told of them or not."""

import json
import os
import shutil
from pathlib import Path

from nvct.paths import DEFAULT_PATH_DIRS
from nvct_sim.bundle import config
from nvct_sim.rootfs import static_busybox
from tests.integration import systemd_box

HOOK = """
import json, os, sys
sys.path.insert(0, "/host")
from nvct.container.prestart import rules
state = json.load(sys.stdin)
with open(state["bundle"] + "/config.json") as file:
    configured = json.load(file)["linux"]["resources"]["devices"]
if sys.argv[1] == "untold":
    rules.allow_in_unit = lambda *_, **__: None
gpu = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
rules.allow([json.dumps(gpu)], state["pid"], configured, env={"PATH": os.defpath}, warn=print)
"""
INSIDE = """
for how in untold told; do
    runc --systemd-cgroup run -d --bundle /lab/$how $how > /lab/$how.log 2>&1 < /dev/null
done
sleep 1
say() { echo "$1 $2: $(tail -n 1 /lab/$2/rootfs/said)"; }
for how in untold told; do say before $how; done
systemctl daemon-reload
sleep 1
for how in untold told; do say after $how; done
cat /lab/*.log
for how in untold told; do runc delete --force $how; done
"""
LOOP = "while :; do cat /dev/nvidia0 2>> /said; sleep 0.1; done"


def bundle(lab: Path, how: str) -> None:
    """Make a container with a node of a GPU, no rule for it, and a hook that asks for the rule."""
    document = config(["/bin/busybox", "sh", "-c", f"export PATH=/bin; {LOOP}"])
    document["process"]["noNewPrivileges"] = False
    linux = document["linux"]
    linux["cgroupsPath"] = f"system.slice:nvct:{how}-{os.getpid()}"  # not one of an earlier run's
    linux["devices"] = [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666}
    ]
    hook = {"path": "/usr/bin/python3", "args": ["python3", "-I", "/lab/hook.py", how]}
    document["hooks"] = {"prestart": [hook]}
    folder = lab / how
    busybox = static_busybox(DEFAULT_PATH_DIRS)
    for name in ("bin", "proc", "dev", "sys"):
        (folder / "rootfs" / name).mkdir(parents=True)
    for name in ("busybox", "cat", "sleep"):
        shutil.copy(busybox, folder / "rootfs/bin" / name)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")


def run(lab: Path, tree: Path, cgroups: str) -> list[str]:
    """Boot the tree, start both containers, reload, and return what the containers saw."""
    for how in ("untold", "told"):
        bundle(lab, how)
    (lab / "hook.py").write_text(HOOK, encoding="utf-8")
    return systemd_box.run(lab, tree, cgroups, INSIDE)
