/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of the whole driver: every call hangs, or crashes the process. In the state's record
 * `fault`, `nvml` is the kind of fault and `until` its end in milliseconds since 1970.
 *
 * SIGKILL does not end a process in the fault hang-hard, as with a driver that never answers: the
 * process waits in the kernel for a FUSE file system. A server process mounts that file system in
 * a mount namespace of its own, reads the request and never replies. The wait ends with the fault
 * or with the server. If the server cannot mount (no /dev/fuse, no permission), the calls still
 * hang, but SIGKILL ends the process.
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

/* From <linux/fuse.h>: not every machine has the kernel's headers. */
enum { FUSE_INIT = 26, FUSE_MAJOR = 7, FUSE_MINOR = 31, FUSE_BUFFER = 65536 };

struct request {
    uint32_t length, operation;
    uint64_t unique, node;
    uint32_t uid, gid, pid, padding;
};

struct init_reply {
    uint32_t length;
    int32_t error;
    uint64_t unique;
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, unused[9];
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
    volatile char *volatile null = NULL;
    *null = 0;
}

/* --- the server that never replies ------------------------------------------------------- */

static void close_all_but(int fd1, int fd2)
{
    unsigned low = (unsigned)(fd1 < fd2 ? fd1 : fd2), high = (unsigned)(fd1 + fd2) - low;
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

/* Enter a mount namespace, without root also a user namespace, so that no other process sees the
 * mount. */
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

/* Return the descriptor of the FUSE server, and in `root` the file system's directory. */
static int mount_fuse(int *root)
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

/* Reply to the kernel's first request, for the version; no other request gets a reply. */
static void reply_to_init(int fuse)
{
    static union {
        struct request head;
        char bytes[FUSE_BUFFER];
    } request;
    if (read(fuse, &request, sizeof(request)) < (ssize_t)sizeof(request.head) ||
        request.head.operation != FUSE_INIT)
        return;
    struct init_reply reply = {.length = sizeof(reply), .unique = request.head.unique,
                                 .major = FUSE_MAJOR, .minor = FUSE_MINOR, .max_write = 4096};
    if (write(fuse, &reply, sizeof(reply)) < 0)
        _exit(1);
}

__attribute__((noreturn)) static void serve_silently(struct snapshot *s, int socket)
{
    int root;
    close_all_but(socket, state_descriptor());
    int fuse = mount_fuse(&root);
    if (fuse < 0 || !send_descriptor(socket, root))
        _exit(1);
    close(root);
    while (is_active(s, HANG_HARD) && state_refresh(s) == NVML_SUCCESS) {
        struct pollfd ready = {.fd = fuse, .events = POLLIN};
        if (poll(&ready, 1, POLL_MS) == 1 && ready.revents & POLLIN)
            reply_to_init(fuse);
    }
    _exit(0); /* this ends the file system, and all processes that wait for it continue */
}

/* clone(2), not fork(3): the calling program gets no SIGCHLD for a child that it did not start,
 * and its pthread_atfork handlers do not run. */
static long clone_process(void)
{
    return syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
}

/* Start the server, not as a child of this process; return the directory of its file system. */
static int start_silent_server(struct snapshot *s)
{
    int sockets[2], directory = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        return -1;
    long child = clone_process();
    if (child == 0) {
        setsid();
        if (clone_process() == 0)
            serve_silently(s, sockets[1]);
        _exit(0);
    }
    close(sockets[1]);
    if (child > 0) {
        while (waitpid((pid_t)child, NULL, __WALL) < 0 && errno == EINTR)
            ;
        directory = receive_descriptor(sockets[0]);
    }
    close(sockets[0]);
    return directory;
}

static void hang_hard(struct snapshot *s)
{
    int directory = start_silent_server(s);
    if (directory >= 0) {
        faccessat(directory, "hang", F_OK, 0); /* blocks; fstatat would need glibc 2.33 */
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
