/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks, and the reasons that limit them.
 */

#include "simulation.h"

/* The highest clock in MHz of a domain: graphics, SM, memory, video. */
nvmlReturn_t read_max_clock(const struct gpu *gpu, unsigned kind, unsigned *out)
{
    static const struct {
        unsigned arch, mhz[CLOCK_KINDS];
    } table[] = {
        {ARCH_HOPPER, {1980, 1980, 2619, 1545}},
        {ARCH_ADA, {2520, 2520, 9001, 1965}},
        {ARCH_AMPERE, {1410, 1410, 1593, 1290}},
        {ARCH_TURING, {1590, 1590, 5001, 1470}},
        {ARCH_VOLTA, {1530, 1530, 877, 1372}},
        {0, {1911, 1911, 5505, 1620}},
    };
    if (kind >= CLOCK_KINDS)
        return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned n = sizeof(table) / sizeof(table[0]);
    unsigned i = 0;
    while (i < n - 1 && (gpu->arch == UINT_MAX || gpu->arch < table[i].arch))
        i++;
    *out = table[i].mhz[kind];
    return NVML_SUCCESS;
}

/* On an idle GPU the memory runs at its highest clock, all other domains at their lowest. */
static nvmlReturn_t read_clock(const struct gpu *gpu, unsigned kind, unsigned *out)
{
    unsigned long long mhz;
    nvmlReturn_t result = read_max_clock(gpu, kind, out);
    bool is_sm = kind == CLOCK_SM || kind == CLOCK_GRAPHICS;
    if ((is_sm && find_metric(gpu, SM_CLOCK, &mhz)) ||
        (kind == CLOCK_MEMORY && find_metric(gpu, MEMORY_CLOCK, &mhz)))
        *out = (unsigned)mhz;
    else if (!result && kind != CLOCK_MEMORY && gpu->utilization == 0)
        *out = 345;
    return result;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned kind, unsigned *out)
{
    return read_number(device, read_max_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned kind, unsigned *out)
{
    return read_number(device, read_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned kind, unsigned *out)
{
    return read_number(device, read_max_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned kind,
                                                       unsigned *out)
{
    return read_number(device, read_max_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned kind, unsigned which,
                                    unsigned *out)
{
    enum { CURRENT, CLOCK_IDS = 4 };
    if (which >= CLOCK_IDS)
        return is_initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    return read_number(device, which == CURRENT ? read_clock : read_max_clock, kind, out);
}

enum { REASON_IDLE = 1, REASONS = 0x1ff };

static nvmlReturn_t read_reasons(const struct gpu *gpu, unsigned all, unsigned *out)
{
    unsigned otherwise = gpu->utilization ? 0 : REASON_IDLE;
    return read_constant(gpu, all ? all : (unsigned)metric_or(gpu, THROTTLE, otherwise), out);
}

#define EVENT_REASONS(function, all)                                                               \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned long long *out)                        \
    {                                                                                              \
        unsigned bits;                                                                             \
        nvmlReturn_t result = read_number(device, read_reasons, all, &bits);                       \
        if (result || !out)                                                                        \
            return result ? result : NVML_ERROR_INVALID_ARGUMENT;                                  \
        *out = bits;                                                                               \
        return NVML_SUCCESS;                                                                       \
    }

EVENT_REASONS(nvmlDeviceGetCurrentClocksEventReasons, 0)
EVENT_REASONS(nvmlDeviceGetCurrentClocksThrottleReasons, 0)
EVENT_REASONS(nvmlDeviceGetSupportedClocksEventReasons, REASONS)
EVENT_REASONS(nvmlDeviceGetSupportedClocksThrottleReasons, REASONS)
