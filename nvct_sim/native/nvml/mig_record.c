/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the records of MIG: profiles, instances, and their capabilities.
 */
#include <string.h>

#include "simulation.h"

static void parse_placements(const char *line, struct profile *profile)
{
    char list[512] = "";
    field_text(line, "placements", list, sizeof(list));
    const char *at = list;
    unsigned long long start, size;
    while (profile->n_placements < MAX_PLACEMENTS && parse_number(&at, &start) && *at == ':' &&
           (at++, parse_number(&at, &size))) {
        nvmlPlacement_t *placement = &profile->placements[profile->n_placements++];
        placement->start = (unsigned)start;
        placement->size = (unsigned)size;
        if (*at == ',')
            at++;
    }
}

bool parse_profile(const char *line, struct profile *profile)
{
    unsigned long long id;
    if (!field_number(line, "id", &id) ||
        !field_text(line, "name", profile->name, sizeof(profile->name)))
        return false;
    profile->id = (unsigned)id;
    profile->gpu = (int)field_unsigned(line, "gpu", UINT_MAX); /* gpu=* is not a number */
    profile->slices = field_unsigned(line, "slices", 1);
    profile->ce = field_unsigned(line, "ce", profile->slices);
    profile->dec = field_unsigned(line, "dec", 0);
    profile->jpeg = field_unsigned(line, "jpeg", 0);
    profile->ofa = field_unsigned(line, "ofa", 0);
    profile->sm = field_unsigned(line, "sm", 0);
    field_number(line, "memory", &profile->memory_mb);
    parse_placements(line, profile);
    profile->max = field_unsigned(line, "max", profile->n_placements);
    profile->kind = field_unsigned(line, "kind", UINT_MAX);
    return true;
}

/* NVML_GPU_INSTANCE_PROFILE_*, by the number of slices and the suffix of the profile's name. */
unsigned profile_kind(const struct snapshot *s, const struct profile *profile)
{
    static const unsigned char by_slices[] = {[1] = 0, [2] = 1, [3] = 2, [4] = 3,
                                              [6] = 6, [7] = 4, [8] = 5};
    unsigned n = profile->slices;
    const char *suffix = strpbrk(profile->name, "+-");
    if (suffix && strcmp(suffix, "+gfx") == 0)
        return n == 1 ? 0xA : n == 2 ? 0xB : n == 3 ? 0x11 : 0xC;
    if (suffix && strcmp(suffix, "-me") == 0)
        return n == 1 ? 0xD : 0xE;
    if (suffix && strcmp(suffix, "+me.all") == 0)
        return n == 1 ? 0xF : 0x10;
    if (suffix && strcmp(suffix, "+me") == 0)
        return n == 1 ? 0x7 : 0x8;
    for (unsigned i = 0; i < s->n_profiles && n == 1; i++) {
        const struct profile *other = &s->profiles[i]; /* 1g.20gb of a GPU with 1g.10gb is "REV2" */
        if (other->gpu == profile->gpu && other->slices == 1 &&
            other->memory_mb && other->memory_mb * 3 < profile->memory_mb * 2)
            return 0x9;
    }
    return n < sizeof(by_slices) ? by_slices[n] : UINT_MAX;
}

bool parse_compute_instance(const char *line, struct compute_instance *ci)
{
    ci->gpu = field_unsigned(line, "gpu", UINT_MAX);
    ci->gi = field_unsigned(line, "gi", UINT_MAX);
    ci->id = field_unsigned(line, "id", UINT_MAX);
    ci->profile = field_unsigned(line, "profile", 0);
    ci->start = field_unsigned(line, "start", UINT_MAX);
    ci->size = field_unsigned(line, "size", compute_slices(ci->profile));
    return ci->id != UINT_MAX && field_text(line, "uuid", ci->uuid, sizeof(ci->uuid));
}

bool parse_gpu_instance(const char *line, struct gpu_instance *gi)
{
    gi->gpu = field_unsigned(line, "gpu", UINT_MAX);
    gi->id = field_unsigned(line, "id", UINT_MAX);
    gi->profile = field_unsigned(line, "profile", 0);
    gi->start = field_unsigned(line, "start", 0);
    gi->size = field_unsigned(line, "size", 1);
    return gi->gpu != UINT_MAX && gi->id != UINT_MAX;
}

/* Place compute instances without a recorded start one after the other. */
void place_compute_instances(struct snapshot *s)
{
    unsigned next = 0;
    for (unsigned i = 0; i < s->n_compute_instances; i++) {
        struct compute_instance *ci = &s->compute_instances[i];
        if (i == 0 || ci->gpu != ci[-1].gpu || ci->gi != ci[-1].gi)
            next = 0;
        if (ci->start == UINT_MAX)
            ci->start = next;
        next = ci->start + ci->size;
    }
}

void parse_capability(struct snapshot *s, const char *line)
{
    unsigned gpu = field_unsigned(line, "gpu", UINT_MAX), gi = field_unsigned(line, "gi", UINT_MAX);
    unsigned ci = field_unsigned(line, "ci", UINT_MAX), minor = field_unsigned(line, "minor", 0);
    struct gpu_instance *instance = find_gpu_instance(s, gpu, gi);
    struct compute_instance *compute = find_compute_instance(s, gpu, gi, ci);
    if (ci == UINT_MAX && instance) {
        instance->cap = minor;
        instance->has_cap = true;
    } else if (compute) {
        compute->cap = minor;
        compute->has_cap = true;
    }
}
