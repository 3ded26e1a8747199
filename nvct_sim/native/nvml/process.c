/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that use a GPU or a MIG device, their memory and their share of its time.
 */
#include "simulation.h"

/* Whether a process uses the device of a handle. */
static bool is_on(const struct process *process, const struct target *t)
{
    if (process->gpu != t->gpu->index)
        return false;
    return !t->gi || (process->gi == t->gi->id && (process->ci == t->ci->id || process->ci == NO_ID));
}

/* Fill items of one of the two layouts; like NVML, return the count if the array is too small. */
static nvmlReturn_t list_processes(nvmlDevice_t device, bool graphics, bool with_instance,
                                   unsigned *count, void *items)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    unsigned size = items ? *count : 0, n = 0;
    nvmlProcessInfo_v1_t *old = items;
    nvmlProcessInfo_t *new = items;
    for (unsigned i = 0; i < t.state->n_processes; i++) {
        const struct process *process = &t.state->processes[i];
        if (!is_on(process, &t) || process->graphics != graphics)
            continue;
        if (n < size && with_instance)
            new[n] = (nvmlProcessInfo_t){process->pid, process->memory, process->gi, process->ci};
        else if (n < size)
            old[n] = (nvmlProcessInfo_v1_t){process->pid, process->memory};
        n++;
    }
    *count = n;
    return finish(n > size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

#define PROCESSES(function, graphics, with_instance)                                               \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *count, void *items)                   \
    {                                                                                              \
        return list_processes(device, graphics, with_instance, count, items);                      \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, false, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, false, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, false, true)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, true, false)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, true, true)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, true, true)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* Like the real driver: "not found" without a sample since that time; not supported in MIG mode. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                 nvmlProcessUtilizationSample_t *samples,
                                                 unsigned *count, unsigned long long since)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (t.gpu->mig)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    unsigned size = samples ? *count : 0, n = 0;
    unsigned long long now = now_us();
    for (unsigned i = 0; i < t.state->n_processes && since < now; i++) {
        const struct process *process = &t.state->processes[i];
        if (!is_on(process, &t))
            continue;
        if (n < size)
            samples[n] = (nvmlProcessUtilizationSample_t){
                process->pid, now, process->sm, process->memory_utilization, 0, 0};
        n++;
    }
    *count = n;
    if (!n)
        return finish(NVML_ERROR_NOT_FOUND);
    return finish(n > size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}
