/* SPDX-License-Identifier: Apache-2.0
 *
 * Identity and memory of a device.
 */
#include <stdio.h>
#include <string.h>

#include "simulation.h"

/* --- identity ----------------------------------------------------------------------------- */

static void mig_profile_name(const struct target *t, char *out, size_t size)
{
    const struct profile *profile = find_profile(t->state, t->gpu->index, t->gi->profile);
    if (profile)
        name_profile(profile, t->ci ? t->ci->size : 0, out, size);
    else
        snprintf(out, size, "?");
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    char text[2 * NVML_NAME_LENGTH + 8];
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (t.ci) {
        char profile[MIG_NAME_LENGTH];
        mig_profile_name(&t, profile, sizeof(profile));
        snprintf(text, sizeof(text), "%s MIG %s", t.gpu->name, profile);
    } else
        snprintf(text, sizeof(text), "%s", t.gpu->name);
    return finish(copy_text(text, name, length));
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    return result ? result : finish(copy_text(t.ci ? t.ci->uuid : t.gpu->uuid, uuid, length));
}

/* NVML numbers the GPUs that this process may use; the indices may differ from the node's. */
static unsigned visible_index(struct snapshot *s, const struct gpu *gpu)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->n_gpus; i++) {
        if (&s->gpus[i] == gpu)
            break;
        n += gpu_is_visible(&s->gpus[i]);
    }
    return n;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!index)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.ci) {
        *index = visible_index(t.state, t.gpu);
        return finish(NVML_SUCCESS);
    }
    *index = 0;
    for (struct compute_instance *ci = t.state->compute_instances; ci < t.ci; ci++)
        *index += ci->gpu == t.ci->gpu && compute_instance_is_visible(t.state, ci);
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t read_text(nvmlDevice_t device, size_t offset, char *out, unsigned length)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    const char *text = (const char *)t.gpu + offset;
    return finish(*text ? copy_text(text, out, length) : NVML_ERROR_NOT_SUPPORTED);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    return read_text(device, offsetof(struct gpu, serial), serial, length);
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
    return read_text(device, offsetof(struct gpu, vbios), version, length);
}

/* Read a number from struct gpu. */
static nvmlReturn_t read_member(nvmlDevice_t device, enum accept accept, size_t offset,
                                unsigned *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, accept, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    memcpy(out, (const char *)t.gpu + offset, sizeof(*out));
    return finish(NVML_SUCCESS);
}

#define GPU_NUMBER(function, accept, field)                                                        \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *out)                                  \
    {                                                                                              \
        return read_member(device, accept, offsetof(struct gpu, field), out);                      \
    }

GPU_NUMBER(nvmlDeviceGetMinorNumber, WHOLE_GPU, minor)
GPU_NUMBER(nvmlDeviceGetBoardId, WHOLE_GPU, board)
GPU_NUMBER(nvmlDeviceGetModuleId, WHOLE_GPU, index)
GPU_NUMBER(nvmlDeviceGetBrand, ANY_DEVICE, brand)
GPU_NUMBER(nvmlDeviceGetArchitecture, ANY_DEVICE, arch)
GPU_NUMBER(nvmlDeviceGetPersistenceMode, WHOLE_GPU, persistence)

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!major || !minor)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)t.gpu->cc_major;
    *minor = (int)t.gpu->cc_minor;
    return finish(NVML_SUCCESS);
}

/* --- memory ------------------------------------------------------------------------------- */

/* `used` is the memory of programs and the memory that the driver reserves. */
static nvmlReturn_t read_memory(nvmlDevice_t device, unsigned long long *total,
                              unsigned long long *used, unsigned long long *reserved)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    *total = t.gpu->memory;
    *used = t.gpu->memory_used;
    *reserved = t.gpu->memory_reserved;
    if (t.ci) {
        const struct profile *profile = find_profile(t.state, t.gpu->index, t.gi->profile);
        *total = profile ? profile->memory_mb << 20 : 0;
        *used = *reserved = *total / 1024;
    }
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    unsigned long long total, used, reserved;
    nvmlReturn_t result = read_memory(device, &total, &used, &reserved);
    if (result || !memory)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){total, total - used, used};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    unsigned long long total, used, reserved;
    nvmlReturn_t result = read_memory(device, &total, &used, &reserved);
    if (result || !memory)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != NVML_STRUCT(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = total;
    memory->reserved = reserved;
    memory->free = total - used;
    memory->used = used - reserved;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *bar1)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!bar1)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    unsigned long long size = t.gpu->bar1 << 20, used = 1 << 20;
    if (!size) /* a resizable BAR: the smallest power of two that covers the memory */
        for (size = 1; size < t.gpu->memory; size <<= 1)
            ;
    *bar1 = (nvmlMemory_t){size, size - used, used};
    return finish(NVML_SUCCESS);
}
