/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG profiles: compute slices, multiprocessors and names.
 */
#include <stdio.h>

#include "simulation.h"

/* Slices by compute instance profile; the ids are fixed in nvml.h. */
static const unsigned char compute_profile_slices[] = {1, 2, 3, 4, 7, 8, 6};

unsigned compute_slices(unsigned profile)
{
    return profile < sizeof(compute_profile_slices) ? compute_profile_slices[profile] : 0;
}

/* Limits the slices of a damaged state, because callers count up to them; no GPU has more. */
enum { MAX_SLICES = 8 };

/* The compute slices of a GPU are those of its largest profile. */
unsigned gpu_slices(const struct snapshot *s, unsigned gpu)
{
    unsigned most = 0;
    for (unsigned i = 0; i < s->n_profiles; i++) {
        const struct profile *p = &s->profiles[i];
        if ((p->gpu == -1 || p->gpu == (int)gpu) && p->slices > most)
            most = p->slices < MAX_SLICES ? p->slices : MAX_SLICES;
    }
    return most;
}

/* "1g.10gb"; "1c.3g.40gb" for a compute instance that is only a part of its GPU instance. */
void name_profile(const struct profile *gi, unsigned slices, char *out, size_t size)
{
    if (slices && slices < gi->slices)
        snprintf(out, size, "%uc.%s", slices, gi->name);
    else
        snprintf(out, size, "%s", gi->name);
}

unsigned multiprocessors(const struct profile *gi, unsigned slices)
{
    return slices < gi->slices ? gi->sm / gi->slices * slices : gi->sm;
}
