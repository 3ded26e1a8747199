/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG mode, MIG devices, GPU instance profiles and GPU instances. mig_change.c changes them.
 */
#include <stdio.h>
#include <string.h>

#include "simulation.h"

enum { GPU_PROFILE_KINDS = 0x12 };

/* --- mode and devices --------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!current || !pending)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->mig_capable)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *current = t.gpu->mig;
    *pending = t.gpu->mig_pending;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *count = t.gpu->mig_capable ? gpu_slices(t.state, t.gpu->index) : 0;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                     nvmlDevice_t *mig)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!mig || index >= gpu_slices(t.state, t.gpu->index))
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0, n = 0; i < t.state->n_compute_instances; i++) {
        struct compute_instance *ci = &t.state->compute_instances[i];
        if (ci->gpu == t.gpu->index && compute_instance_is_visible(t.state, ci) && n++ == index)
            return finish(set_handle(mig, MIG_HANDLE, ci->gpu, ci->gi, ci->id));
    }
    return finish(NVML_ERROR_NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!is_mig)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *is_mig = t.ci != NULL;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(mig, MIG_DEVICE, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    return finish(set_handle(out, GPU_HANDLE, t.gpu->index, 0, 0));
}

static nvmlReturn_t instance_id(nvmlDevice_t mig, bool compute, unsigned *id)
{
    struct target t;
    nvmlReturn_t result = begin_device(mig, MIG_DEVICE, &t);
    if (result)
        return result;
    if (!id)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *id = compute ? t.ci->id : t.gi->id;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id)
{
    return instance_id(mig, false, id);
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id)
{
    return instance_id(mig, true, id);
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, nvmlDeviceAttributes_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(mig, MIG_DEVICE, &t);
    if (result)
        return result;
    const struct profile *p = find_profile(t.state, t.gpu->index, t.gi->profile);
    if (!out || !p)
        return finish(out ? NVML_ERROR_UNKNOWN : NVML_ERROR_INVALID_ARGUMENT);
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = multiprocessors(p, t.ci->size),
        .sharedCopyEngineCount = p->ce,
        .sharedDecoderCount = p->dec,
        .sharedJpegCount = p->jpeg,
        .sharedOfaCount = p->ofa,
        .gpuInstanceSliceCount = p->slices,
        .computeInstanceSliceCount = t.ci->size,
        .memorySizeMB = p->memory_mb,
    };
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t mig, nvmlDeviceAttributes_t *out)
{
    return nvmlDeviceGetAttributes_v2(mig, out);
}

/* --- GPU instance profiles ---------------------------------------------------------------- */

static nvmlReturn_t profile_info(nvmlDevice_t device, unsigned number, bool by_id,
                                 nvmlGpuInstanceProfileInfo_v3_t *out)
{
    struct target t;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!by_id && number >= GPU_PROFILE_KINDS)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    const struct profile *profile = NULL;
    for (unsigned i = 0; i < t.state->n_profiles && t.gpu->mig_capable; i++) {
        const struct profile *p = &t.state->profiles[i];
        if ((by_id ? p->id : p->kind) == number &&
            p == find_profile(t.state, t.gpu->index, p->id))
            profile = p;
    }
    if (!profile)
        return finish(by_id && t.gpu->mig_capable ? NVML_ERROR_INVALID_ARGUMENT
                                                  : NVML_ERROR_NOT_SUPPORTED);
    *out = (nvmlGpuInstanceProfileInfo_v3_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->max,
        .multiprocessorCount = profile->sm,
        .copyEngineCount = profile->ce,
        .decoderCount = profile->dec,
        .jpegCount = profile->jpeg,
        .ofaCount = profile->ofa,
        .memorySizeMB = profile->memory_mb,
    };
    snprintf(out->name, sizeof(out->name), "MIG %s", profile->name);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned kind,
                                                     nvmlGpuInstanceProfileInfo_t *out)
{
    nvmlGpuInstanceProfileInfo_v3_t info;
    nvmlReturn_t result = profile_info(device, kind, false, &info);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlGpuInstanceProfileInfo_t){
        .id = info.id,
        .sliceCount = info.sliceCount,
        .instanceCount = info.instanceCount,
        .multiprocessorCount = info.multiprocessorCount,
        .copyEngineCount = info.copyEngineCount,
        .decoderCount = info.decoderCount,
        .jpegCount = info.jpegCount,
        .ofaCount = info.ofaCount,
        .memorySizeMB = info.memorySizeMB,
    };
    return NVML_SUCCESS;
}

/* The first word of the caller's struct is the version: one of two layouts. */
static nvmlReturn_t versioned_profile_info(nvmlDevice_t device, unsigned number, bool by_id,
                                           void *out)
{
    nvmlGpuInstanceProfileInfo_v3_t info;
    unsigned version;
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    memcpy(&version, out, sizeof(version));
    bool v3 = version == NVML_STRUCT(nvmlGpuInstanceProfileInfo_v3_t, 3);
    if (!v3 && version != NVML_STRUCT(nvmlGpuInstanceProfileInfo_v2_t, 2))
        return is_initialized() ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = profile_info(device, number, by_id, &info);
    if (result)
        return result;
    info.version = version;
    if (v3) {
        memcpy(out, &info, sizeof(info));
        return NVML_SUCCESS;
    }
    nvmlGpuInstanceProfileInfo_v2_t v2 = {
        .version = version,
        .id = info.id,
        .sliceCount = info.sliceCount,
        .instanceCount = info.instanceCount,
        .multiprocessorCount = info.multiprocessorCount,
        .copyEngineCount = info.copyEngineCount,
        .decoderCount = info.decoderCount,
        .jpegCount = info.jpegCount,
        .ofaCount = info.ofaCount,
        .memorySizeMB = info.memorySizeMB,
    };
    memcpy(v2.name, info.name, sizeof(v2.name));
    memcpy(out, &v2, sizeof(v2));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind, void *out)
{
    return versioned_profile_info(device, kind, false, out);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id,
                                                          void *out)
{
    return versioned_profile_info(device, id, true, out);
}

/* --- GPU instances ------------------------------------------------------------------------ */

/* With a NULL array only the count is returned. */
API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                               nvmlPlacement_t *out,
                                                               unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    const struct profile *p = find_profile(t.state, t.gpu->index, id);
    if (!count || !t.gpu->mig_capable || !p)
        return finish(t.gpu->mig_capable ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED);
    if (out && *count < p->n_placements)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    else if (out)
        memcpy(out, p->placements, p->n_placements * sizeof(*out));
    *count = p->n_placements;
    return finish(result);
}

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id,
                                                            nvmlPlacement_t *out, unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, out, count);
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile,
                                           nvmlGpuInstance_t *out, unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out || !count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->mig)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *count = 0; /* the caller's array has instanceCount elements, as the profile says */
    for (unsigned i = 0; i < t.state->n_gpu_instances && !result; i++) {
        const struct gpu_instance *gi = &t.state->gpu_instances[i];
        if (gi->gpu == t.gpu->index && gi->profile == profile)
            result = set_handle(&out[(*count)++], GPU_INSTANCE_HANDLE, gi->gpu, gi->id, 0);
    }
    return finish(result);
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id,
                                              nvmlGpuInstance_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!find_gpu_instance(t.state, t.gpu->index, id))
        return finish(t.gpu->mig ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED);
    return finish(set_handle(out, GPU_INSTANCE_HANDLE, t.gpu->index, id, 0));
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_instance(instance, GPU_INSTANCE_HANDLE, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    out->id = t.gi->id;
    out->profileId = t.gi->profile;
    out->placement = (nvmlPlacement_t){t.gi->start, t.gi->size};
    return finish(set_handle(&out->device, GPU_HANDLE, t.gpu->index, 0, 0));
}
