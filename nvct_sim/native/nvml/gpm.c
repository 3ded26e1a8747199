/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU performance metrics (GPM), which GPUs have since Hopper. NVML computes them between two
 * samples; here they come from the state at the second one. A MIG instance has its GPU's metrics.
 */
#include <stdlib.h>

#include "simulation.h"

struct gpm_sample {
    unsigned gpu;
    bool taken;
};

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlVersioned32_t *support)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!support)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (support->version != 1)
        return finish(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    support->value = t.gpu->arch != UINT_MAX && t.gpu->arch >= ARCH_HOPPER && !t.gpu->is_virtual;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **out)
{
    if (!is_initialized() || !out)
        return is_initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    *out = calloc(1, sizeof(**out));
    return *out ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

API nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample)
{
    if (!is_initialized() || !sample)
        return is_initialized() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t take_sample(nvmlDevice_t device, unsigned gi, bool of_instance,
                                struct gpm_sample *sample)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!sample)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (t.gpu->arch == UINT_MAX || t.gpu->arch < ARCH_HOPPER || t.gpu->is_virtual)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    if (of_instance && !find_gpu_instance(t.state, t.gpu->index, gi))
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *sample = (struct gpm_sample){t.gpu->index, true};
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample)
{
    return take_sample(device, 0, false, sample);
}

API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned gi, struct gpm_sample *sample)
{
    return take_sample(device, gi, true, sample);
}

static nvmlReturn_t read_gpm(const struct gpu *gpu, unsigned id, double *out)
{
    enum { GRAPHICS = 1, SM, OCCUPANCY, TENSOR = 5, HMMA = 7, DRAM = 10, FP64, FP32, FP16,
           TX = 20, RX, LINKS_RX = 60, LINKS_TX };
    if (id == LINKS_RX || id == LINKS_TX) { /* also without links, as a lone H200 */
        *out = 0;
        return NVML_SUCCESS;
    }
    const struct {
        unsigned id;
        enum metric metric;
        double unit;
    } table[] = {
        {GRAPHICS, GR_ACTIVE, 1}, {SM, SM_ACTIVE, 1}, {OCCUPANCY, SM_OCCUPANCY, 1},
        {TENSOR, TENSOR_ACTIVE, 1}, {HMMA, TENSOR_ACTIVE, 1}, {DRAM, DRAM_ACTIVE, 1},
        {FP64, FP64_ACTIVE, 1}, {FP32, FP32_ACTIVE, 1}, {FP16, FP16_ACTIVE, 1},
        {TX, PCIE_TX, 1024}, {RX, PCIE_RX, 1024}, /* MiB/s of KiB/s */
    };
    unsigned otherwise = id == GRAPHICS || id == SM ? gpu->utilization : 0;
    for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].id == id) {
            *out = (double)metric_or(gpu, table[i].metric, otherwise) / table[i].unit;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!get || get->numMetrics > NVML_GPM_METRIC_MAX || !get->sample1 || !get->sample2 ||
        !get->sample1->taken || !get->sample2->taken || get->sample1->gpu != get->sample2->gpu)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (get->version != 1)
        return finish(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    const struct gpu *gpu = find_gpu(s, get->sample1->gpu);
    if (!gpu || gpu->lost)
        return finish(NVML_ERROR_GPU_IS_LOST);
    for (unsigned i = 0; i < get->numMetrics; i++)
        get->metrics[i].nvmlReturn = read_gpm(gpu, get->metrics[i].metricId, &get->metrics[i].value);
    return finish(NVML_SUCCESS);
}
