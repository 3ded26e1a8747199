/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates and destroys compute instances.
 */

#include "simulation.h"

static bool find_compute_placement(const struct snapshot *s, const struct change *change,
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
    change->ci = 0;
    while (find_compute_instance(s, change->gpu, change->gi, change->ci))
        change->ci++;
    if (change->ci >= COMPUTE_INSTANCES_PER_INSTANCE ||
        !find_compute_placement(s, change, profile->slices, size, &start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    nvmlReturn_t result = check_tree(s);
    if (result)
        return result;
    make_mig_uuid(gpu->uuid, gi->id, change->ci, uuid, sizeof(uuid));
    result = add_capability(s, gpu->minor, gi->id, (int)change->ci);
    if (!result)
        result = text_append(text, "ci\tgpu=%u\tgi=%u\tid=%u\tprofile=%u\tstart=%u\tsize=%u"
                             "\tuuid=%s\n", gpu->index, gi->id, change->ci, change->profile,
                             start, size, uuid);
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
        result = set_handle(out, COMPUTE_INSTANCE_HANDLE, change.gpu, change.gi, change.ci);
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
    for (unsigned i = 0; i < s->n_processes; i++) {
        const struct process *p = &s->processes[i];
        if (p->gpu == change->gpu && p->gi == change->gi && p->ci == change->ci)
            return NVML_ERROR_IN_USE;
    }
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
