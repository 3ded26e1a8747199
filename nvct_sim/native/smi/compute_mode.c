/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi -c: how many processes may use a GPU at once. compute-policy: their time slices.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

static const char *const modes[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED",
                                    "EXCLUSIVE_PROCESS"};
enum { MODES = sizeof(modes) / sizeof(*modes) };

int set_compute_mode(const struct gpu_list *list, const char *ids, const char *mode)
{
    unsigned number = MODES;
    if (!parse_unsigned(mode, &number))
        for (unsigned i = 0; i < MODES; i++)
            number = strcmp(mode, modes[i]) == 0 ? i : number;
    if (number >= MODES) {
        printf("Invalid compute mode: %s\n", mode);
        return EXIT_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        char operation[96];
        if (gpu->status || !is_selected(gpu, ids))
            continue;
        nvmlReturn_t result = nvml.nvmlDeviceSetComputeMode(gpu->device, number);
        snprintf(operation, sizeof(operation), "Unable to set the compute mode for GPU %s",
                 gpu->bus_id);
        if (result)
            return fail(operation, result);
        printf("Set compute mode to %s for GPU %s.\n", modes[number], gpu->bus_id);
    }
    puts("All done.");
    return EXIT_DONE;
}

/* The number is checked, but has no effect, because nothing runs on a simulated GPU. */
int set_time_slice(const struct gpu_list *list, const char *ids, const char *number)
{
    unsigned slice = 0;
    if (!parse_unsigned(number, &slice) || slice > 3) {
        printf("Invalid timeslice: %s\n", number);
        return EXIT_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < list->count; i++)
        if (!list->gpus[i].status && is_selected(&list->gpus[i], ids))
            printf("Set the timeslice to %u for GPU %s.\n", slice, list->gpus[i].bus_id);
    puts("All done.");
    return EXIT_DONE;
}
