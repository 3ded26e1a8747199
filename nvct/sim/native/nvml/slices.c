/* SPDX-License-Identifier: Apache-2.0
 *
 * Compute slices of MIG: how many a GPU, a profile and an instance have, and profiles' names.
 */
#include <stdio.h>

#include "simulation.h"

/* Compute instance profiles have fixed ids: 1, 2, 3, 4, 7, 8 and 6 slices. */
static const unsigned char compute_profile_slices[] = {1, 2, 3, 4, 7, 8, 6};

unsigned compute_slices(unsigned profile)
{
    return profile < sizeof(compute_profile_slices) ? compute_profile_slices[profile] : 0;
}

/* No GPU has more, whatever a damaged state says: callers count up to it. */
enum { MAX_SLICES = 8 };

/* Compute slices of a whole GPU: those of its largest profile. */
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

/* "1g.10gb", and "1c.3g.40gb" for a compute instance that is not its GPU instance's whole. */
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
