/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's files of MIG instances, in the simulated tree: access files below
 * proc/driver/nvidia/capabilities and device nodes below dev/nvidia-caps.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simulation.h"

/* Minor numbers as in the real driver's mig-minors table: two for the machine, then 15 GPU
 * instances for each GPU. A GPU instance has one number for itself and one for each of 8 compute
 * instances. */
unsigned cap_minor(unsigned gpu_minor, unsigned gi, int ci)
{
    enum { FIRST = 3, PER_INSTANCE = COMPUTE_INSTANCES_PER_INSTANCE + 1 };
    return FIRST + (gpu_minor * GPU_INSTANCES_PER_GPU + gi) * PER_INSTANCE +
           (ci == NO_INSTANCE ? 0 : (unsigned)ci + 1);
}

static void capability_directory(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci,
                                 char *out, size_t size)
{
    int n = snprintf(out, size, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", s->tree,
                     gpu_minor, gi);
    if (ci != NO_INSTANCE && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, "/ci%d", ci);
}

static void cap_node(const struct snapshot *s, unsigned minor, char *out, size_t size)
{
    snprintf(out, size, "%s/dev/nvidia-caps/nvidia-cap%u", s->tree, minor);
}

/* mkdir -p below the tree. The tree itself must exist, which is not so in a container. */
static nvmlReturn_t make_directories(const struct snapshot *s, char *path)
{
    for (char *p = path + strlen(s->tree) + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        int failed = mkdir(path, 0755) != 0 && errno != EEXIST;
        *p = '/';
        if (failed)
            return NVML_ERROR_NO_PERMISSION;
    }
    return mkdir(path, 0755) == 0 || errno == EEXIST ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

static nvmlReturn_t write_file(const char *path, const char *content, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return NVML_ERROR_NO_PERMISSION;
    ssize_t n = write(fd, content, strlen(content));
    fchmod(fd, mode);
    close(fd);
    return n == (ssize_t)strlen(content) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* A node with plain files as device nodes gets no real ones. */
static bool has_real_nodes(const struct snapshot *s)
{
    char path[PATH_MAX + 128];
    struct statx status;
    snprintf(path, sizeof(path), "%s/dev/nvidiactl", s->tree);
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &status) == 0 &&
           S_ISCHR(status.stx_mode);
}

/* Uses the system call, because mknodat is a new symbol in glibc 2.33. Its device number has 32
 * bits. */
static nvmlReturn_t make_node(const char *path, unsigned major, unsigned minor)
{
    unsigned device = (minor & 0xff) | (major & 0xfff) << 8 | (minor & ~0xffU) << 12;
    if (major && syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0444, device) == 0)
        return chmod(path, 0444) == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
    if (major && errno == EEXIST)
        return NVML_SUCCESS;
    return write_file(path, "", 0444); /* no CAP_MKNOD: discovery works with plain files */
}

nvmlReturn_t add_capability(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci)
{
    char path[PATH_MAX + 128], content[96];
    unsigned minor = cap_minor(gpu_minor, gi, ci);
    capability_directory(s, gpu_minor, gi, ci, path, sizeof(path));
    nvmlReturn_t result = make_directories(s, path);
    if (result)
        return result;
    strcat(path, "/access"); /* check_tree ensures the room */
    snprintf(content, sizeof(content),
             "DeviceFileMinor: %u\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, 0444);
    result = write_file(path, content, 0444);
    if (result)
        return result;
    snprintf(path, sizeof(path), "%s/dev/nvidia-caps", s->tree);
    result = make_directories(s, path);
    if (result)
        return result;
    cap_node(s, minor, path, sizeof(path));
    return make_node(path, has_real_nodes(s) ? s->caps_major : 0, minor);
}

void remove_capability(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci,
                              unsigned minor)
{
    char path[PATH_MAX + 128];
    capability_directory(s, gpu_minor, gi, ci, path, sizeof(path));
    size_t n = strlen(path);
    strcat(path, "/access");
    unlink(path);
    path[n] = '\0';
    rmdir(path);
    cap_node(s, minor, path, sizeof(path));
    unlink(path);
}

/* MIG changes need the node's tree: this process must see it and be able to write to it. */
nvmlReturn_t check_tree(const struct snapshot *s)
{
    if (s->tree[0] != '/' || strlen(s->tree) > PATH_MAX - 128)
        return NVML_ERROR_NO_PERMISSION;
    return access(s->tree, W_OK) == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}
