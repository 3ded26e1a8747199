/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi -r: reset GPUs, one after the other until one fails.
 */
#include <stdio.h>

#include "smi.h"

int reset_gpus(const struct gpu_list *list, const char *ids)
{
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        if (!is_selected(gpu, ids))
            continue;
        if (gpu->status)
            return report_unavailable(gpu);
        nvmlReturn_t result = nvml.nvctDeviceReset(gpu->device);
        if (result == NVML_ERROR_IN_USE)
            puts("The following GPUs could not be reset:");
        if (result) {
            char operation[64];
            snprintf(operation, sizeof(operation), "  GPU %s", gpu->bus_id);
            return fail(operation, result);
        }
        printf("GPU %s was successfully reset.\n", gpu->bus_id);
    }
    puts("All done.");
    return EXIT_DONE;
}
