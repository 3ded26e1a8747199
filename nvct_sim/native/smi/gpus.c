/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML, loaded at run time, and the GPUs that it lists.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "smi.h"

struct nvml nvml;

bool load_nvml(void)
{
    void *library = open_library("libnvidia-ml.so.1", RTLD_LAZY);
    if (!library)
        return false;
    bool complete = true;
    void *symbol;
#define X(name, arguments)                                                                         \
    symbol = find_symbol(library, #name);                                                          \
    complete = complete && symbol;                                                                 \
    memcpy(&nvml.name, &symbol, sizeof(symbol));
    NVML_FUNCTIONS(X)
    X(nvmlErrorString, )
#undef X
    return complete;
}

int fail(const char *operation, nvmlReturn_t result)
{
    printf("%s: %s\n", operation, nvml.nvmlErrorString(result));
    return (int)(result > 255 ? 255 : result);
}

static void read_gpu(unsigned index, struct gpu_entry *gpu)
{
    nvmlPciInfo_t pci;
    unsigned mode = 0, pending;
    gpu->index = index;
    gpu->status = nvml.nvmlDeviceGetHandleByIndex_v2(index, &gpu->device);
    if (!gpu->status)
        gpu->status = nvml.nvmlDeviceGetName(gpu->device, gpu->name, sizeof(gpu->name));
    if (!gpu->status)
        gpu->status = nvml.nvmlDeviceGetUUID(gpu->device, gpu->uuid, sizeof(gpu->uuid));
    if (!gpu->status)
        gpu->status = nvml.nvmlDeviceGetPciInfo_v3(gpu->device, &pci);
    if (gpu->status)
        return;
    memcpy(gpu->bus_id, pci.busId, sizeof(gpu->bus_id));
    gpu->mig = nvml.nvmlDeviceGetMigMode(gpu->device, &mode, &pending) == NVML_SUCCESS && mode;
}

nvmlReturn_t list_gpus(struct gpu_list *list)
{
    nvmlReturn_t result = nvml.nvmlDeviceGetCount_v2(&list->count);
    if (result)
        return result;
    if (list->count > MAX_DEVICES)
        list->count = MAX_DEVICES;
    for (unsigned i = 0; i < list->count; i++)
        read_gpu(i, &list->gpus[i]);
    return NVML_SUCCESS;
}

int report_unavailable(const struct gpu_entry *gpu)
{
    printf("Unable to determine the device handle for gpu %u: %s\n", gpu->index,
           nvml.nvmlErrorString(gpu->status));
    return (int)gpu->status;
}

/* The domain has four or eight digits. */
static bool is_bus_id(const char *id, const char *bus_id)
{
    size_t length = strlen(bus_id), n = strlen(id);
    return strcasecmp(id, bus_id) == 0 ||
           (n + 4 == length && strncmp(bus_id, "0000", 4) == 0 && strcasecmp(id, bus_id + 4) == 0);
}

bool is_selected(const struct gpu_entry *gpu, const char *ids)
{
    char id[NVML_NAME_LENGTH];
    for (const char *p = ids; p && *p;) {
        unsigned index;
        p = next_word(p, id, sizeof(id));
        if ((parse_unsigned(id, &index) && index == gpu->index) || strcmp(id, gpu->uuid) == 0 ||
            is_bus_id(id, gpu->bus_id))
            return true;
    }
    return !ids;
}

unsigned max_mig_devices(const struct gpu_entry *gpu)
{
    unsigned count = 0;
    if (gpu->mig)
        nvml.nvmlDeviceGetMaxMigDeviceCount(gpu->device, &count);
    return count;
}

nvmlDevice_t mig_device(const struct gpu_entry *gpu, unsigned index)
{
    nvmlDevice_t device;
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu->device, index, &device) ? NULL : device;
}

void read_versions(struct versions *versions)
{
    int cuda = 0;
    snprintf(versions->driver, sizeof(versions->driver), "N/A");
    nvml.nvmlSystemGetDriverVersion(versions->driver, sizeof(versions->driver));
    nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
    snprintf(versions->cuda, sizeof(versions->cuda), "%d.%d", cuda / 1000, cuda % 1000 / 10);
}
