/* SPDX-License-Identifier: Apache-2.0
 *
 * Which devices this process may see: those whose nodes it can open. Opening goes through the
 * mount table, the file's mode and the device rules of the cgroup, so a listed GPU proves all three.
 * No driver is behind the nodes: ENXIO is what a permitted open of such a node gives.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "simulation.h"

const char *device_directory = "/dev";

/* Returns 0 or the errno that says why not. */
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
    if (gpu->seen == UNKNOWN_YET)
        gpu->seen = probe("%s/nvidia%u", gpu->minor, O_RDWR) == 0 ? VISIBLE : HIDDEN;
    return gpu->seen == VISIBLE;
}

static bool cap_is_visible(enum visibility *seen, bool has_cap, unsigned minor)
{
    if (*seen == UNKNOWN_YET) /* capability nodes are for reading: mode 0444 */
        *seen = has_cap && probe("%s/nvidia-caps/nvidia-cap%u", minor, O_RDONLY) == 0 ? VISIBLE
                                                                                       : HIDDEN;
    return *seen == VISIBLE;
}

bool compute_instance_is_visible(struct snapshot *s, struct compute_instance *ci)
{
    struct gpu *gpu = find_gpu(s, ci->gpu);
    struct gpu_instance *gi = find_gpu_instance(s, ci->gpu, ci->gi);
    return gpu && gi && gpu_is_visible(gpu) && cap_is_visible(&gi->seen, gi->has_cap, gi->cap) &&
           cap_is_visible(&ci->seen, ci->has_cap, ci->cap);
}
