/* SPDX-License-Identifier: Apache-2.0
 *
 * Switches MIG mode, creates and destroys GPU instances. A change edits the state file once, and
 * the files of mig_files.c. Files are created before the edit and removed after it, so that the
 * state never names an instance without files.
 */
#include "simulation.h"

/* --- mode --------------------------------------------------------------------------------- */

static nvmlReturn_t edit_mode(struct snapshot *s, struct text *text, void *arg)
{
    const struct change *change = arg;
    struct match gpu = {"gpu", {{"index", change->gpu}}};
    for (unsigned i = 0; i < s->n_gpu_instances && !change->on; i++)
        if (s->gpu_instances[i].gpu == change->gpu)
            return NVML_ERROR_IN_USE;
    const struct gpu *now = find_gpu(s, change->gpu);
    bool flips = now && now->mig != now->mig_pending;
    nvmlReturn_t result = NVML_SUCCESS;
    if (flips != change->pending)
        result = text_set(text, &gpu, "migflip", change->pending ? "1" : "0");
    return result || change->pending ? result
                                     : text_set(text, &gpu, "mig", change->on ? "1" : "0");
}

/* Return why a mode stays pending: a process uses the GPU, or the GPU must be reset first. */
static nvmlReturn_t hindrance(const struct snapshot *s, const struct gpu *gpu)
{
    for (unsigned i = 0; i < s->n_processes; i++)
        if (s->processes[i].gpu == gpu->index)
            return NVML_ERROR_IN_USE;
    return gpu->mig_needs_reset ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
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
    nvmlReturn_t reason = t.gpu->mig != (bool)mode ? hindrance(t.state, t.gpu) : NVML_SUCCESS;
    struct change change = {.gpu = t.gpu->index, .on = mode, .pending = reason != NVML_SUCCESS};
    if (t.gpu->mig != change.on || t.gpu->mig_pending != change.on)
        result = state_edit(edit_mode, &change);
    *activation = result ? result : reason;
    return finish(result);
}

/* --- GPU instances ------------------------------------------------------------------------ */

bool overlaps(nvmlPlacement_t a, nvmlPlacement_t b)
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

/* Placements divide the memory slices. Compute slices and the number of instances of a profile are
 * limited as well. */
static bool has_room(const struct snapshot *s, unsigned gpu, const struct profile *profile)
{
    unsigned same_profile = 0, slices = profile->slices;
    for (unsigned i = 0; i < s->n_gpu_instances; i++) {
        const struct gpu_instance *gi = &s->gpu_instances[i];
        const struct profile *gi_profile = find_profile(s, gpu, gi->profile);
        if (gi->gpu != gpu)
            continue;
        same_profile += gi->profile == profile->id;
        slices += gi_profile ? gi_profile->slices : 0;
    }
    return same_profile < profile->max && slices <= gpu_slices(s, gpu);
}

static bool find_placement(const struct snapshot *s, unsigned gpu, const struct profile *profile,
                           const nvmlPlacement_t *requested, nvmlPlacement_t *out)
{
    if (!has_room(s, gpu, profile))
        return false;
    for (unsigned i = 0; i < profile->n_placements; i++) {
        nvmlPlacement_t p = profile->placements[i];
        if ((!requested || (requested->start == p.start && requested->size == p.size)) &&
            is_free(s, gpu, p)) {
            *out = p;
            return true;
        }
    }
    return false;
}

/* The real driver numbers the nodes of a binary tree over the memory slices; the upper half comes
 * first. 0 is the whole GPU, 1 and 2 the halves, 3 to 6 the quarters, 7 to 14 the eighths. If that
 * number is in use, the first free one. nvct_sim/mig.py has the same rule. */
static unsigned choose_instance_id(struct snapshot *s, unsigned gpu, nvmlPlacement_t placement)
{
    enum { SLICES = 8 };
    unsigned id = GPU_INSTANCES_PER_GPU;
    if (placement.size && placement.size <= SLICES)
        id = SLICES / placement.size - 1 + (placement.start + SLICES / 2) % SLICES / placement.size;
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
    nvmlPlacement_t placement;
    if (!gpu || !profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!find_placement(s, gpu->index, profile, change->placement, &placement))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    change->gi = choose_instance_id(s, gpu->index, placement);
    nvmlReturn_t result = check_tree(s);
    if (result || change->gi == GPU_INSTANCES_PER_GPU)
        return result ? result : NVML_ERROR_INSUFFICIENT_RESOURCES;
    result = add_capability(s, gpu->minor, change->gi, NO_INSTANCE);
    if (!result)
        result = text_append(text, "gi\tgpu=%u\tid=%u\tprofile=%u\tstart=%u\tsize=%u\n",
                             gpu->index, change->gi, profile->id, placement.start, placement.size);
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
        result = set_handle(out, GPU_INSTANCE_HANDLE, change.gpu, change.gi, 0);
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
    *count = 0; /* as if created one after the other */
    nvmlPlacement_t planned[MAX_PLACEMENTS];
    unsigned existing = 0, slices = gpu_slices(t.state, t.gpu->index);
    for (unsigned i = 0; i < t.state->n_gpu_instances; i++) {
        const struct gpu_instance *gi = &t.state->gpu_instances[i];
        const struct profile *gi_profile = find_profile(t.state, gi->gpu, gi->profile);
        if (gi->gpu == t.gpu->index) {
            existing += gi->profile == profile->id;
            slices -= gi_profile && gi_profile->slices <= slices ? gi_profile->slices : slices;
        }
    }
    for (unsigned i = 0; i < profile->n_placements; i++) {
        bool free = is_free(t.state, t.gpu->index, profile->placements[i]);
        for (unsigned j = 0; j < *count; j++)
            free = free && !overlaps(profile->placements[i], planned[j]);
        if (free && existing + *count < profile->max && (*count + 1) * profile->slices <= slices)
            planned[(*count)++] = profile->placements[i];
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
