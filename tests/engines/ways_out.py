# SPDX-License-Identifier: Apache-2.0
"""Ways by which root in a container leaves the control group that refuses devices."""

from tests.engines.box import Box

GROUPS = "/sys/fs/cgroup"
LEAVES = """\
for groups in /x/sys/fs/cgroup /x/fs/cgroup /x/deep/groups /deep/groups /x \\
  /proc/[0-9]*/root/sys/fs/cgroup /x/[0-9]*/root/sys/fs/cgroup /x/proc/1/root/sys/fs/cgroup; do
  for group in $groups/devices $groups; do
    [ -e $group/devices.deny ] && echo $$ > $group/cgroup.procs && break 2
  done
done 2>/dev/null
"""
"""The test machine's control groups are of version 1."""


def of_volume(*options: str) -> str:
    """Return the flag of Docker for a volume that it mounts itself."""
    words = ",".join(f"volume-opt={option}" for option in options)
    return f"--mount=type=volume,dst=/x,volume-driver=local,{words}"


PROCESSES = ("--pid=host", "--cap-add=SYS_PTRACE")
DOCKER = {
    "a link to the root": ("--volume=/run/root:/x",),
    "a link to the control groups": ("--volume=/run/groups:/x",),
    "a volume of the control groups": (of_volume("type=none", "o=rbind", f"device={GROUPS}"),),
    "a volume of their type": (of_volume("type=cgroup", "o=devices", "device=cgroup"),),
    "a mount below": ("--volume=/run/mounts:/x",),
    "the host's processes": PROCESSES,
    "the host's processes, annotated": (*PROCESSES, "--annotation=type=pid"),
    "the host's /proc": ("--volume=/proc:/x:ro", "--cap-add=SYS_PTRACE"),
    "the host's root and its /proc": ("--volume=/:/x:ro", "--cap-add=SYS_PTRACE"),
}
PODMAN = {
    **{name: flags for name, flags in DOCKER.items() if "volume" not in name},
    "a volume of the control groups": ("--volume=groups:/x",),
    "a volume of their type": ("--volume=of-type:/x",),
    "another container's volumes": ("--volumes-from=holder",),
}


def prepare(box: Box) -> None:
    """Make the links and the mount that the ways need."""
    box.call("ln", "-sfn", "/", "/run/root")
    box.call("ln", "-sfn", GROUPS, "/run/groups")
    box.call("mkdir", "-p", "/run/mounts/deep/groups", "/run/later")
    if box.call("mountpoint", "-q", "/run/mounts/deep/groups").returncode:
        done = box.call("mount", "--rbind", GROUPS, "/run/mounts/deep/groups")
        assert done.returncode == 0, done
        box.call("mount", "--bind", "--make-shared", "/run/later", "/run/later")
