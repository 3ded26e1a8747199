/* SPDX-License-Identifier: Apache-2.0
 *
 * What the cold side uses of the C library and of the kernel. Sources: include/uapi/linux of Linux
 * 6.12; the layouts are the same on x86_64 and aarch64. cffi generates declared.py from this file:
 * `make golden KIND=kernel`.
 */

/* linux/capability.h */
#define _LINUX_CAPABILITY_VERSION_3 0x20080522

struct __user_cap_header_struct {
    uint32_t version;
    int pid;
};

struct __user_cap_data_struct {
    uint32_t effective;
    uint32_t permitted;
    uint32_t inheritable;
};

/* Functions of the C library, glibc 2.34 or later and musl. */
int mount(const char *source, const char *target, const char *type, unsigned long flags,
          const void *data);
int umount2(const char *target, int flags);
int unshare(int flags);
int setns(int fd, int type);
int prctl(int option, unsigned long arg2, unsigned long arg3, unsigned long arg4,
          unsigned long arg5);
int inotify_init1(int flags);
int inotify_add_watch(int fd, const char *path, uint32_t mask);
int inotify_rm_watch(int fd, int watch);

int capset(struct __user_cap_header_struct *header, const struct __user_cap_data_struct *data);

/* System calls that such a C library has no function for: types of syscall(2) for one number. */
long syscall(long number, ...);
typedef int pivot_root_call(long number, const char *new_root, const char *put_old);
typedef int openat2_call(long number, int dir_fd, const char *path, const struct open_how *how,
                         size_t size);
typedef int open_tree_call(long number, int dir_fd, const char *path, unsigned int flags);
typedef int move_mount_call(long number, int from_dir_fd, const char *from_path, int to_dir_fd,
                            const char *to_path, unsigned int flags);
typedef int mount_setattr_call(long number, int dir_fd, const char *path, unsigned int flags,
                               struct mount_attr *attributes, size_t size);
typedef int bpf_call(long number, int command, union bpf_attr *attributes, unsigned int size);
typedef int seccomp_call(long number, unsigned int operation, unsigned int flags,
                         struct sock_fprog *program);

/* linux/openat2.h, linux/mount.h */
struct open_how {
    uint64_t flags;
    uint64_t mode;
    uint64_t resolve;
};

struct mount_attr {
    uint64_t attr_set;
    uint64_t attr_clr;
    uint64_t propagation;
    uint64_t userns_fd;
};

/* linux/prctl.h */
#define PR_SET_DUMPABLE 4
#define PR_CAPBSET_DROP 24
#define PR_SET_CHILD_SUBREAPER 36
#define PR_SET_NO_NEW_PRIVS 38

/* linux/inotify.h */
#define IN_CLOEXEC 02000000
#define IN_NONBLOCK 04000
#define IN_CREATE 0x100
#define IN_DELETE 0x200
#define IN_DELETE_SELF 0x400
#define IN_MOVED_TO 0x80
#define IN_Q_OVERFLOW 0x4000
#define IN_ONLYDIR 0x01000000

struct inotify_event {
    int32_t wd;
    uint32_t mask;
    uint32_t cookie;
    uint32_t len;
    char name[];
};

/* linux/bpf.h: only the member of one command; bpf(2) takes the size. */
#define BPF_PROG_QUERY 16
#define BPF_CGROUP_DEVICE 6

union bpf_attr {
    struct {
        uint32_t target_fd;
        uint32_t attach_type;
        uint32_t query_flags;
        uint32_t attach_flags;
        uint64_t prog_ids;
        uint32_t prog_cnt;
    } query;
};

/* linux/filter.h, linux/bpf_common.h */
#define BPF_LD 0x00
#define BPF_JMP 0x05
#define BPF_RET 0x06
#define BPF_W 0x00
#define BPF_ABS 0x20
#define BPF_JEQ 0x10
#define BPF_K 0x00

struct sock_filter {
    uint16_t code;
    uint8_t jt;
    uint8_t jf;
    uint32_t k;
};

struct sock_fprog {
    unsigned short len;
    struct sock_filter *filter;
};

/* linux/seccomp.h */
#define SECCOMP_SET_MODE_FILTER 1
#define SECCOMP_FILTER_FLAG_NEW_LISTENER 8
#define SECCOMP_RET_USER_NOTIF 0x7fc00000
#define SECCOMP_RET_ALLOW 0x7fff0000
#define SECCOMP_USER_NOTIF_FLAG_CONTINUE 1
#define SECCOMP_ADDFD_FLAG_SEND 2
#define SECCOMP_IOCTL_NOTIF_RECV 0xc0502100
#define SECCOMP_IOCTL_NOTIF_SEND 0xc0182101
#define SECCOMP_IOCTL_NOTIF_ADDFD 0x40182103

struct seccomp_data {
    int nr;
    uint32_t arch;
    uint64_t instruction_pointer;
    uint64_t args[6];
};

struct seccomp_notif {
    uint64_t id;
    uint32_t pid;
    uint32_t flags;
    struct seccomp_data data;
};

struct seccomp_notif_resp {
    uint64_t id;
    int64_t val;
    int32_t error;
    uint32_t flags;
};

struct seccomp_notif_addfd {
    uint64_t id;
    uint32_t flags;
    uint32_t srcfd;
    uint32_t newfd;
    uint32_t newfd_flags;
};
