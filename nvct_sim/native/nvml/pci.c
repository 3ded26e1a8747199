/* SPDX-License-Identifier: Apache-2.0
 *
 * GPUs as PCI devices.
 */
#include <stdio.h>
#include <string.h>

#include "simulation.h"

void fill_pci_info(const struct pci_device *device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0",
             device->domain & 0xFFFF, device->bus & 0xFF, device->slot & 0xFF);
    snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", device->domain, device->bus,
             device->slot);
    pci->domain = device->domain;
    pci->bus = device->bus;
    pci->device = device->slot;
    pci->pciDeviceId = device->id;
    pci->pciSubSystemId = device->subsystem;
}

/* The struct of v1 and v2 is four bytes shorter: copy the common fields. */
void shorten_pci_info(const nvmlPciInfo_t *v3, nvmlPciInfo_v2_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    memcpy(pci, v3, offsetof(nvmlPciInfo_v2_t, reserved));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!pci)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    fill_pci_info(&t.gpu->pci, pci);
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t pci_info_before_v3(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_t v3;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &v3);
    if (result)
        return result;
    shorten_pci_info(&v3, pci);
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
    nvmlPciInfo_t v3;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!pci)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (pci->version != NVML_STRUCT(nvmlPciInfoExt_t, 1))
        return finish(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    fill_pci_info(&t.gpu->pci, &v3);
    pci->domain = v3.domain;
    pci->bus = v3.bus;
    pci->device = v3.device;
    pci->pciDeviceId = v3.pciDeviceId;
    pci->pciSubSystemId = v3.pciSubSystemId;
    pci->baseClass = t.gpu->pci.class_code >> 16;
    pci->subClass = t.gpu->pci.class_code >> 8 & 0xFF;
    memcpy(pci->busId, v3.busId, sizeof(pci->busId));
    return finish(NVML_SUCCESS);
}
