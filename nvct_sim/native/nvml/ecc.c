/* SPDX-License-Identifier: Apache-2.0
 *
 * ECC errors of the memory, remapped rows and retired pages.
 */

#include "simulation.h"

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!current || !pending)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->ecc_capable)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *current = t.gpu->ecc;
    *pending = (unsigned)metric_or(t.gpu, ECC_NEXT, t.gpu->ecc);
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t read_default_ecc(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    return gpu->ecc_capable ? read_constant(gpu, argument, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_default_ecc, 1, out);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter,
                                             unsigned long long *out)
{
    enum { CORRECTED, UNCORRECTED, KINDS, COUNTERS = 2 };
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out || kind >= KINDS || counter >= COUNTERS)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->ecc_capable || !t.gpu->ecc)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *out = metric_or(t.gpu, ECC_CORRECTED + kind + 2 * counter,
                     kind == UNCORRECTED ? t.gpu->ecc_errors : 0);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned kind,
                                                unsigned counter, nvmlEccErrorCounts_t *out)
{
    unsigned long long total;
    nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(device, kind, counter, &total);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlEccErrorCounts_t){.deviceMemory = total};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned kind,
                                                 unsigned counter, unsigned location,
                                                 unsigned long long *out)
{
    enum { DRAM = 2, LOCATIONS = 8 };
    nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(device, kind, counter, out);
    if (!result && location >= LOCATIONS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!result && location != DRAM)
        *out = 0;
    return result;
}

/* GPUs since Ampere remap rows of their memory; older GPUs retire pages. Both need ECC. */
nvmlReturn_t read_remapping(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    bool supported = gpu->ecc_capable && gpu->arch >= ARCH_AMPERE;
    return supported ? read_constant(gpu, argument, out) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t read_retiring(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    bool supported = gpu->ecc_capable && gpu->arch < ARCH_AMPERE;
    return supported ? read_constant(gpu, argument, out) : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t read_retiring_pending(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return read_retiring(gpu, (unsigned)metric_or(gpu, RETIRED_PENDING, 0), out);
}

/* The number of pages by cause, where 1 is a double bit error; their addresses are invented. */
static nvmlReturn_t read_retired(const struct gpu *gpu, unsigned cause, unsigned *out)
{
    return read_retiring(gpu, (unsigned)metric_or(gpu, cause ? RETIRED_DBE : RETIRED_SBE, 0), out);
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_retiring_pending, 0, out);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
                                           unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!corrected || !uncorrected || !pending || !failed)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    result = read_remapping(t.gpu, (unsigned)metric_or(t.gpu, ROWS_CORRECTED, 0), corrected);
    if (result)
        return finish(result);
    *uncorrected = (unsigned)metric_or(t.gpu, ROWS_UNCORRECTED, 0);
    *pending = metric_or(t.gpu, REMAP_PENDING, 0) != 0;
    *failed = metric_or(t.gpu, REMAP_FAILED, 0) != 0;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                           unsigned long long *addresses)
{
    unsigned size = count && addresses ? *count : 0;
    nvmlReturn_t result = read_number(device, read_retired, cause, count);
    if (result || !*count)
        return result;
    if (!addresses || size < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        addresses[i] = 0x1000ULL * (i + 1);
    return NVML_SUCCESS;
}
