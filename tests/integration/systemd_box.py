# SPDX-License-Identifier: Apache-2.0
"""A machine of its own under a real systemd.

For systemd-nspawn, which changes the cgroup mounts that it finds: so it runs in private
namespaces, with one kind of cgroups. Of cgroup v1 it gets groups of its own: systemd removes empty
groups below its root, which may be those of a container that another test is starting. The tree is
a Debian with systemd, which is booted from a copy-on-write layer.
"""

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from nvct.errors import ContainerNotPossibleError
from nvct_sim.replay import CONFIG
from tests.support import debian_root
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
NSPAWN_ENV = "NVCT_TEST_NSPAWN"
"""Names an unpacked systemd-container package, where none is installed."""
BOX = r"""
set -eu
groups() { awk '$3 == "cgroup" {print $2}' /proc/self/mounts; }
if [ "$1" = v2 ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
elif [ "$6" = outside ]; then
    groups | while read -r m; do
        mkdir "$m/$5"
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$m/$file" ] || cat "$m/$file" > "$m/$5/$file"
        done
    done
    for m in $(groups); do echo 0 > "$m/$5/cgroup.procs"; done
    exec unshare -C sh "$0" "$1" "$2" "$3" "$4" "$5" inside
else
    mkdir "$2/cgroups"
    mount -t tmpfs -o mode=755 cgroups "$2/cgroups"
    groups | while read -r m; do
        mkdir "$2/cgroups/${m##*/}"
        mount --bind "$m/$5" "$2/cgroups/${m##*/}"
    done
    mount --rbind "$2/cgroups" /sys/fs/cgroup
fi
mount -t tmpfs -o mode=755 run /run
mkdir "$2/layer"
mount -t tmpfs layer "$2/layer"
mkdir "$2/layer/upper" "$2/layer/work" "$2/layer/tree"
mount -t overlay -o "lowerdir=$3,upperdir=$2/layer/upper,workdir=$2/layer/work" x "$2/layer/tree"
start() {
    systemd-nspawn -q --register=no --keep-unit -D "$2/layer/tree" --capability=all --private-network \
        --bind=/sys/fs/cgroup --system-call-filter="add_key keyctl bpf" --bind-ro="$4:/host" \
        --bind="$2:/lab" --boot --console=pipe < /dev/null > "$2/nspawn.log" 2>&1 &
    spawned=$!
}
enter() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        nsenter -t "$leader" -m -p -u -i -n -r -w "$@"
}
boots() {
    for _ in $(seq 150); do
        leader=$(cat /proc/$spawned/task/$spawned/children | cut -d' ' -f1)
        state=$([ -z "$leader" ] || enter systemctl is-system-running 2> /dev/null || :)
        case $state in running | degraded) return ;; esac
        kill -0 $spawned 2> /dev/null || break
        sleep 0.2
    done
    return 1
}
start "$@"
boots || { echo "SKIP: systemd does not boot here: $(tail -3 "$2/nspawn.log")"; exit; }
enter sh /lab/inside
[ -e "$2/after" ] || exit 0
enter systemctl reboot 2>/dev/null || true # systemd may end before it has answered
wait $spawned || : # with 133: "start it again"
start "$@"
boots || { echo "not: a reboot: $(tail -3 "$2/nspawn.log")"; exit; }
enter sh /lab/after
"""


def tree(release: str = "bookworm", *more: str) -> Path:
    """Return a Debian, or Ubuntu, that boots, with more packages; skip the test if there is none."""
    if os.geteuid():
        pytest.skip("only root boots a machine")
    if not (os.environ.get(NSPAWN_ENV) or shutil.which("systemd-nspawn")):
        pytest.skip("no systemd-nspawn; install systemd-container")
    try:
        return debian_root.root(release, "systemd-sysv", "dbus", "udev", *more)
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))


def config(cdi: str) -> str:
    """Return a config.toml for the simulated node at /lab/node; `cdi` is the specifications' folder."""
    places = {"driver": "/lab/node/driver", "tree": "/lab/node", "proc": "/lab/node/proc",
              "sys": "/lab/node/sys", "cdi": cdi}  # fmt: skip
    return CONFIG.format(**{name: json.dumps(place) for name, place in places.items()})


def run(lab: Path, tree: Path, cgroups: str, inside: str, after: str = "") -> list[str]:
    """Boot the tree, run a shell script in it, and return the lines that it said.

    The script finds `lab` at /lab and the checkout at /host. The test is skipped if systemd does
    not boot. `after` is a second script, for which the machine is booted again.
    """
    (lab / "inside").write_text(inside, encoding="utf-8")
    if after:
        (lab / "after").write_text(after, encoding="utf-8")
    (lab / "box").write_text(BOX, encoding="utf-8")
    nspawn = os.environ.get(NSPAWN_ENV, "")
    env = dict(os.environ)
    if nspawn:
        env["PATH"] = f"{nspawn}/usr/bin:{env['PATH']}"
        env["LD_LIBRARY_PATH"] = f"{nspawn}/usr/lib/{os.uname().machine}-linux-gnu/systemd"
    group = f"nvct-box-{os.getpid()}"
    try:
        done = _captured(lab, tree, cgroups, group, env)
    finally:
        _remove_groups(group)
    lines = (done.stdout + done.stderr).splitlines()
    if lines and lines[0].startswith("SKIP: "):
        pytest.skip(lines[0].removeprefix("SKIP: "))
    return lines


def _captured(
    lab: Path, tree: Path, cgroups: str, group: str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return captured(
        ["unshare", "-m", "-n", "-u", "-i", "-p", "--fork", "--kill-child", "--mount-proc",
         "--propagation", "private", "sh", str(lab / "box"), cgroups, str(lab), str(tree),
         str(REPOSITORY), group, "outside"],
        env=env, timeout=380,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _remove_groups(group: str) -> None:
    """Remove the machine's control groups: nspawn starts no other one in a group that delegates."""
    tops = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{group}")]
    for top in (*tops, "/sys/fs/cgroup/payload", "/sys/fs/cgroup/unified/payload"):
        events = Path(top, "cgroup.events")
        if events.exists() and "populated 1" in events.read_text(encoding="ascii"):
            continue  # of another machine that runs
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
