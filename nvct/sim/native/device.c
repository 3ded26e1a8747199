/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding devices, and what they say about themselves: identity, PCI, memory, telemetry.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "simulation.h"

/* --- finding ------------------------------------------------------------------------------ */

/* NVML counts what this process may use: indices are not those of the node. */
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

static nvmlReturn_t gpu_handle(const struct gpu *gpu, nvmlDevice_t *device)
{
    if (gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    return give_handle(device, intern(GPU_HANDLE, gpu->index, 0, 0));
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    for (unsigned i = 0; i < s->n_gpus; i++)
        *count += gpu_is_visible(&s->gpus[i]);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    for (unsigned i = 0, n = 0; device && i < s->n_gpus; i++)
        if (gpu_is_visible(&s->gpus[i]) && n++ == index)
            return finish(gpu_handle(&s->gpus[i], device));
    return finish(NVML_ERROR_INVALID_ARGUMENT);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* "MIG-GPU-<uuid>/<gi>/<ci>", as drivers before 470 named MIG devices. */
static struct compute_instance *find_by_old_name(struct snapshot *s, const char *uuid)
{
    const char *slash = strchr(uuid, '/');
    unsigned long long gi, ci;
    if (strncmp(uuid, "MIG-GPU-", 8) != 0 || !slash)
        return NULL;
    const char *at = slash + 1;
    if (!parse_number(&at, &gi) || *at++ != '/' || !parse_number(&at, &ci) || *at)
        return NULL;
    for (unsigned i = 0; i < s->n_gpus; i++) {
        const char *own = s->gpus[i].uuid;
        if (strlen(own) == (size_t)(slash - uuid) - 4 && !strncmp(own, uuid + 4, strlen(own)))
            return find_compute_instance(s, s->gpus[i].index, (unsigned)gi, (unsigned)ci);
    }
    return NULL;
}

static nvmlReturn_t find_by_uuid(struct snapshot *s, const char *uuid, nvmlDevice_t *device)
{
    for (unsigned i = 0; i < s->n_gpus; i++)
        if (strcmp(s->gpus[i].uuid, uuid) == 0 && gpu_is_visible(&s->gpus[i]))
            return gpu_handle(&s->gpus[i], device);
    struct compute_instance *ci = find_by_old_name(s, uuid);
    for (unsigned i = 0; !ci && i < s->n_compute_instances; i++)
        if (strcmp(s->compute_instances[i].uuid, uuid) == 0)
            ci = &s->compute_instances[i];
    if (!ci || !compute_instance_is_visible(s, ci))
        return NVML_ERROR_NOT_FOUND;
    if (find_gpu(s, ci->gpu)->lost)
        return NVML_ERROR_GPU_IS_LOST;
    return give_handle(device, intern(MIG_HANDLE, ci->gpu, ci->gi, ci->id));
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    return finish(uuid && device ? find_by_uuid(s, uuid, device) : NVML_ERROR_INVALID_ARGUMENT);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    enum { ASCII = 1, BINARY = 2 };
    char text[64];
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!uuid || !device)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (uuid->version != NVML_STRUCT(nvmlUUID_t, 1))
        return finish(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    if (uuid->type == ASCII) {
        snprintf(text, sizeof(text), "%.*s", (int)sizeof(uuid->value.str), uuid->value.str);
        return finish(find_by_uuid(s, text, device));
    }
    if (uuid->type != BINARY)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    static const char *const prefixes[] = {"GPU", "MIG"};
    for (int i = 0; i < 2; i++) {
        const unsigned char *b = uuid->value.bytes;
        snprintf(text, sizeof(text),
                 "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                 prefixes[i], b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10],
                 b[11], b[12], b[13], b[14], b[15]);
        result = find_by_uuid(s, text, device);
        if (result != NVML_ERROR_NOT_FOUND)
            break;
    }
    return finish(result);
}

/* "0000:18:00.0" and "00000000:18:00.0" are the same; so is any case. The function is optional. */
static bool parse_bus_id(const char *text, unsigned parts[3])
{
    for (int i = 0; i < 3; i++) {
        unsigned digits = 0;
        parts[i] = 0;
        for (; *text && *text != ':' && *text != '.'; text++, digits++) {
            static const char hex[] = "0123456789abcdef0123456789ABCDEF";
            const char *at = strchr(hex, *text);
            if (!at)
                return false;
            parts[i] = parts[i] * 16 + (unsigned)(at - hex) % 16;
        }
        if (!digits || digits > 8)
            return false;
        if (i < 2 && *text++ != ':')
            return false;
    }
    return !*text || strcmp(text, ".0") == 0;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned parts[3];
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!bus_id || !device || !parse_bus_id(bus_id, parts))
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < s->n_gpus; i++) {
        struct gpu *gpu = &s->gpus[i];
        const struct place *p = &gpu->place;
        if (p->domain == parts[0] && p->bus == parts[1] && p->slot == parts[2])
            return finish(gpu_is_visible(gpu) ? gpu_handle(gpu, device) : NVML_ERROR_NO_PERMISSION);
    }
    return finish(NVML_ERROR_NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!serial || !*serial || !device)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < s->n_gpus; i++)
        if (strcmp(s->gpus[i].serial, serial) == 0 && gpu_is_visible(&s->gpus[i]))
            return finish(gpu_handle(&s->gpus[i], device));
    return finish(NVML_ERROR_NOT_FOUND);
}

/* --- identity ----------------------------------------------------------------------------- */

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

static nvmlReturn_t give_text(nvmlDevice_t device, size_t offset, char *out, unsigned length)
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
    return give_text(device, offsetof(struct gpu, serial), serial, length);
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
    return give_text(device, offsetof(struct gpu, vbios), version, length);
}

/* A whole GPU's number as the state has it. */
static nvmlReturn_t give_number(nvmlDevice_t device, enum accept accept, size_t offset,
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
        return give_number(device, accept, offsetof(struct gpu, field), out);                      \
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

/* --- PCI ---------------------------------------------------------------------------------- */

void fill_pci_info(const struct place *p, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", p->domain & 0xFFFF,
             p->bus & 0xFF, p->slot & 0xFF);
    snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", p->domain, p->bus, p->slot);
    pci->domain = p->domain;
    pci->bus = p->bus;
    pci->device = p->slot;
    pci->pciDeviceId = p->device;
    pci->pciSubSystemId = p->subsystem;
}

/* The struct of v1 and v2 is four bytes shorter: copy what both have. */
void shorten_pci_info(const nvmlPciInfo_t *now, nvmlPciInfo_v2_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    memcpy(pci, now, offsetof(nvmlPciInfo_v2_t, reserved));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!pci)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    fill_pci_info(&t.gpu->place, pci);
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t pci_info_before_v3(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_t now;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &now);
    if (result)
        return result;
    shorten_pci_info(&now, pci);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    return pci_info_before_v3(device, pci);
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    return pci_info_before_v3(device, pci);
}

API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    struct target t;
    nvmlPciInfo_t now;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!pci)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (pci->version != NVML_STRUCT(nvmlPciInfoExt_t, 1))
        return finish(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    fill_pci_info(&t.gpu->place, &now);
    pci->domain = now.domain;
    pci->bus = now.bus;
    pci->device = now.device;
    pci->pciDeviceId = now.pciDeviceId;
    pci->pciSubSystemId = now.pciSubSystemId;
    pci->baseClass = t.gpu->place.kind >> 16;
    pci->subClass = t.gpu->place.kind >> 8 & 0xFF;
    memcpy(pci->busId, now.busId, sizeof(pci->busId));
    return finish(NVML_SUCCESS);
}

/* --- memory ------------------------------------------------------------------------------- */

/* `used` is what programs use and what the driver has reserved. */
static nvmlReturn_t memory_of(nvmlDevice_t device, unsigned long long *total,
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
    nvmlReturn_t result = memory_of(device, &total, &used, &reserved);
    if (result || !memory)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){total, total - used, used};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    unsigned long long total, used, reserved;
    nvmlReturn_t result = memory_of(device, &total, &used, &reserved);
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
    if (!size) /* not said: a resizable one, a power of two that holds all memory */
        for (size = 1; size < t.gpu->memory; size <<= 1)
            ;
    *bar1 = (nvmlMemory_t){size, size - used, used};
    return finish(NVML_SUCCESS);
}
