/* SPDX-License-Identifier: Apache-2.0
 *
 * Event sets. Events are records of the state with rising sequence numbers; a set delivers those
 * that come after its registration, once each. Waiting looks at the state every few milliseconds:
 * no process has to serve it.
 */
#include <stdlib.h>
#include <time.h>

#include "simulation.h"

enum {
    POLL_MS = 10,
    EVENT_XID = 0x8,
    SUPPORTED_EVENTS = 0x1 | 0x2 | 0x8 | 0x10 | 0x100, /* ECC, XID, clock, MIG configuration */
    EVENTS_KNOWN = 0xFF9F,
};

struct event_set {
    unsigned long long types[MAX_GPUS]; /* by the GPU's place in the state */
    unsigned gpus[MAX_GPUS];
    unsigned n;
    unsigned long long seen; /* sequence number */
    struct event_set *next;
};

static struct event_set *sets; /* under the lock, as all state is */

static bool is_live(const struct event_set *set)
{
    const struct event_set *s = sets;
    while (s && s != set)
        s = s->next;
    return s != NULL;
}

static unsigned long long last_seq(const struct snapshot *s)
{
    unsigned long long last = 0;
    for (unsigned i = 0; i < s->n_events; i++)
        if (s->events[i].seq > last)
            last = s->events[i].seq;
    return last;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    struct event_set *set = calloc(1, sizeof(*set));
    if (!set)
        return finish(NVML_ERROR_MEMORY);
    set->seen = last_seq(s);
    set->next = sets;
    sets = *out = set;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    for (struct event_set **at = &sets; *at; at = &(*at)->next)
        if (*at == set) {
            *at = set->next;
            free(set);
            return finish(NVML_SUCCESS);
        }
    return finish(NVML_ERROR_INVALID_ARGUMENT);
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!types)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *types = SUPPORTED_EVENTS;
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                          nvmlEventSet_t set)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!is_live(set) || types & ~(unsigned long long)EVENTS_KNOWN)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (types & ~(unsigned long long)SUPPORTED_EVENTS)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    unsigned i = 0;
    while (i < set->n && set->gpus[i] != t.gpu->index)
        i++;
    if (i == MAX_GPUS)
        return finish(NVML_ERROR_MEMORY);
    if (i == set->n)
        set->n++;
    set->gpus[i] = t.gpu->index;
    set->types[i] |= types;
    return finish(NVML_SUCCESS);
}

/* The oldest event that the set waits for, or NULL. What it does not wait for is passed over. */
static const struct event *next_event(const struct snapshot *s, const struct event_set *set)
{
    const struct event *found = NULL;
    for (unsigned i = 0; i < s->n_events; i++) {
        const struct event *event = &s->events[i];
        if (event->seq <= set->seen || (found && event->seq > found->seq))
            continue;
        for (unsigned j = 0; j < set->n; j++)
            if (set->gpus[j] == event->gpu && set->types[j] & event->type)
                found = event;
    }
    return found;
}

/* NVML_ERROR_TIMEOUT: nothing yet. */
static nvmlReturn_t poll_set(nvmlEventSet_t set, nvmlEventData_t *data, bool with_instance)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!data || !is_live(set))
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    const struct event *event = next_event(s, set);
    if (!event)
        return finish(NVML_ERROR_TIMEOUT);
    set->seen = event->seq;
    data->eventType = event->type;
    data->eventData = event->type == EVENT_XID ? event->data : 0;
    if (with_instance) { /* the struct of v1 ends before */
        data->gpuInstanceId = event->gi;
        data->computeInstanceId = event->ci;
    }
    return finish(set_handle(&data->device, GPU_HANDLE, event->gpu, 0, 0));
}

static nvmlReturn_t wait_for(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms,
                             bool with_instance)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (;;) {
        nvmlReturn_t result = poll_set(set, data, with_instance);
        if (result != NVML_ERROR_TIMEOUT)
            return result;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long passed = ((long long)(now.tv_sec - start.tv_sec) * 1000000000LL +
                            (now.tv_nsec - start.tv_nsec)) / 1000000;
        if (passed >= timeout_ms)
            return NVML_ERROR_TIMEOUT;
        long long left = timeout_ms - passed;
        wait_ms(left < POLL_MS ? (unsigned)left : POLL_MS);
    }
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return wait_for(set, data, timeout_ms, true);
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return wait_for(set, data, timeout_ms, false);
}
