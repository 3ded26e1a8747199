/* SPDX-License-Identifier: Apache-2.0
 *
 * Compute instances: profiles, placements and handles. mig_change_compute.c changes them.
 */
#include <stdio.h>
#include <string.h>

#include "simulation.h"

enum { COMPUTE_PROFILE_KINDS = 0x9, ENGINE_PROFILES = 1 };

static nvmlReturn_t compute_profile_info(nvmlGpuInstance_t instance, unsigned kind, unsigned engine,
                                         nvmlComputeInstanceProfileInfo_v3_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    if (kind >= COMPUTE_PROFILE_KINDS || engine >= ENGINE_PROFILES)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    const struct profile *p = find_profile(t.state, t.gpu->index, t.gi->profile);
    unsigned slices = compute_slices(kind);
    if (!p || !slices || slices > p->slices)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *out = (nvmlComputeInstanceProfileInfo_v3_t){
        .id = kind,
        .sliceCount = slices,
        .instanceCount = p->slices / slices,
        .multiprocessorCount = multiprocessors(p, slices),
        .sharedCopyEngineCount = p->ce,
        .sharedDecoderCount = p->dec,
        .sharedJpegCount = p->jpeg,
        .sharedOfaCount = p->ofa,
    };
    char name[MIG_NAME_LENGTH];
    name_profile(p, slices, name, sizeof(name));
    snprintf(out->name, sizeof(out->name), "MIG %s", name);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance,
                                                              unsigned kind, unsigned engine,
                                                              nvmlComputeInstanceProfileInfo_t *out)
{
    nvmlComputeInstanceProfileInfo_v3_t info;
    nvmlReturn_t result = compute_profile_info(instance, kind, engine, &info);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    memcpy(out, &info.id, sizeof(*out)); /* v1 has no version, name and capabilities */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance,
                                                               unsigned kind, unsigned engine,
                                                               void *out)
{
    enum { V2_SIZE = offsetof(nvmlComputeInstanceProfileInfo_v3_t, capabilities) };
    nvmlComputeInstanceProfileInfo_v3_t info;
    unsigned version;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(&version, out, sizeof(version));
    bool v3 = version == NVML_STRUCT(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if (!v3 && version != (V2_SIZE | 2U << 24))
        return is_initialized() ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = compute_profile_info(instance, kind, engine, &info);
    if (result)
        return result;
    info.version = version;
    memcpy(out, &info, v3 ? sizeof(info) : V2_SIZE);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance,
                                                                     unsigned profile,
                                                                     nvmlPlacement_t *out,
                                                                     unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    const struct profile *p = find_profile(t.state, t.gpu->index, t.gi->profile);
    unsigned slices = compute_slices(profile);
    if (!count || !p || !slices || slices > p->slices)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    unsigned n = p->slices / slices;
    for (unsigned i = 0; out && i < n && i < *count; i++)
        out[i] = (nvmlPlacement_t){i * slices, slices};
    result = out && *count < n ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    *count = n;
    return finish(result);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile,
                                                    nvmlComputeInstance_t *out, unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    if (!out || !count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (unsigned i = 0; i < t.state->n_compute_instances && !result; i++) {
        const struct compute_instance *ci = &t.state->compute_instances[i];
        if (ci->gpu == t.gi->gpu && ci->gi == t.gi->id && ci->profile == profile)
            result = set_handle(&out[(*count)++], COMPUTE_INSTANCE_HANDLE, ci->gpu, ci->gi, ci->id);
    }
    return finish(result);
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                       nvmlComputeInstance_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!find_compute_instance(t.state, t.gi->gpu, t.gi->id, id))
        return finish(NVML_ERROR_NOT_FOUND);
    return finish(set_handle(out, COMPUTE_INSTANCE_HANDLE, t.gi->gpu, t.gi->id, id));
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
                                               nvmlComputeInstanceInfo_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, COMPUTE_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    out->id = t.ci->id;
    out->profileId = t.ci->profile;
    out->placement = (nvmlPlacement_t){t.ci->start, t.ci->size};
    result = set_handle(&out->device, GPU_HANDLE, t.gpu->index, 0, 0);
    if (!result)
        result = set_handle(&out->gpuInstance, GPU_INSTANCE_HANDLE, t.gi->gpu, t.gi->id, 0);
    return finish(result);
}

API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance,
                                            nvmlComputeInstanceInfo_t *out)
{
    return nvmlComputeInstanceGetInfo_v2(instance, out);
}
