/* SPDX-License-Identifier: Apache-2.0
 *
 * Resets a GPU, for the simulated nvidia-smi; NVML has no function for that. A reset changes the same
 * fields as in nvct_sim/node_changes.py.
 */
#include <stdio.h>

#include "simulation.h"

static const char *const ended[] = {"ecc_corrected", "ecc_uncorrected", "remap_pending",
                                    "retired_pending", "recovery", "hang", "energy"};

static nvmlReturn_t edit_reset(struct snapshot *s, struct text *text, void *arg)
{
    unsigned index = *(const unsigned *)arg;
    struct match match = {"gpu", {{"index", index}}};
    const struct gpu *gpu = find_gpu(s, index);
    char now[24];
    unsigned long long ecc;
    nvmlReturn_t result = gpu ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; i < s->n_processes && !result; i++)
        if (s->processes[i].gpu == index)
            result = NVML_ERROR_IN_USE;
    for (size_t i = 0; i < sizeof(ended) / sizeof(*ended) && !result; i++)
        result = text_set(text, &match, ended[i], "0");
    snprintf(now, sizeof(now), "%llu", now_us());
    if (!result)
        result = text_set(text, &match, "energy_at", now);
    if (!result && find_metric(gpu, ECC_NEXT, &ecc))
        result = text_set(text, &match, "ecc", ecc ? "1" : "0");
    if (result || gpu->mig == gpu->mig_pending)
        return result;
    result = text_set(text, &match, "migflip", "0");
    return result ? result : text_set(text, &match, "mig", gpu->mig_pending ? "1" : "0");
}

API nvmlReturn_t nvctDeviceReset(nvmlDevice_t device)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    return result ? result : finish(state_edit(edit_reset, &t.gpu->index));
}
