/* SPDX-License-Identifier: Apache-2.0
 *
 * More values that monitoring reads, those of an idle GPU: sessions, accounting, fans, supported
 * clocks.
 */
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

/* The same number as in the node's /proc and /sys (nvct_sim.kernelfs). */
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

/* --- application clocks: one for the memory, one every 15 MHz for graphics ---------------- */

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

/* --- sessions, violations of limits ----------- -------------------------------------------- */

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

API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy,
                                              nvmlViolationTime_t *time)
{
    enum { POWER, THERMAL, POLICIES = 12 };
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!time || policy >= POLICIES)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    bool has_metric = policy == POWER || policy == THERMAL;
    *time = (nvmlViolationTime_t){
        now_us(), has_metric ? metric_or(t.gpu, VIOLATION_POWER + policy, 0) : 0};
    return finish(NVML_SUCCESS);
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
