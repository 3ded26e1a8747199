/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of the driver as a whole: calls that hang, and calls that crash the process. The state's
 * record `fault` has one of them in `nvml`, and in `until` when it ends, in milliseconds since 1970.
 *
 * A process that hangs hard is not ended by SIGKILL, as with a driver that never answers: it waits
 * in the kernel for a file system of the simulation. A process of our own mounts that file system
 * where nobody else sees it, takes the request and does not answer. The wait ends with the fault or
 * with that process. Where it cannot mount (no /dev/fuse, no rights), the calls hang all the same,
 * but SIGKILL works.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "simulation.h"

enum { POLL_MS = 20 };

/* <linux/fuse.h>; the headers of the kernel are not on every machine. */
enum { FUSE_INIT = 26, FUSE_MAJOR = 7, FUSE_MINOR = 31, FUSE_BUFFER = 65536 };

struct request {
    uint32_t length, operation;
    uint64_t unique, node;
    uint32_t rest[4];
};

struct init_answer {
    uint32_t length;
    int32_t error;
    uint64_t unique;
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, rest[9];
};

static bool is_active(const struct snapshot *s, enum fault fault)
{
    return s->fault == fault && now_us() / 1000 < s->fault_until;
}

static void hang(struct snapshot *s, enum fault fault)
{
    while (is_active(s, fault) && state_refresh(s) == NVML_SUCCESS)
        wait_ms(POLL_MS);
}

static void crash(void)
{
    volatile char *volatile nowhere = NULL;
    *nowhere = 0;
}

/* --- the process that does not answer ----------------------------------------------------- */

static void close_all_but(int one, int other)
{
    unsigned low = (unsigned)(one < other ? one : other), high = (unsigned)(one + other) - low;
    if (low)
        syscall(SYS_close_range, 0U, low - 1, 0U);
    if (high > low + 1)
        syscall(SYS_close_range, low + 1, high - 1, 0U);
    syscall(SYS_close_range, high + 1, ~0U, 0U);
}

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Mounts are a process's own in a mount namespace; others than root need a user namespace, too. */
static bool leave_mount_namespace(unsigned uid, unsigned gid)
{
    char map[64];
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            return false;
        snprintf(map, sizeof(map), "%u %u 1\n", uid, uid);
        bool ok = write_file("/proc/self/uid_map", map);
        ok = write_file("/proc/self/setgroups", "deny") && ok;
        snprintf(map, sizeof(map), "%u %u 1\n", gid, gid);
        if (!write_file("/proc/self/gid_map", map) || !ok)
            return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* Returns the file system's own end, and in `root` its directory. */
static int mount_silent(int *root)
{
    char options[128];
    unsigned uid = geteuid(), gid = getegid();
    int fuse = leave_mount_namespace(uid, gid) ? open("/dev/fuse", O_RDWR | O_CLOEXEC) : -1;
    if (fuse < 0)
        return -1;
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%u,group_id=%u", fuse, uid,
             gid);
    if (mount("nvct-sim", "/dev", "fuse", MS_NOSUID | MS_NODEV, options) != 0)
        return -1;
    *root = open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *root < 0 ? -1 : fuse;
}

static bool send_descriptor(int socket, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

static int receive_descriptor(int socket)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof(control)};
    ssize_t n;
    while ((n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    struct cmsghdr *header = n == 1 ? CMSG_FIRSTHDR(&message) : NULL;
    int fd = -1;
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

/* The kernel asks for the version first; nothing else gets an answer. */
static void answer_init(int fuse)
{
    static union {
        struct request head;
        char bytes[FUSE_BUFFER];
    } request;
    if (read(fuse, &request, sizeof(request)) < (ssize_t)sizeof(request.head) ||
        request.head.operation != FUSE_INIT)
        return;
    struct init_answer answer = {.length = sizeof(answer), .unique = request.head.unique,
                                 .major = FUSE_MAJOR, .minor = FUSE_MINOR, .max_write = 4096};
    if (write(fuse, &answer, sizeof(answer)) < 0)
        _exit(1);
}

__attribute__((noreturn)) static void serve_silently(struct snapshot *s, int socket)
{
    int root;
    close_all_but(socket, state_descriptor());
    int fuse = mount_silent(&root);
    if (fuse < 0 || !send_descriptor(socket, root))
        _exit(1);
    close(root);
    while (is_active(s, HANG_HARD) && state_refresh(s) == NVML_SUCCESS) {
        struct pollfd ready = {.fd = fuse, .events = POLLIN};
        if (poll(&ready, 1, POLL_MS) == 1 && ready.revents & POLLIN)
            answer_init(fuse);
    }
    _exit(0); /* with it goes the file system, and all who wait for it go on */
}

/* Clone and not fork: no signal tells the caller's program of a child that it does not know, and
 * what it registered to run in a child does not run. */
static long clone_process(void)
{
    return syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
}

/* Start the process, as nobody's child, and return the directory where to wait. */
static int start_silent_server(struct snapshot *s)
{
    int ends[2], directory = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return -1;
    long child = clone_process();
    if (child == 0) {
        setsid();
        if (clone_process() == 0)
            serve_silently(s, ends[1]);
        _exit(0);
    }
    close(ends[1]);
    if (child > 0) {
        while (waitpid((pid_t)child, NULL, __WALL) < 0 && errno == EINTR)
            ;
        directory = receive_descriptor(ends[0]);
    }
    close(ends[0]);
    return directory;
}

static void hang_hard(struct snapshot *s)
{
    int directory = start_silent_server(s);
    if (directory >= 0) {
        faccessat(directory, "hang", F_OK, 0); /* here the process waits; fstatat needs glibc 2.33 */
        close(directory);
        state_refresh(s);
    }
    hang(s, HANG_HARD);
}

void apply_fault(struct snapshot *s)
{
    if (is_active(s, CRASH))
        crash();
    if (is_active(s, HANG_HARD))
        hang_hard(s);
    hang(s, HANG);
}
