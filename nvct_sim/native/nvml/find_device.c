/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of devices, by index, UUID, PCI bus id and serial number.
 */
#include <stdio.h>
#include <string.h>

#include "simulation.h"

static nvmlReturn_t gpu_handle(const struct gpu *gpu, nvmlDevice_t *device)
{
    if (gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    return set_handle(device, GPU_HANDLE, gpu->index, 0, 0);
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

/* "MIG-GPU-<uuid>/<gi>/<ci>", the name of a MIG device in drivers before 470. */
static struct compute_instance *find_by_legacy_uuid(struct snapshot *s, const char *uuid)
{
    const char *slash = strchr(uuid, '/');
    unsigned long long gi, ci;
    if (strncmp(uuid, "MIG-GPU-", 8) != 0 || !slash)
        return NULL;
    const char *at = slash + 1;
    if (!parse_number(&at, &gi) || *at++ != '/' || !parse_number(&at, &ci) || *at)
        return NULL;
    for (unsigned i = 0; i < s->n_gpus; i++) {
        const char *gpu_uuid = s->gpus[i].uuid;
        if (strlen(gpu_uuid) == (size_t)(slash - uuid) - 4 &&
            !strncmp(gpu_uuid, uuid + 4, strlen(gpu_uuid)))
            return find_compute_instance(s, s->gpus[i].index, (unsigned)gi, (unsigned)ci);
    }
    return NULL;
}

static nvmlReturn_t find_by_uuid(struct snapshot *s, const char *uuid, nvmlDevice_t *device)
{
    for (unsigned i = 0; i < s->n_gpus; i++)
        if (strcmp(s->gpus[i].uuid, uuid) == 0 && gpu_is_visible(&s->gpus[i]))
            return gpu_handle(&s->gpus[i], device);
    struct compute_instance *ci = find_by_legacy_uuid(s, uuid);
    for (unsigned i = 0; !ci && i < s->n_compute_instances; i++)
        if (strcmp(s->compute_instances[i].uuid, uuid) == 0)
            ci = &s->compute_instances[i];
    if (!ci || !compute_instance_is_visible(s, ci))
        return NVML_ERROR_NOT_FOUND;
    if (find_gpu(s, ci->gpu)->lost)
        return NVML_ERROR_GPU_IS_LOST;
    return set_handle(device, MIG_HANDLE, ci->gpu, ci->gi, ci->id);
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

/* "0000:18:00.0" and "00000000:18:00.0" are equal, and case does not matter. The PCI function,
 * ".0", is optional. */
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
        const struct pci_device *p = &gpu->pci;
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
