/* SPDX-License-Identifier: Apache-2.0
 *
 * Clocks, power, temperature, errors, links: what monitoring asks for. An idle GPU, with what the
 * state says where it says something. Values that a real GPU of the generation gives otherwise.
 */
#include <string.h>
#include <unistd.h>

#include "simulation.h"

nvmlReturn_t ask(nvmlDevice_t device, choose_t choose, unsigned question, unsigned *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    return finish(out ? choose(t.gpu, question, out) : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t always(const struct gpu *gpu, unsigned value, unsigned *out)
{
    (void)gpu;
    *out = value;
    return NVML_SUCCESS;
}

CONSTANT(nvmlDeviceGetComputeMode, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetPerformanceState, 0)
CONSTANT(nvmlDeviceGetPowerState, 0)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetPcieReplayCounter, 0)
CONSTANT(nvmlDeviceGetPowerSource, 0)
CONSTANT(nvmlDeviceGetBusType, 2) /* PCI Express */

/* --- links, clocks, power, temperature ---------------------------------------------------- */

nvmlReturn_t choose_generation(const struct gpu *gpu, unsigned question, unsigned *out)
{
    (void)question;
    *out = gpu->arch >= ARCH_HOPPER ? 5 : gpu->arch >= ARCH_AMPERE ? 4 : 3;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_generation, 0, out);
}

API nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_generation, 0, out);
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_generation, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_generation, 0, out); /* the numbering is by generation */
}

static nvmlReturn_t choose_throughput(const struct gpu *gpu, unsigned counter, unsigned *out)
{
    if (gpu->is_virtual)
        return NVML_ERROR_NOT_SUPPORTED;
    return counter < 2 ? always(gpu, 0, out) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *out)
{
    return ask(device, choose_throughput, counter, out);
}

/* MHz at most; clock domains graphics, SM, memory, video. */
nvmlReturn_t choose_max_clock(const struct gpu *gpu, unsigned kind, unsigned *out)
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

/* Idle: the memory at its clock, the rest at its floor. */
static nvmlReturn_t choose_clock(const struct gpu *gpu, unsigned kind, unsigned *out)
{
    nvmlReturn_t result = choose_max_clock(gpu, kind, out);
    if (!result && kind != CLOCK_MEMORY && gpu->utilization == 0)
        *out = 345;
    return result;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned kind, unsigned *out)
{
    return ask(device, choose_max_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned kind, unsigned *out)
{
    return ask(device, choose_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned kind, unsigned *out)
{
    return ask(device, choose_max_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned kind,
                                                       unsigned *out)
{
    return ask(device, choose_max_clock, kind, out);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned kind, unsigned which,
                                    unsigned *out)
{
    enum { CURRENT, CLOCK_IDS = 4 };
    if (which >= CLOCK_IDS)
        return is_initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    return ask(device, which == CURRENT ? choose_clock : choose_max_clock, kind, out);
}

/* A vGPU knows nothing of the power and the temperature of its board. */
static nvmlReturn_t choose_limit(const struct gpu *gpu, unsigned question, unsigned *out)
{
    (void)question;
    return gpu->power ? always(gpu, gpu->power, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_limit, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_limit, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_limit, 0, out);
}

static nvmlReturn_t choose_power_management(const struct gpu *gpu, unsigned on, unsigned *out)
{
    return gpu->power ? always(gpu, on, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_power_management, 1, out);
}

static nvmlReturn_t choose_power(const struct gpu *gpu, unsigned question, unsigned *out)
{
    (void)question;
    if (!gpu->power)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = gpu->power / 10 + gpu->power / 100 * gpu->utilization / 100 * 90; /* milliwatts */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_power, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least,
                                                              unsigned *most)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!least || !most)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->power)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *least = t.gpu->power / 7 * 2;
    *most = t.gpu->power;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    unsigned milliwatts;
    if (choose_power(t.gpu, 0, &milliwatts))
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *out = now_us() / 1000000 % 1000000 * milliwatts; /* millijoules; rises, and that is all */
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t choose_temperature(const struct gpu *gpu, unsigned sensor, unsigned *out)
{
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return gpu->temperature ? always(gpu, gpu->temperature, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    return ask(device, choose_temperature, sensor, out);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *io)
{
    unsigned celsius = 0;
    if (!io)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (io->version != NVML_STRUCT(nvmlTemperature_t, 1))
        return is_initialized() ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t result = ask(device, choose_temperature, io->sensorType, &celsius);
    if (!result)
        io->temperature = (int)celsius;
    return result;
}

static nvmlReturn_t choose_threshold(const struct gpu *gpu, unsigned kind, unsigned *out)
{
    static const unsigned char celsius[] = {92, 89, 95, 85}; /* shutdown, slowdown, memory, GPU */
    if (kind >= sizeof(celsius) || !gpu->temperature)
        return NVML_ERROR_NOT_SUPPORTED;
    return always(gpu, celsius[kind], out);
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind,
                                                   unsigned *out)
{
    return ask(device, choose_threshold, kind, out);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (t.gpu->mig) /* as nvml.h says: not of a GPU that is divided */
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *out = (nvmlUtilization_t){t.gpu->utilization, t.gpu->utilization / 2};
    return finish(NVML_SUCCESS);
}

/* Of an engine that GPUs have since some architecture. */
static nvmlReturn_t choose_engine(const struct gpu *gpu, unsigned since, unsigned *out)
{
    return gpu->mig || gpu->arch < since ? NVML_ERROR_NOT_SUPPORTED : always(gpu, 0, out);
}

#define ENGINE_UTILIZATION(function, since)                                                        \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *percent, unsigned *period_us)         \
    {                                                                                              \
        nvmlReturn_t result = ask(device, choose_engine, since, percent);                          \
        if (!result && period_us)                                                                  \
            *period_us = 167000;                                                                   \
        return result;                                                                             \
    }

ENGINE_UTILIZATION(nvmlDeviceGetEncoderUtilization, 0)
ENGINE_UTILIZATION(nvmlDeviceGetDecoderUtilization, 0)
ENGINE_UTILIZATION(nvmlDeviceGetJpgUtilization, ARCH_AMPERE)
ENGINE_UTILIZATION(nvmlDeviceGetOfaUtilization, ARCH_TURING)

static nvmlReturn_t event_reasons(nvmlDevice_t device, unsigned long long value,
                                  unsigned long long *out)
{
    unsigned unused;
    nvmlReturn_t result = ask(device, always, 0, &unused);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = value;
    return NVML_SUCCESS;
}

enum { REASON_IDLE = 1, REASONS = 0x1ff };

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                        unsigned long long *out)
{
    return event_reasons(device, REASON_IDLE, out);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                           unsigned long long *out)
{
    return event_reasons(device, REASON_IDLE, out);
}

API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                          unsigned long long *out)
{
    return event_reasons(device, REASONS, out);
}

API nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                             unsigned long long *out)
{
    return event_reasons(device, REASONS, out);
}

/* --- errors ------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!now || !pending)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!t.gpu->ecc_capable)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    *now = *pending = t.gpu->ecc;
    return finish(NVML_SUCCESS);
}

static nvmlReturn_t choose_default_ecc(const struct gpu *gpu, unsigned question, unsigned *out)
{
    return gpu->ecc_capable ? always(gpu, question, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_default_ecc, 1, out);
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
    *out = kind == UNCORRECTED ? t.gpu->ecc_errors : 0;
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

/* GPUs since Ampere remap rows of their memory; those before retire pages. Both need ECC. */
nvmlReturn_t choose_remapping(const struct gpu *gpu, unsigned question, unsigned *out)
{
    bool can = gpu->ecc_capable && gpu->arch >= ARCH_AMPERE;
    return can ? always(gpu, question, out) : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t choose_retiring(const struct gpu *gpu, unsigned question, unsigned *out)
{
    bool can = gpu->ecc_capable && gpu->arch < ARCH_AMPERE;
    return can ? always(gpu, question, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *out)
{
    return ask(device, choose_retiring, 0, out);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
                                           unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed)
{
    unsigned zero;
    nvmlReturn_t result = ask(device, choose_remapping, 0, &zero);
    if (result || !corrected || !uncorrected || !pending || !failed)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}

/* --- lists that are empty on an idle GPU -------------------------------------------------- */

nvmlReturn_t empty_list(nvmlDevice_t device, unsigned *count)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *count = 0;
    return finish(NVML_SUCCESS);
}

EMPTY_LIST(nvmlDeviceGetComputeRunningProcesses)
EMPTY_LIST(nvmlDeviceGetComputeRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetComputeRunningProcesses_v3)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3)

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                           unsigned long long *addresses)
{
    (void)cause;
    (void)addresses;
    return ask(device, choose_retiring, 0, count);
}

/* --- the node around the GPU -------------------------------------------------------------- */

/* No NVLink fabric is simulated: state 0, "not supported". */
API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    unsigned zero;
    nvmlReturn_t result = ask(device, always, 0, &zero);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    memset(out, 0, sizeof(*out));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    enum { V2_SIZE = offsetof(nvmlGpuFabricInfoV_t, healthSummary) };
    unsigned zero;
    nvmlReturn_t result = ask(device, always, 0, &zero);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    bool v3 = out->version == NVML_STRUCT(nvmlGpuFabricInfoV_t, 3);
    if (!v3 && out->version != (V2_SIZE | 2U << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned version = out->version;
    memset(out, 0, v3 ? sizeof(*out) : V2_SIZE);
    out->version = version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlVersioned32_t *mode)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!mode)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (mode->version != NVML_STRUCT(nvmlVersioned32_t, 1))
        return finish(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    mode->value = t.gpu->addressing; /* 0: none, 1: HMM, 2: ATS */
    return finish(NVML_SUCCESS);
}

/* Turing is the first that has the processor for it. */
static nvmlReturn_t choose_gsp(const struct gpu *gpu, unsigned question, unsigned *out)
{
    return gpu->arch >= ARCH_TURING ? always(gpu, question, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled,
                                              unsigned *by_default)
{
    nvmlReturn_t result = ask(device, choose_gsp, 1, enabled);
    return result ? result : ask(device, choose_gsp, 1, by_default);
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    struct target t; /* the caller's buffer has 64 bytes */
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (t.gpu->arch < ARCH_TURING)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    return finish(copy_text(t.state->driver, version, 64));
}
