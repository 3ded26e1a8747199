# SPDX-License-Identifier: Apache-2.0
"""Constants of the Linux kernel that Python's `posix` module does not have.

Plain ints, the same on x86_64 and aarch64; flags that differ between machines (O_DIRECTORY,
O_NOFOLLOW) are in `posix`. Sources: include/uapi/linux/{mount,fcntl,sched,magic,
memfd,stat}.h of Linux 6.12. Imports nothing.
"""

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000


OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = 0o2000000

MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x100000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOSYMFOLLOW = 256
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SHARED = 1 << 20

MNT_DETACH = 2

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

PR_SET_DUMPABLE = 4


S_IFMT = 0o170000
S_IFCHR = 0o020000
S_IFDIR = 0o040000
S_IFREG = 0o100000
S_IFLNK = 0o120000
S_ISVTX = 0o1000

ST_RDONLY = 1  # statvfs(3)

FICLONE = 0x40049409  # _IOW(0x94, 9, int)
