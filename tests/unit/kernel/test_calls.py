# SPDX-License-Identifier: Apache-2.0
"""What a process does to itself, and that numbers of the kernel are those of its headers."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from nvct.container.prestart import device_filter
from nvct.kernel import calls, inotify
from nvct.linux import constants, syscall
from nvct_sim import proc_modules
from nvct_sim.native import build as native
from tests.support.forked import run_forked
from tests.support.processes import captured

HEADERS = (
    "sys/syscall", "sys/ioctl", "linux/bpf", "linux/capability", "linux/filter", "linux/inotify", "linux/mount",
    "linux/prctl", "linux/sched", "linux/seccomp", "stdio",
)  # fmt: skip
NUMBERS = {
    **{name: getattr(calls, name) for name in vars(calls) if name.startswith("PR_")},
    "_LINUX_CAPABILITY_VERSION_3": calls.CAPABILITY_VERSION,
    **{
        f"IN_{name}": getattr(inotify, name)
        for name in ("CREATE", "DELETE", "DELETE_SELF", "MOVED_TO")
    },
    **{f"IN_{name}": getattr(inotify, name) for name in ("CLOEXEC", "NONBLOCK", "ONLYDIR")},
    "sizeof(struct inotify_event)": inotify.EVENT.size,
    "BPF_LD | BPF_W | BPF_ABS": proc_modules.LOAD,
    "BPF_JMP | BPF_JEQ | BPF_K": proc_modules.JUMP,
    "BPF_RET | BPF_K": proc_modules.RETURN,
    "sizeof(struct sock_filter)": 8,
    "SECCOMP_SET_MODE_FILTER": proc_modules.SET_MODE_FILTER,
    "SECCOMP_FILTER_FLAG_NEW_LISTENER": proc_modules.NEW_LISTENER,
    "SECCOMP_RET_USER_NOTIF": proc_modules.USER_NOTIF,
    "SECCOMP_RET_ALLOW": proc_modules.ALLOW,
    "SECCOMP_USER_NOTIF_FLAG_CONTINUE": proc_modules.CONTINUE,
    "SECCOMP_ADDFD_FLAG_SEND": proc_modules.ADDFD_SEND,
    "SECCOMP_IOCTL_NOTIF_RECV": proc_modules.RECV,
    "SECCOMP_IOCTL_NOTIF_SEND": proc_modules.SEND,
    "SECCOMP_IOCTL_NOTIF_ADDFD": proc_modules.ADDFD,
    "sizeof(struct seccomp_notif)": proc_modules.NOTIFICATION.size,
    "BPF_PROG_QUERY": device_filter.PROG_QUERY,
    "BPF_CGROUP_DEVICE": device_filter.ATTACH_CGROUP_DEVICE,
    **{
        name: getattr(constants, name)
        for name in vars(constants)
        if name.startswith(("CLONE_", "MS_"))
    },
    **{f"SYS_{name}": syscall.number(name) for name in syscall._BY_MACHINE[os.uname().machine]},
}


def test_numbers_and_sizes_are_those_of_the_systems_headers(tmp_path: Path) -> None:
    lines = [f'printf("%lld\\n", (long long)({name}));' for name in NUMBERS]
    includes = ["#define _GNU_SOURCE", *(f"#include <{name}.h>" for name in HEADERS)]
    source = "\n".join([*includes, "int main(void) {", *lines, "return 0; }"])
    program = tmp_path / "numbers"
    command = [native.find_compiler(), "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)

    found = captured([program], check=True).stdout.split()
    assert dict(zip(NUMBERS, map(int, found), strict=True)) == NUMBERS


def test_capabilities_are_given_up_for_good() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, which has some")

    def child() -> None:
        calls.give_up_capabilities()
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        assert set(re.findall(r"Cap(?!Amb)\w+:\t(\w+)", status)) == {"0" * 16}
        assert "NoNewPrivs:\t1\n" in status
        with pytest.raises(PermissionError):
            os.chroot("/")

    assert run_forked(child) == 0


def test_a_child_ends_with_its_parent() -> None:
    def parent() -> None:
        own = os.getpid()
        ready, done = os.pipe()
        if not os.fork():
            calls.end_with_parent(own)
            os.write(done, b".")
            time.sleep(20)
            os._exit(0)
        assert os.read(ready, 1) == b"."

    started = time.monotonic()
    assert run_forked(parent) == 0  # which waits for all that have its pipe
    assert time.monotonic() - started < 10
