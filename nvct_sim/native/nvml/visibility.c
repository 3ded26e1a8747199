/* SPDX-License-Identifier: Apache-2.0
 *
 * A device is visible to this process if the process can open its nodes. open(2) checks the mount
 * table, the file's mode and the device rules of the cgroup, so a listed GPU proves all three.
 * There is no driver for the nodes: if open(2) is permitted, it fails with ENXIO.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "simulation.h"

const char *device_directory = "/dev";

/* Return 0 if the node can be opened, else errno. */
static int probe(const char *name, unsigned minor, int flags)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), name, device_directory, minor);
    if (n < 0 || (size_t)n >= sizeof(path))
        return ENAMETOOLONG;
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    return errno == ENXIO ? 0 : errno;
}

nvmlReturn_t probe_control_node(void)
{
    switch (probe("%s/nvidiactl", 0, O_RDWR)) {
    case 0:
        return NVML_SUCCESS;
    case ENOENT:
    case ENOTDIR:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case EPERM:
    case EACCES:
        return NVML_ERROR_NO_PERMISSION;
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

bool gpu_is_visible(struct gpu *gpu)
{
    if (gpu->visibility == NOT_PROBED)
        gpu->visibility = probe("%s/nvidia%u", gpu->minor, O_RDWR) == 0 ? VISIBLE : HIDDEN;
    return gpu->visibility == VISIBLE;
}

static bool cap_is_visible(enum visibility *visibility, bool has_cap, unsigned minor)
{
    static const char node[] = "%s/nvidia-caps/nvidia-cap%u"; /* mode 0444 */
    if (*visibility == NOT_PROBED)
        *visibility = has_cap && probe(node, minor, O_RDONLY) == 0 ? VISIBLE : HIDDEN;
    return *visibility == VISIBLE;
}

bool compute_instance_is_visible(struct snapshot *s, struct compute_instance *ci)
{
    struct gpu *gpu = find_gpu(s, ci->gpu);
    struct gpu_instance *gi = find_gpu_instance(s, ci->gpu, ci->gi);
    return gpu && gi && gpu_is_visible(gpu) &&
           cap_is_visible(&gi->visibility, gi->has_cap, gi->cap) &&
           cap_is_visible(&ci->visibility, ci->has_cap, ci->cap);
}
