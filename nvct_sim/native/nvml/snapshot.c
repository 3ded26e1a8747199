/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the text of a state into a snapshot, whose records are in NVML's order.
 */
#include <string.h>

#include "simulation.h"

static void parse_event(const char *line, struct event *event)
{
    field_number(line, "seq", &event->seq);
    field_number(line, "type", &event->type);
    field_number(line, "data", &event->data);
    event->gpu = field_unsigned(line, "gpu", UINT_MAX);
    event->gi = field_unsigned(line, "gi", UINT_MAX);
    event->ci = field_unsigned(line, "ci", UINT_MAX);
}

static void parse_fault(const char *line, struct snapshot *s)
{
    char kind[16] = "";
    field_text(line, "nvml", kind, sizeof(kind));
    s->fault = !strcmp(kind, "hang")        ? HANG
               : !strcmp(kind, "hang-hard") ? HANG_HARD
               : !strcmp(kind, "crash")     ? CRASH
                                            : NO_FAULT;
    field_number(line, "until", &s->fault_until);
}

static bool is_record(const char *line, const char *name)
{
    size_t n = strlen(name);
    return strncmp(line, name, n) == 0 && line[n] == '\t';
}

static void copy_line_value(const char *line, char *out, size_t size)
{
    const char *value = strchr(line, '\t') + 1;
    size_t n = strcspn(value, "\t\n");
    if (n >= size)
        n = size - 1;
    memcpy(out, value, n);
    out[n] = '\0';
}

/* Return false if the record is damaged or does not fit. Unknown records are skipped. */
static bool parse_record(struct snapshot *s, const char *line)
{
    if (is_record(line, "driver"))
        copy_line_value(line, s->driver, sizeof(s->driver));
    else if (is_record(line, "tree"))
        copy_line_value(line, s->tree, sizeof(s->tree));
    else if (is_record(line, "cuda")) {
        unsigned long long value = 0;
        const char *at = strchr(line, '\t') + 1;
        if (!parse_number(&at, &value))
            return false;
        s->cuda = (unsigned)value;
    } else if (is_record(line, "major"))
        s->caps_major = field_unsigned(line, "nvidia-caps", 0);
    else if (is_record(line, "gpu"))
        return s->n_gpus < MAX_GPUS && parse_gpu(line, &s->gpus[s->n_gpus++]);
    else if (is_record(line, "fault"))
        parse_fault(line, s);
    else if (is_record(line, "switch"))
        return s->n_switches < MAX_SWITCHES && parse_switch(line, &s->switches[s->n_switches++]);
    else if (is_record(line, "profile"))
        return s->n_profiles < MAX_PROFILES && parse_profile(line, &s->profiles[s->n_profiles++]);
    else if (is_record(line, "gi"))
        return s->n_gpu_instances < MAX_GPU_INSTANCES &&
               parse_gpu_instance(line, &s->gpu_instances[s->n_gpu_instances++]);
    else if (is_record(line, "ci"))
        return s->n_compute_instances < MAX_COMPUTE_INSTANCES &&
               parse_compute_instance(line, &s->compute_instances[s->n_compute_instances++]);
    else if (is_record(line, "process")) {
        if (s->n_processes == MAX_PROCESSES)
            return false;
        parse_process(line, &s->processes[s->n_processes++]);
    } else if (is_record(line, "event")) {
        if (s->n_events == MAX_EVENTS) { /* drop the oldest event */
            memmove(s->events, s->events + 1, sizeof(s->events) - sizeof(s->events[0]));
            s->n_events--;
        }
        memset(&s->events[s->n_events], 0, sizeof(s->events[0]));
        parse_event(line, &s->events[s->n_events++]);
    }
    return true;
}

/* Compute the used memory of GPUs without a number in the state: that of processes and driver. */
static void add_process_memory(struct snapshot *s)
{
    for (unsigned i = 0; i < s->n_processes; i++)
        for (unsigned j = 0; j < s->n_gpus; j++) {
            struct gpu *gpu = &s->gpus[j];
            if (gpu->index != s->processes[i].gpu || gpu->has_memory_used)
                continue;
            unsigned long long left = gpu->memory - gpu->memory_used, memory = s->processes[i].memory;
            gpu->memory_used += memory < left ? memory : left;
        }
}

/* Sort into NVML's order, by insertion: the lists are short and mostly sorted. */
static void sort_records(struct snapshot *s)
{
    for (unsigned i = 1; i < s->n_gpus; i++)
        for (unsigned j = i; j && s->gpus[j].index < s->gpus[j - 1].index; j--) {
            struct gpu gpu = s->gpus[j];
            s->gpus[j] = s->gpus[j - 1];
            s->gpus[j - 1] = gpu;
        }
    for (unsigned i = 1; i < s->n_gpu_instances; i++)
        for (unsigned j = i; j; j--) {
            struct gpu_instance *a = &s->gpu_instances[j - 1], *b = &s->gpu_instances[j], t = *a;
            if (a->gpu < b->gpu || (a->gpu == b->gpu && a->id <= b->id))
                break;
            *a = *b;
            *b = t;
        }
    for (unsigned i = 1; i < s->n_compute_instances; i++)
        for (unsigned j = i; j; j--) {
            struct compute_instance *a = &s->compute_instances[j - 1], *b = a + 1, t = *a;
            if (a->gpu < b->gpu || (a->gpu == b->gpu && (a->gi < b->gi ||
                                    (a->gi == b->gi && a->id <= b->id))))
                break;
            *a = *b;
            *b = t;
        }
}

nvmlReturn_t parse_snapshot(const struct text *text, struct snapshot *out)
{
    memset(out, 0, sizeof(*out));
    unsigned long long version, generation = 0, end = 0;
    const char *line = text->data, *at;
    if (!is_record(line, "nvct-sim"))
        return NVML_ERROR_UNKNOWN;
    at = strchr(line, '\t') + 1;
    if (!parse_number(&at, &version) || version != 1 || *at++ != '\t' ||
        !parse_number(&at, &generation))
        return NVML_ERROR_UNKNOWN;
    bool complete = false;
    for (const char *next = line; next && *next && !complete;) {
        line = next;
        next = strchr(line, '\n');
        next = next ? next + 1 : NULL;
        if (is_record(line, "end")) {
            at = line + 4;
            complete = parse_number(&at, &end);
        } else if (!parse_record(out, line))
            return NVML_ERROR_UNKNOWN;
    }
    if (!complete || generation != end)
        return NVML_ERROR_UNKNOWN;
    out->generation = (unsigned long)generation;
    sort_records(out);
    add_process_memory(out);
    for (unsigned i = 0; i < out->n_profiles; i++)
        if (out->profiles[i].kind == UINT_MAX)
            out->profiles[i].kind = profile_kind(out, &out->profiles[i]);
    place_compute_instances(out);
    /* After sorting, because capabilities look up instances. */
    for (const char *next = text->data; next && *next;) {
        if (is_record(next, "cap"))
            parse_capability(out, next);
        next = strchr(next, '\n');
        next = next ? next + 1 : NULL;
    }
    return NVML_SUCCESS;
}
