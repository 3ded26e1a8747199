/* SPDX-License-Identifier: Apache-2.0
 *
 * Turning MIG mode on and off, creating and destroying instances. A change is one edit of the state
 * file, and what the real driver shows of it: the access files under proc/driver/nvidia/capabilities
 * and the nodes under dev/nvidia-caps of the simulated tree.
 *
 * Files come before the state and go after it, so that the state never names what is not there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simulation.h"

enum { NO_INSTANCE = -1 };

struct change {
    unsigned gpu, gi, ci, profile;
    const nvmlPlacement_t *placement; /* NULL: the first that is free */
    bool on;
};

/* --- files -------------------------------------------------------------------------------- */

/* Minor numbers as the real driver's mig-minors table has them: two for the machine, then for each
 * GPU 15 GPU instances, each one of its own and one for each of 8 compute instances. */
static unsigned cap_minor(unsigned gpu_minor, unsigned gi, int ci)
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

/* mkdir -p below the tree, which has to be there: a container does not see it. */
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

/* A tree without real device nodes gets none: its /dev is of plain files. */
static bool has_real_nodes(const struct snapshot *s)
{
    char path[PATH_MAX + 128];
    struct statx found;
    snprintf(path, sizeof(path), "%s/dev/nvidiactl", s->tree);
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &found) == 0 &&
           S_ISCHR(found.stx_mode);
}

/* The system call: glibc 2.33 gave mknodat a new symbol. Its device number is 32 bits wide. */
static nvmlReturn_t make_node(const char *path, unsigned major, unsigned minor)
{
    unsigned device = (minor & 0xff) | (major & 0xfff) << 8 | (minor & ~0xffU) << 12;
    if (major && syscall(SYS_mknodat, AT_FDCWD, path, S_IFCHR | 0444, device) == 0)
        return chmod(path, 0444) == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
    if (major && errno == EEXIST)
        return NVML_SUCCESS;
    return write_file(path, "", 0444); /* without the privilege: discovery still works */
}

static nvmlReturn_t add_capability(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci)
{
    char path[PATH_MAX + 128], content[96];
    unsigned minor = cap_minor(gpu_minor, gi, ci);
    capability_directory(s, gpu_minor, gi, ci, path, sizeof(path));
    nvmlReturn_t result = make_directories(s, path);
    if (result)
        return result;
    strcat(path, "/access"); /* there is room: see check_tree */
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

static void remove_capability(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci,
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

/* A state without a tree, or of a tree that this process cannot see, cannot be changed here. */
static nvmlReturn_t check_tree(const struct snapshot *s)
{
    if (s->tree[0] != '/' || strlen(s->tree) > PATH_MAX - 128)
        return NVML_ERROR_NO_PERMISSION;
    return access(s->tree, W_OK) == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

/* --- mode --------------------------------------------------------------------------------- */

static nvmlReturn_t edit_mode(struct snapshot *s, struct text *text, void *arg)
{
    const struct change *change = arg;
    struct match gpu = {"gpu", {{"index", change->gpu}}};
    for (unsigned i = 0; i < s->n_gpu_instances && !change->on; i++)
        if (s->gpu_instances[i].gpu == change->gpu)
            return NVML_ERROR_IN_USE;
    return text_set(text, &gpu, "mig", change->on ? "1" : "0");
}

API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (mode > 1 || !activation)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->mig_capable)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    struct change change = {.gpu = t.gpu->index, .on = mode};
    if (t.gpu->mig != change.on)
        result = state_edit(edit_mode, &change);
    *activation = result; /* no reset is ever pending */
    return finish(result);
}

/* --- GPU instances ------------------------------------------------------------------------ */

static bool overlaps(nvmlPlacement_t a, nvmlPlacement_t b)
{
    return a.start < b.start + b.size && b.start < a.start + a.size;
}

static bool is_free(const struct snapshot *s, unsigned gpu, nvmlPlacement_t placement)
{
    for (unsigned i = 0; i < s->n_gpu_instances; i++) {
        const struct gpu_instance *gi = &s->gpu_instances[i];
        if (gi->gpu == gpu && overlaps((nvmlPlacement_t){gi->start, gi->size}, placement))
            return false;
    }
    return true;
}

/* Memory slices are what placements divide, compute slices and engines are limited beside them. */
static bool has_room(const struct snapshot *s, unsigned gpu, const struct profile *profile)
{
    unsigned of_this_kind = 0, slices = profile->slices;
    for (unsigned i = 0; i < s->n_gpu_instances; i++) {
        const struct gpu_instance *gi = &s->gpu_instances[i];
        const struct profile *other = find_profile(s, gpu, gi->profile);
        if (gi->gpu != gpu)
            continue;
        of_this_kind += gi->profile == profile->id;
        slices += other ? other->slices : 0;
    }
    return of_this_kind < profile->max && slices <= gpu_slices(s, gpu);
}

static bool find_placement(const struct snapshot *s, unsigned gpu, const struct profile *profile,
                           const nvmlPlacement_t *wanted, nvmlPlacement_t *out)
{
    if (!has_room(s, gpu, profile))
        return false;
    for (unsigned i = 0; i < profile->n_placements; i++) {
        nvmlPlacement_t p = profile->placements[i];
        if ((!wanted || (wanted->start == p.start && wanted->size == p.size)) &&
            is_free(s, gpu, p)) {
            *out = p;
            return true;
        }
    }
    return false;
}

/* The real driver numbers the nodes of a binary tree over the memory slices whose upper half comes
 * first: 0 is the whole GPU, 1 and 2 the halves, 3 to 6 the quarters, 7 to 14 the eighths. Where
 * that number is taken, the first that is free. As nvct/sim/mig.py does it. */
static unsigned choose_instance_id(struct snapshot *s, unsigned gpu, nvmlPlacement_t place)
{
    enum { SLICES = 8 };
    unsigned id = GPU_INSTANCES_PER_GPU;
    if (place.size && place.size <= SLICES)
        id = SLICES / place.size - 1 + (place.start + SLICES / 2) % SLICES / place.size;
    if (id < GPU_INSTANCES_PER_GPU && !find_gpu_instance(s, gpu, id))
        return id;
    for (id = 0; id < GPU_INSTANCES_PER_GPU && find_gpu_instance(s, gpu, id); id++)
        ;
    return id;
}

static nvmlReturn_t edit_create(struct snapshot *s, struct text *text, void *arg)
{
    struct change *change = arg;
    const struct gpu *gpu = find_gpu(s, change->gpu);
    const struct profile *profile = find_profile(s, change->gpu, change->profile);
    nvmlPlacement_t place;
    if (!gpu || !profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!find_placement(s, gpu->index, profile, change->placement, &place))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    change->gi = choose_instance_id(s, gpu->index, place);
    nvmlReturn_t result = check_tree(s);
    if (result || change->gi == GPU_INSTANCES_PER_GPU)
        return result ? result : NVML_ERROR_INSUFFICIENT_RESOURCES;
    result = add_capability(s, gpu->minor, change->gi, NO_INSTANCE);
    if (!result)
        result = text_append(text, "gi\tgpu=%u\tid=%u\tprofile=%u\tstart=%u\tsize=%u\n",
                             gpu->index, change->gi, profile->id, place.start, place.size);
    if (!result)
        result = text_append(text, "cap\tgpu=%u\tgi=%u\tminor=%u\n", gpu->index, change->gi,
                             cap_minor(gpu->minor, change->gi, NO_INSTANCE));
    if (result)
        remove_capability(s, gpu->minor, change->gi, NO_INSTANCE,
                          cap_minor(gpu->minor, change->gi, NO_INSTANCE));
    return result;
}

static nvmlReturn_t create_instance(nvmlDevice_t device, unsigned profile,
                                    const nvmlPlacement_t *placement, nvmlGpuInstance_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    struct change change = {.gpu = t.gpu->index, .profile = profile, .placement = placement};
    result = state_edit(edit_create, &change);
    if (!result)
        result = give_handle(out, intern(GPU_INSTANCE_HANDLE, change.gpu, change.gi, 0));
    return finish(result);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile,
                                             nvmlGpuInstance_t *out)
{
    return create_instance(device, profile, NULL, out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile,
                                                          const nvmlPlacement_t *placement,
                                                          nvmlGpuInstance_t *out)
{
    if (!placement)
        return is_initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    return create_instance(device, profile, placement, out);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id,
                                                           unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    const struct profile *profile = find_profile(t.state, t.gpu->index, id);
    if (!count || !profile)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->mig)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *count = 0; /* greedily, in the order in which creation fills the placements */
    nvmlPlacement_t taken[MAX_PLACEMENTS];
    unsigned used = 0, slices = gpu_slices(t.state, t.gpu->index);
    for (unsigned i = 0; i < t.state->n_gpu_instances; i++) {
        const struct gpu_instance *gi = &t.state->gpu_instances[i];
        const struct profile *other = find_profile(t.state, gi->gpu, gi->profile);
        if (gi->gpu == t.gpu->index) {
            used += gi->profile == profile->id;
            slices -= other && other->slices <= slices ? other->slices : slices;
        }
    }
    for (unsigned i = 0; i < profile->n_placements; i++) {
        bool free = is_free(t.state, t.gpu->index, profile->placements[i]);
        for (unsigned j = 0; j < *count; j++)
            free = free && !overlaps(profile->placements[i], taken[j]);
        if (free && used + *count < profile->max && (*count + 1) * profile->slices <= slices)
            taken[(*count)++] = profile->placements[i];
    }
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t edit_destroy(struct snapshot *s, struct text *text, void *arg)
{
    const struct change *change = arg;
    struct match instance = {"gi", {{"gpu", change->gpu}, {"id", change->gi}}};
    struct match caps = {"cap", {{"gpu", change->gpu}, {"gi", change->gi}}};
    if (!find_gpu_instance(s, change->gpu, change->gi))
        return NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; i < s->n_compute_instances; i++)
        if (s->compute_instances[i].gpu == change->gpu && s->compute_instances[i].gi == change->gi)
            return NVML_ERROR_IN_USE;
    text_remove(text, &instance);
    text_remove(text, &caps);
    return check_tree(s);
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    struct change change = {.gpu = t.gpu->index, .gi = t.gi->id};
    result = state_edit(edit_destroy, &change);
    if (!result)
        remove_capability(t.state, t.gpu->minor, change.gi, NO_INSTANCE, t.gi->cap);
    return finish(result);
}

/* --- compute instances -------------------------------------------------------------------- */

static bool find_compute_place(const struct snapshot *s, const struct change *change,
                               unsigned available, unsigned size, unsigned *start)
{
    for (*start = 0; *start + size <= available; ++*start) {
        bool free = !change->placement ||
                    (change->placement->start == *start && change->placement->size == size);
        for (unsigned i = 0; i < s->n_compute_instances && free; i++) {
            const struct compute_instance *ci = &s->compute_instances[i];
            free = ci->gpu != change->gpu || ci->gi != change->gi ||
                   !overlaps((nvmlPlacement_t){ci->start, ci->size},
                             (nvmlPlacement_t){*start, size});
        }
        if (free)
            return true;
    }
    return false;
}

static nvmlReturn_t edit_create_compute(struct snapshot *s, struct text *text, void *arg)
{
    struct change *change = arg;
    const struct gpu *gpu = find_gpu(s, change->gpu);
    const struct gpu_instance *gi = find_gpu_instance(s, change->gpu, change->gi);
    const struct profile *profile = gi ? find_profile(s, change->gpu, gi->profile) : NULL;
    unsigned size = compute_slices(change->profile), start;
    char uuid[UUID_LENGTH];
    if (!gpu || !profile)
        return NVML_ERROR_NOT_FOUND;
    if (!size || size > profile->slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (change->ci = 0; find_compute_instance(s, change->gpu, change->gi, change->ci); change->ci++)
        ;
    if (change->ci >= COMPUTE_INSTANCES_PER_INSTANCE ||
        !find_compute_place(s, change, profile->slices, size, &start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    nvmlReturn_t result = check_tree(s);
    if (result)
        return result;
    make_mig_uuid(gpu->uuid, gi->id, change->ci, uuid, sizeof(uuid));
    result = add_capability(s, gpu->minor, gi->id, (int)change->ci);
    if (!result)
        result = text_append(text, "ci\tgpu=%u\tgi=%u\tid=%u\tprofile=%u\tstart=%u\tsize=%u\tuuid=%s\n",
                             gpu->index, gi->id, change->ci, change->profile, start, size, uuid);
    if (!result)
        result = text_append(text, "cap\tgpu=%u\tgi=%u\tci=%u\tminor=%u\n", gpu->index, gi->id,
                             change->ci, cap_minor(gpu->minor, gi->id, (int)change->ci));
    if (result)
        remove_capability(s, gpu->minor, gi->id, (int)change->ci,
                          cap_minor(gpu->minor, gi->id, (int)change->ci));
    return result;
}

static nvmlReturn_t create_compute_instance(nvmlGpuInstance_t instance, unsigned profile,
                                            const nvmlPlacement_t *placement,
                                            nvmlComputeInstance_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    struct change change = {.gpu = t.gpu->index, .gi = t.gi->id, .profile = profile,
                            .placement = placement};
    result = state_edit(edit_create_compute, &change);
    if (!result)
        result = give_handle(out, intern(COMPUTE_INSTANCE_HANDLE, change.gpu, change.gi, change.ci));
    return finish(result);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile,
                                                      nvmlComputeInstance_t *out)
{
    return create_compute_instance(instance, profile, NULL, out);
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance,
                                                                   unsigned profile,
                                                                   const nvmlPlacement_t *placement,
                                                                   nvmlComputeInstance_t *out)
{
    if (!placement)
        return is_initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    return create_compute_instance(instance, profile, placement, out);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance,
                                                                    unsigned id, unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    const struct profile *profile = find_profile(t.state, t.gpu->index, t.gi->profile);
    unsigned size = compute_slices(id), free = profile ? profile->slices : 0;
    if (!count || !size || size > free)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < t.state->n_compute_instances; i++) {
        const struct compute_instance *ci = &t.state->compute_instances[i];
        if (ci->gpu == t.gi->gpu && ci->gi == t.gi->id)
            free -= ci->size <= free ? ci->size : free;
    }
    *count = free / size;
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t edit_destroy_compute(struct snapshot *s, struct text *text, void *arg)
{
    const struct change *change = arg;
    struct match instance = {"ci", {{"gpu", change->gpu}, {"gi", change->gi}, {"id", change->ci}}};
    struct match caps = {"cap", {{"gpu", change->gpu}, {"gi", change->gi}, {"ci", change->ci}}};
    if (!find_compute_instance(s, change->gpu, change->gi, change->ci))
        return NVML_ERROR_NOT_FOUND;
    text_remove(text, &instance);
    text_remove(text, &caps);
    return check_tree(s);
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, COMPUTE_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    struct change change = {.gpu = t.gpu->index, .gi = t.gi->id, .ci = t.ci->id};
    result = state_edit(edit_destroy_compute, &change);
    if (!result)
        remove_capability(t.state, t.gpu->minor, change.gi, (int)change.ci, t.ci->cap);
    return finish(result);
}
