/* SPDX-License-Identifier: Apache-2.0
 *
 * More values that monitoring reads, as of an idle GPU: sessions, accounting, fans, supported
 * clocks, fields of nvmlDeviceGetFieldValues.
 */
#include <string.h>

#include "simulation.h"

EMPTY_LIST(nvmlDeviceGetAccountingPids)
EMPTY_LIST(nvmlDeviceGetEncoderSessions)
EMPTY_LIST(nvmlDeviceGetFBCSessions)
CONSTANT(nvmlDeviceGetAccountingMode, 0)
CONSTANT(nvmlDeviceGetAccountingBufferSize, 4000)

static nvmlReturn_t read_optional(const struct gpu *gpu, unsigned value, unsigned *out)
{
    return value ? read_constant(gpu, value, out) : NVML_ERROR_NOT_SUPPORTED;
}

#define OPTIONAL_NUMBER(function, field)                                                           \
    static nvmlReturn_t read_##field(const struct gpu *gpu, unsigned argument, unsigned *out)      \
    {                                                                                              \
        (void)argument;                                                                            \
        return read_optional(gpu, gpu->field, out);                                                \
    }                                                                                              \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *out)                                  \
    {                                                                                              \
        return read_number(device, read_##field, 0, out);                                          \
    }

OPTIONAL_NUMBER(nvmlDeviceGetNumGpuCores, cores)
OPTIONAL_NUMBER(nvmlDeviceGetMemoryBusWidth, bus_width)

/* Boards for servers have no fans of their own. */
static nvmlReturn_t read_fan(const struct gpu *gpu, unsigned number, unsigned *out)
{
    if (!gpu->fan)
        return NVML_ERROR_NOT_SUPPORTED;
    return number == 0 ? read_constant(gpu, gpu->fan, out) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_fan, 0, out);
}

API nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned number, unsigned *out)
{
    return read_number(device, read_fan, number, out);
}

static nvmlReturn_t read_fan_count(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return read_optional(gpu, gpu->fan != 0, out);
}

API nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_fan_count, 0, out);
}

static nvmlReturn_t read_virtualization(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    enum { NONE = 0, VGPU = 2 };
    (void)argument;
    return read_constant(gpu, gpu->is_virtual ? VGPU : NONE, out);
}

API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_virtualization, 0, out);
}

/* The same number as in the node's /proc and /sys (nvct.sim.kernelfs). */
static nvmlReturn_t read_irq(const struct gpu *gpu, unsigned first, unsigned *out)
{
    return read_constant(gpu, first + gpu->minor, out);
}

API nvmlReturn_t nvmlDeviceGetIrqNum(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_irq, 200, out);
}

static nvmlReturn_t read_speed(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    /* Mbit per second and lane. */
    static const unsigned megabits[] = {0, 2500, 5000, 8000, 16000, 32000};
    unsigned generation;
    read_generation(gpu, argument, &generation);
    return read_constant(gpu, megabits[generation], out);
}

API nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_speed, 0, out);
}

API nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned kind,
                                                    unsigned *out)
{
    return read_number(device, read_max_clock, kind, out);
}

/* --- application clocks: one of the memory, for graphics one every 15 MHz ----------------- */

static nvmlReturn_t read_selectable_clock(const struct gpu *gpu, unsigned kind, unsigned *out)
{
    bool supported = gpu->brand != BRAND_GEFORCE && !gpu->is_virtual;
    return supported ? read_max_clock(gpu, kind, out) : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t list_clocks(unsigned highest, unsigned lowest, unsigned *count,
                                unsigned *clocks)
{
    enum { STEP = 15 };
    unsigned size = *count;
    *count = (highest - lowest) / STEP + 1;
    if (size < *count || !clocks)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        clocks[i] = highest - i * STEP;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count,
                                                    unsigned *clocks)
{
    unsigned clock;
    nvmlReturn_t result = read_number(device, read_selectable_clock, CLOCK_MEMORY, &clock);
    if (result || !count)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    return list_clocks(clock, clock, count, clocks);
}

API nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory,
                                                      unsigned *count, unsigned *clocks)
{
    enum { LOWEST = 210 };
    unsigned clock, memory_clock;
    nvmlReturn_t result = read_number(device, read_selectable_clock, CLOCK_MEMORY, &memory_clock);
    if (!result)
        result = read_number(device, read_selectable_clock, CLOCK_GRAPHICS, &clock);
    if (result || !count)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (memory != memory_clock)
        return NVML_ERROR_NOT_FOUND;
    return list_clocks(clock, LOWEST, count, clocks);
}

/* --- sessions, processes, violations of limits -------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *fps,
                                           unsigned *latency)
{
    nvmlReturn_t result = read_number(device, read_constant, 0, sessions);
    if (result || !fps || !latency)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *fps = *latency = 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats)
{
    unsigned zero;
    nvmlReturn_t result = read_number(device, read_constant, 0, &zero);
    if (result || !stats)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *stats = (nvmlFBCStats_t){0};
    return NVML_SUCCESS;
}

/* As the real driver on a GPU without processes: there is no sample. */
static nvmlReturn_t read_samples(const struct gpu *gpu, unsigned zero, unsigned *out)
{
    *out = zero;
    return gpu->mig ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples,
                                                 unsigned *count, unsigned long long since)
{
    (void)samples;
    (void)since;
    return read_number(device, read_samples, 0, count);
}

API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy,
                                              nvmlViolationTime_t *time)
{
    enum { POLICIES = 12 };
    unsigned zero;
    nvmlReturn_t result = read_number(device, read_constant, 0, &zero);
    if (result || !time || policy >= POLICIES)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *time = (nvmlViolationTime_t){now_us(), 0};
    return NVML_SUCCESS;
}

static nvmlReturn_t read_banks(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    return read_remapping(gpu, gpu->arch >= ARCH_HOPPER ? 4 * argument : argument, out);
}

API nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device,
                                                   nvmlRowRemapperHistogramValues_t *banks)
{
    unsigned count;
    nvmlReturn_t result = read_number(device, read_banks, 640, &count);
    if (result || !banks)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *banks = (nvmlRowRemapperHistogramValues_t){.max = count};
    return NVML_SUCCESS;
}

/* No GPU performance metrics are simulated. */
API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlVersioned32_t *support)
{
    unsigned unsupported;
    nvmlReturn_t result = read_number(device, read_constant, 0, &unsupported);
    if (result || !support)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->value = unsupported;
    return NVML_SUCCESS;
}

/* --- S-class systems (units) -------------------------------------------------------------- */

static nvmlReturn_t count_nothing(unsigned *count)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlUnitGetCount(unsigned *count)
{
    return count_nothing(count);
}

API nvmlReturn_t nvmlSystemGetHicVersion(unsigned *count, void *entries)
{
    (void)entries;
    return count_nothing(count);
}

/* --- single values ------------------------------------------------------------------------ */

enum field {
    ECC_CURRENT = 1, ECC_PENDING, CORRECTED, UNCORRECTED, CORRECTED_AGGREGATE,
    UNCORRECTED_AGGREGATE, ENERGY = 83, NVLINKS = 91, REPLAYS = 94, REMAPPED_CORRECTED = 142,
    REMAPPED_UNCORRECTED,
    REMAPPING_PENDING, REMAPPING_FAILED, POWER_AVERAGE = 185, POWER_NOW, POWER_MIN, POWER_MAX,
    POWER_DEFAULT, POWER_LIMIT,
};

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter,
                                             unsigned long long *out);
API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out);
API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
                                           unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed);
API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out);
API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out);
API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *min,
                                                              unsigned *max);

static nvmlReturn_t read_links(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return read_constant(gpu, gpu->n_links, out);
}

/* A field of 32 bits. */
static nvmlReturn_t read_field32(nvmlDevice_t device, unsigned field, unsigned *out)
{
    unsigned ignored[3];
    switch (field) {
    case ECC_CURRENT:
        return nvmlDeviceGetEccMode(device, out, ignored);
    case ECC_PENDING:
        return nvmlDeviceGetEccMode(device, ignored, out);
    case NVLINKS:
        return read_number(device, read_links, 0, out);
    case REPLAYS:
        return read_number(device, read_constant, 0, out);
    case REMAPPED_CORRECTED:
    case REMAPPED_UNCORRECTED:
    case REMAPPING_PENDING:
    case REMAPPING_FAILED: /* all four are 0 */
        return nvmlDeviceGetRemappedRows(device, out, &ignored[0], &ignored[1], &ignored[2]);
    case POWER_AVERAGE:
    case POWER_NOW:
        return nvmlDeviceGetPowerUsage(device, out);
    case POWER_MIN:
        return nvmlDeviceGetPowerManagementLimitConstraints(device, out, ignored);
    case POWER_MAX:
        return nvmlDeviceGetPowerManagementLimitConstraints(device, ignored, out);
    case POWER_DEFAULT:
    case POWER_LIMIT:
        return nvmlDeviceGetPowerManagementLimit(device, out);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t read_field(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    unsigned number = 0, id = field->fieldId;
    nvmlReturn_t result;
    field->value = 0;
    field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
    if (id >= CORRECTED && id <= UNCORRECTED_AGGREGATE)
        return nvmlDeviceGetTotalEccErrors(device, (id - CORRECTED) % 2, (id - CORRECTED) / 2,
                                           &field->value);
    if (id == ENERGY)
        return nvmlDeviceGetTotalEnergyConsumption(device, &field->value);
    field->valueType = NVML_VALUE_UNSIGNED_INT;
    result = read_field32(device, id, &number);
    field->value = result ? 0 : number;
    return result;
}

/* The call succeeds; each field has its own result. */
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    finish(NVML_SUCCESS);
    if (count <= 0 || !values)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = read_field(device, &values[i]);
    }
    return NVML_SUCCESS;
}
