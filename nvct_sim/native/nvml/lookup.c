/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks up GPUs, instances and profiles in a snapshot.
 */

#include "simulation.h"

struct gpu *find_gpu(struct snapshot *s, unsigned index)
{
    for (unsigned i = 0; i < s->n_gpus; i++)
        if (s->gpus[i].index == index)
            return &s->gpus[i];
    return NULL;
}

struct gpu_instance *find_gpu_instance(struct snapshot *s, unsigned gpu, unsigned id)
{
    for (unsigned i = 0; i < s->n_gpu_instances; i++)
        if (s->gpu_instances[i].gpu == gpu && s->gpu_instances[i].id == id)
            return &s->gpu_instances[i];
    return NULL;
}

struct compute_instance *find_compute_instance(struct snapshot *s, unsigned gpu, unsigned gi,
                                               unsigned id)
{
    for (unsigned i = 0; i < s->n_compute_instances; i++) {
        struct compute_instance *ci = &s->compute_instances[i];
        if (ci->gpu == gpu && ci->gi == gi && ci->id == id)
            return ci;
    }
    return NULL;
}

const struct profile *find_profile(const struct snapshot *s, unsigned gpu, unsigned id)
{
    const struct profile *common = NULL;
    for (unsigned i = 0; i < s->n_profiles; i++) {
        const struct profile *profile = &s->profiles[i];
        if (profile->id == id && profile->gpu == (int)gpu)
            return profile; /* a record of one GPU takes precedence over gpu=* */
        if (profile->id == id && profile->gpu == -1)
            common = profile;
    }
    return common;
}
