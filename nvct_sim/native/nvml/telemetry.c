/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that monitoring reads: links, utilization, fabric, firmware. They come from the state, or
 * else are those of an idle GPU of the generation.
 */
#include <string.h>
#include <unistd.h>

#include "simulation.h"

CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetPerformanceState, 0)
CONSTANT(nvmlDeviceGetPowerState, 0)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetPowerSource, 0)
CONSTANT(nvmlDeviceGetBusType, 2) /* PCI Express */

/* --- links, clocks, power, temperature ---------------------------------------------------- */

nvmlReturn_t read_generation(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    *out = gpu->arch >= ARCH_HOPPER ? 5 : gpu->arch >= ARCH_AMPERE ? 4 : 3;
    return NVML_SUCCESS;
}

/* The highest generation that both slot and GPU support. */
static nvmlReturn_t read_slot(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    unsigned of_gpu, of_slot;
    read_generation(gpu, argument, &of_gpu);
    of_slot = (unsigned)metric_or(gpu, PCIE_GENERATION, of_gpu);
    *out = of_slot < of_gpu ? of_slot : of_gpu;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_width(const struct gpu *gpu, unsigned otherwise, unsigned *out)
{
    return read_constant(gpu, (unsigned)metric_or(gpu, PCIE_WIDTH, otherwise), out);
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_width, 16, out);
}

API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_slot, 0, out);
}

API nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_generation, 0, out);
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_slot, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *out)
{
    /* NVML numbers the speeds by generation. */
    return read_number(device, read_generation, 0, out);
}

static nvmlReturn_t read_throughput(const struct gpu *gpu, unsigned counter, unsigned *out)
{
    if (gpu->is_virtual)
        return NVML_ERROR_NOT_SUPPORTED;
    if (counter >= 2) /* TX and RX */
        return NVML_ERROR_INVALID_ARGUMENT;
    return read_constant(gpu, (unsigned)metric_or(gpu, PCIE_TX + counter, 0), out);
}

static nvmlReturn_t read_replays(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    (void)argument;
    return read_constant(gpu, (unsigned)metric_or(gpu, PCIE_REPLAYS, 0), out);
}

API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_replays, 0, out);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *out)
{
    return read_number(device, read_throughput, counter, out);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (t.gpu->mig) /* nvml.h: not supported in MIG mode */
        return finish(NVML_ERROR_NOT_SUPPORTED);
    unsigned memory = (unsigned)metric_or(t.gpu, MEMORY_UTILIZATION, t.gpu->utilization / 2);
    *out = (nvmlUtilization_t){t.gpu->utilization, memory};
    return finish(NVML_SUCCESS);
}

enum engine { ENCODER, DECODER, JPEG, OFA };

/* The utilization of an engine, and the architecture since which GPUs have it. */
static nvmlReturn_t read_engine(const struct gpu *gpu, unsigned engine, unsigned *out)
{
    static const unsigned since[] = {0, 0, ARCH_AMPERE, ARCH_TURING};
    if (gpu->mig || gpu->arch < since[engine])
        return NVML_ERROR_NOT_SUPPORTED;
    *out = engine <= DECODER ? (unsigned)metric_or(gpu, ENCODER_UTILIZATION + engine, 0) : 0;
    return NVML_SUCCESS;
}

#define ENGINE_UTILIZATION(function, engine)                                                       \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *percent, unsigned *period_us)         \
    {                                                                                              \
        nvmlReturn_t result = read_number(device, read_engine, engine, percent);                   \
        if (!result && period_us)                                                                  \
            *period_us = 167000;                                                                   \
        return result;                                                                             \
    }

ENGINE_UTILIZATION(nvmlDeviceGetEncoderUtilization, ENCODER)
ENGINE_UTILIZATION(nvmlDeviceGetDecoderUtilization, DECODER)
ENGINE_UTILIZATION(nvmlDeviceGetJpgUtilization, JPEG)
ENGINE_UTILIZATION(nvmlDeviceGetOfaUtilization, OFA)

/* --- fabric and firmware ------------------------------------------------------------------ */

/* No NVLink fabric is simulated: state 0, "not supported". */
API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    unsigned zero;
    nvmlReturn_t result = read_number(device, read_constant, 0, &zero);
    if (result || !out)
        return result ? result : NVML_ERROR_INVALID_ARGUMENT;
    memset(out, 0, sizeof(*out));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    enum { V2_SIZE = offsetof(nvmlGpuFabricInfoV_t, healthSummary) };
    unsigned zero;
    nvmlReturn_t result = read_number(device, read_constant, 0, &zero);
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

/* GPUs have a GSP since Turing. */
static nvmlReturn_t read_gsp(const struct gpu *gpu, unsigned argument, unsigned *out)
{
    return gpu->arch >= ARCH_TURING ? read_constant(gpu, argument, out) : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled,
                                              unsigned *default_mode)
{
    nvmlReturn_t result = read_number(device, read_gsp, 1, enabled);
    return result ? result : read_number(device, read_gsp, 1, default_mode);
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
