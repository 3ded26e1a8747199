/* SPDX-License-Identifier: Apache-2.0
 *
 * Event sets. Events are records of the state with rising sequence numbers. A set delivers each
 * event after its registration once. A wait sleeps until the state changes, or, in a container that
 * does not see the node's tree, reads the state every few milliseconds. No process has to send the
 * events.
 */
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "simulation.h"

enum {
    POLL_MS = 10,
    WATCH_MS = 1000, /* longest time between two reads of the state, even without a sign of a change */
    EVENT_XID = 0x8,
    SUPPORTED_EVENTS = 0x1 | 0x2 | 0x8 | 0x10 | 0x100, /* ECC, XID, clock, MIG configuration */
    ALL_EVENTS = 0xFF9F,
};

struct event_set {
    unsigned long long types[MAX_GPUS]; /* in the order of `gpus` */
    unsigned gpus[MAX_GPUS];
    unsigned n;
    unsigned long long last_seq; /* of the delivered or skipped events */
    struct event_set *next;
};

static struct event_set *sets; /* protected by the lock, like all state */

static bool is_live(const struct event_set *set)
{
    const struct event_set *s = sets;
    while (s && s != set)
        s = s->next;
    return s != NULL;
}

static unsigned long long newest_seq(const struct snapshot *s)
{
    unsigned long long newest = 0;
    for (unsigned i = 0; i < s->n_events; i++)
        if (s->events[i].seq > newest)
            newest = s->events[i].seq;
    return newest;
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
    set->last_seq = newest_seq(s);
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
    if (!is_live(set) || types & ~(unsigned long long)ALL_EVENTS)
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

/* The oldest undelivered event for which the set is registered, or NULL. */
static const struct event *next_event(const struct snapshot *s, const struct event_set *set)
{
    const struct event *oldest = NULL;
    for (unsigned i = 0; i < s->n_events; i++) {
        const struct event *event = &s->events[i];
        if (event->seq <= set->last_seq || (oldest && event->seq > oldest->seq))
            continue;
        for (unsigned j = 0; j < set->n; j++)
            if (set->gpus[j] == event->gpu && set->types[j] & event->type)
                oldest = event;
    }
    return oldest;
}

/* Deliver one event; NVML_ERROR_TIMEOUT if there is none. */
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
    set->last_seq = event->seq;
    data->eventType = event->type;
    data->eventData = event->type == EVENT_XID ? event->data : 0;
    if (with_instance) { /* the struct of v1 lacks these fields */
        data->gpuInstanceId = event->gi;
        data->computeInstanceId = event->ci;
    }
    return finish(set_handle(&data->device, GPU_HANDLE, event->gpu, 0, 0));
}

/* Return a descriptor that is readable when the state has changed, -1 if there is none. */
static int open_watch(void)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return -1;
    int fd = state_watch(s->tree);
    finish(NVML_SUCCESS);
    return fd;
}

/* Wait until the state has changed, or for some time. */
static void await_change(int watch, long long limit_ms)
{
    char changes[4096];
    struct pollfd ready = {.fd = watch, .events = POLLIN};
    long long most_ms = watch < 0 ? POLL_MS : WATCH_MS;
    if (poll(&ready, 1, (int)(limit_ms < most_ms ? limit_ms : most_ms)) == 1)
        while (read(watch, changes, sizeof(changes)) > 0)
            ;
}

static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms,
                             bool with_instance)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    int watch = timeout_ms ? open_watch() : -1;
    nvmlReturn_t result;
    while ((result = poll_set(set, data, with_instance)) == NVML_ERROR_TIMEOUT) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long elapsed_ms = ((long long)(now.tv_sec - start.tv_sec) * 1000000000LL +
                            (now.tv_nsec - start.tv_nsec)) / 1000000;
        if (elapsed_ms >= timeout_ms)
            break;
        await_change(watch, timeout_ms - elapsed_ms);
    }
    if (watch >= 0)
        close(watch);
    return result;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return wait_for_event(set, data, timeout_ms, true);
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return wait_for_event(set, data, timeout_ms, false);
}
