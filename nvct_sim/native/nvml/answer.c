/* SPDX-License-Identifier: Apache-2.0
 *
 * How most functions answer: with one number of a GPU, or with an empty list.
 */

#include "simulation.h"

nvmlReturn_t read_number(nvmlDevice_t device, reader_t choose, unsigned argument, unsigned *out)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    return finish(out ? choose(t.gpu, argument, out) : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t read_constant(const struct gpu *gpu, unsigned value, unsigned *out)
{
    (void)gpu;
    *out = value;
    return NVML_SUCCESS;
}

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
