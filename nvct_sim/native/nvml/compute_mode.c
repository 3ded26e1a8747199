/* SPDX-License-Identifier: Apache-2.0
 *
 * The compute mode: how many processes may use a GPU at once.
 */
#include <stdio.h>

#include "simulation.h"

enum { COMPUTE_MODE_EXCLUSIVE_THREAD = 1, COMPUTE_MODES = 4 };

struct mode_change {
    unsigned gpu, mode;
};

static nvmlReturn_t read_mode(const struct gpu *gpu, unsigned otherwise, unsigned *out)
{
    return read_constant(gpu, (unsigned)metric_or(gpu, COMPUTE_MODE, otherwise), out);
}

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *out)
{
    return read_number(device, read_mode, 0, out);
}

static nvmlReturn_t edit_mode(struct snapshot *s, struct text *text, void *arg)
{
    const struct mode_change *change = arg;
    struct match gpu = {"gpu", {{"index", change->gpu}}};
    char value[16];
    (void)s;
    snprintf(value, sizeof(value), "%u", change->mode);
    return text_set(text, &gpu, "compute_mode", value);
}

API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (mode >= COMPUTE_MODES || mode == COMPUTE_MODE_EXCLUSIVE_THREAD) /* gone since CUDA 8 */
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    struct mode_change change = {.gpu = t.gpu->index, .mode = mode};
    return finish(metric_or(t.gpu, COMPUTE_MODE, 0) == mode ? NVML_SUCCESS
                                                            : state_edit(edit_mode, &change));
}
