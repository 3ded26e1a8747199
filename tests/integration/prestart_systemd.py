# SPDX-License-Identifier: Apache-2.0
"""A machine of its own under a real systemd, and device rules in it.

For systemd-nspawn, which changes the cgroup mounts that it finds: so it runs in private
namespaces, with one kind of cgroups. The tree is a Debian one that is booted from a copy-on-write
layer; it needs systemd, dbus, python3 and runc, and is made, outside of the checkout, with
`mmdebstrap --variant=apt --include=systemd-sysv,dbus,python3-minimal,libpython3-stdlib,runc
bookworm TREE`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from nvct.sim.bundle import config
from nvct.sim.rootfs import PROGRAM_DIRS, static_busybox

REPOSITORY = Path(__file__).parents[2]
TREE_ENV = "NVCT_TEST_SYSTEMD"
NSPAWN_ENV = "NVCT_TEST_NSPAWN"
HOOK = """
import json, os, sys
sys.path.insert(0, "/host")
from nvct.prestart import rules, systemd
state = json.load(sys.stdin)
with open(state["bundle"] + "/config.json") as file:
    configured = json.load(file)["linux"]["resources"]["devices"]
if sys.argv[1] == "untold":
    systemd.allow = lambda *_, **__: None
gpu = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
rules.allow([json.dumps(gpu)], state["pid"], configured, env={"PATH": os.defpath}, warn=print)
"""
BOX = r"""
set -eu
if [ "$1" = v2 ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    mkdir "$2/cgroups"
    mount -t tmpfs -o mode=755 cgroups "$2/cgroups"
    awk '$3 == "cgroup" {print $2}' /proc/self/mounts | while read -r m; do
        mkdir "$2/cgroups/${m##*/}"
        mount --bind "$m" "$2/cgroups/${m##*/}"
    done
    mount --rbind "$2/cgroups" /sys/fs/cgroup
fi
mount -t tmpfs -o mode=755 run /run
mkdir "$2/layer"
mount -t tmpfs layer "$2/layer"
mkdir "$2/layer/upper" "$2/layer/work" "$2/layer/tree"
mount -t overlay -o "lowerdir=$3,upperdir=$2/layer/upper,workdir=$2/layer/work" x "$2/layer/tree"
systemd-nspawn -q --register=no --keep-unit -D "$2/layer/tree" --capability=all --private-network \
    --bind=/sys/fs/cgroup --system-call-filter="add_key keyctl bpf" --bind-ro="$4:/host" \
    --bind="$2:/lab" --boot --console=pipe < /dev/null > "$2/nspawn.log" 2>&1 &
spawned=$!
enter() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        nsenter -t "$leader" -m -p -u -i -n -r -w "$@"
}
for _ in $(seq 150); do
    leader=$(cat /proc/$spawned/task/$spawned/children | cut -d' ' -f1)
    state=$([ -z "$leader" ] || enter systemctl is-system-running 2> /dev/null || :)
    case $state in running | degraded) break ;; esac
    kill -0 $spawned 2> /dev/null || break
    sleep 0.2
done
case $state in running | degraded) ;; *) echo "SKIP: systemd does not boot here: $(tail -3 "$2/nspawn.log")"; exit ;; esac
enter sh /lab/inside
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
for how in untold told; do runc kill -a $how KILL > /dev/null 2>&1; done
"""
LOOP = "while :; do cat /dev/nvidia0 2>> /said; sleep 0.1; done"


def bundle(lab: Path, how: str) -> None:
    """Make a container with a node of a GPU, no rule for it, and a hook that asks for the rule."""
    document = config(["/bin/busybox", "sh", "-c", f"export PATH=/bin; {LOOP}"])
    document["process"]["noNewPrivileges"] = False
    linux = document["linux"]
    linux["cgroupsPath"] = f"system.slice:nvct:{how}"
    linux["devices"] = [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666}
    ]
    hook = {"path": "/usr/bin/python3", "args": ["python3", "-I", "/lab/hook.py", how]}
    document["hooks"] = {"prestart": [hook]}
    folder = lab / how
    busybox = static_busybox(PROGRAM_DIRS)
    for name in ("bin", "proc", "dev", "sys"):
        (folder / "rootfs" / name).mkdir(parents=True)
    for name in ("busybox", "cat", "sleep"):
        shutil.copy(busybox, folder / "rootfs/bin" / name)
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")


def run(lab: Path, tree: str, cgroups: str) -> list[str]:
    """Boot the tree, start both containers, reload, and return what the containers saw."""
    for how in ("untold", "told"):
        bundle(lab, how)
    (lab / "hook.py").write_text(HOOK, encoding="utf-8")
    (lab / "inside").write_text(INSIDE, encoding="utf-8")
    (lab / "box").write_text(BOX, encoding="utf-8")
    nspawn = os.environ.get(NSPAWN_ENV, "")
    env = dict(os.environ)
    if nspawn:
        env["PATH"] = f"{nspawn}/usr/bin:{env['PATH']}"
        env["LD_LIBRARY_PATH"] = f"{nspawn}/usr/lib/{os.uname().machine}-linux-gnu/systemd"
    done = subprocess.run(
        ["unshare", "-m", "-n", "-u", "-i", "-p", "--fork", "--kill-child", "--mount-proc",
         "--propagation", "private", "sh", str(lab / "box"), cgroups, str(lab), tree,
         str(REPOSITORY)],
        env=env, capture_output=True, text=True, check=False, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return (done.stdout + done.stderr).splitlines()
