# SPDX-License-Identifier: Apache-2.0
"""The cold side's system calls: those of mounts and namespaces by C declarations, through cffi.

The hot side may not import cffi; it has `nvct.linux.kernel`. Both have the same methods, arguments
and errors, and the same tests. Contract: only the first call imports cffi.
"""

from __future__ import annotations

import contextlib
import os
import signal

from nvct.linux.constants import OPEN_TREE_CLOEXEC
from nvct.linux.kernel import Kernel

__all__ = ["KERNEL", "DeclaredKernel", "Kernel"]


class DeclaredKernel(Kernel):
    """Makes the system calls. It has no state; use the instance `KERNEL`."""

    __slots__ = ()

    def openat2(self, dir_fd: int, path: str, flags: int, mode: int = 0, resolve: int = 0) -> int:
        """Open with restricted path resolution (RESOLVE_*). Linux 5.6."""
        from nvct.kernel.library import c_string, call, ffi, system_call

        how = ffi.new(
            "struct open_how *",
            {"flags": flags | os.O_CLOEXEC, "mode": mode, "resolve": resolve},
        )
        openat2, size = system_call("openat2"), ffi.sizeof(how[0])
        return call(openat2, dir_fd, c_string(path), how, size, path=path)

    def mount(
        self,
        source: str | None,
        target: str,
        fstype: str | None = None,
        flags: int = 0,
        data: str | None = None,
    ) -> None:
        """Attach a file system, bind a tree, or change a mount."""
        from nvct.kernel.library import c_string, call, lib

        strings = c_string(source), c_string(target), c_string(fstype)
        call(lib.mount, *strings, flags, c_string(data), path=target, other=source)

    def umount2(self, target: str, flags: int = 0) -> None:
        """Detach a file system."""
        from nvct.kernel.library import c_string, call, lib

        call(lib.umount2, c_string(target), flags, path=target)

    def open_tree(self, dir_fd: int, path: str, flags: int) -> int:
        """Open a mount, or with OPEN_TREE_CLONE a detached copy. Linux 5.2."""
        from nvct.kernel.library import c_string, call, system_call

        open_tree = system_call("open_tree")
        return call(open_tree, dir_fd, c_string(path), flags | OPEN_TREE_CLOEXEC, path=path)

    def move_mount(
        self, from_dir_fd: int, from_path: str, to_dir_fd: int, to_path: str, flags: int
    ) -> None:
        """Attach a detached mount or move one; empty paths need MOVE_MOUNT_*_EMPTY_PATH."""
        from nvct.kernel.library import c_string, call, system_call

        source, target = (from_dir_fd, c_string(from_path)), (to_dir_fd, c_string(to_path))
        move_mount = system_call("move_mount")
        call(move_mount, *source, *target, flags, path=to_path, other=from_path or None)

    def mount_setattr(
        self,
        dir_fd: int,
        path: str,
        flags: int,
        *,
        attr_set: int = 0,
        attr_clr: int = 0,
        propagation: int = 0,
        userns_fd: int = 0,
    ) -> None:
        """Change the attributes of a mount, with AT_RECURSIVE of a tree. Linux 5.12."""
        from nvct.kernel.library import c_string, call, ffi, system_call

        attributes = ffi.new(
            "struct mount_attr *",
            {
                "attr_set": attr_set,
                "attr_clr": attr_clr,
                "propagation": propagation,
                "userns_fd": userns_fd,
            },
        )
        mount_setattr, size = system_call("mount_setattr"), ffi.sizeof(attributes[0])
        call(mount_setattr, dir_fd, c_string(path), flags, attributes, size, path=path)

    def pivot_root(self, new_root: str, put_old: str) -> None:
        """Make `new_root` the root; the old root is then at `put_old`."""
        from nvct.kernel.library import c_string, call, system_call

        paths = c_string(new_root), c_string(put_old)
        call(system_call("pivot_root"), *paths, path=new_root, other=put_old)

    def setns(self, fd: int, nstype: int) -> None:
        """Enter a namespace."""
        from nvct.kernel.library import call, lib

        call(lib.setns, fd, nstype, path=f"/proc/self/fd/{fd}")

    def unshare(self, flags: int) -> None:
        """Move this process into new namespaces, selected by CLONE_* flags."""
        from nvct.kernel.library import call, lib

        call(lib.unshare, flags)

    def set_dumpable(self) -> None:
        """Restore access to this process's own /proc files, which a change of ids removes."""
        from nvct.kernel.library import call, lib

        call(lib.prctl, lib.PR_SET_DUMPABLE, 1, 0, 0, 0)

    def set_child_subreaper(self) -> None:
        """Make this process the parent of all orphans among its descendants."""
        from nvct.kernel.library import call, lib

        call(lib.prctl, lib.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


KERNEL = DeclaredKernel()


MAX_PROGRAMS = 64
PR_SET_PDEATHSIG = 1


def query_device_programs(cgroup_fd: int) -> tuple[int, list[int]]:
    """Return attach flags and ids of a cgroup's own device programs (v2); OSError has no path."""
    from nvct.kernel.library import call, ffi, lib, system_call

    ids = ffi.new("uint32_t[]", MAX_PROGRAMS)
    attributes = ffi.new("union bpf_attr *")
    query = attributes.query
    query.target_fd, query.attach_type = cgroup_fd, lib.BPF_CGROUP_DEVICE
    query.prog_ids, query.prog_cnt = int(ffi.cast("uintptr_t", ids)), MAX_PROGRAMS
    call(system_call("bpf"), lib.BPF_PROG_QUERY, attributes, ffi.sizeof(attributes[0]))
    return query.attach_flags, list(ids[0 : query.prog_cnt])


def end_with_parent(parent: int) -> None:
    """Let this process, a new child, get SIGTERM once its parent ends, by SIGKILL too."""
    from nvct.kernel.library import call, lib

    call(lib.prctl, PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def give_up_capabilities() -> None:
    """Drop every capability of this process for good; without any, it can gain none.

    Other processes of its user cannot trace it, either.
    """
    from nvct.kernel.library import call, ffi, lib

    call(lib.prctl, lib.PR_SET_DUMPABLE, 0, 0, 0, 0)
    call(lib.prctl, lib.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # past the last one, or without CAP_SETPCAP
        for number in range(64):
            call(lib.prctl, lib.PR_CAPBSET_DROP, number, 0, 0, 0)
    header = ffi.new("struct __user_cap_header_struct *")
    header.version = lib._LINUX_CAPABILITY_VERSION_3  # noqa: SLF001 - a name of the kernel
    call(lib.capset, header, ffi.new("struct __user_cap_data_struct[2]"))
