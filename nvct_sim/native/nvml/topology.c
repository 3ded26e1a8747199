/* SPDX-License-Identifier: Apache-2.0
 *
 * Topology: PCIe, NVLink and NUMA nodes. It comes from two fields of a GPU: `path` (NUMA node,
 * host bridge, upper and lower PCIe switch) and `links` (the peer of each NVLink).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "simulation.h"

enum { INTERNAL = 0, SINGLE_SWITCH = 10, MULTIPLE_SWITCHES = 20, HOST_BRIDGE = 30, NUMA_NODE = 40,
       SYSTEM = 50 };

/* NVML's level by the first part in which the paths of two GPUs differ. */
static unsigned level_of(const struct gpu *a, const struct gpu *b)
{
    static const unsigned levels[PATH_LENGTH] = {SYSTEM, NUMA_NODE, HOST_BRIDGE, MULTIPLE_SWITCHES};
    if (a->index == b->index)
        return INTERNAL;
    for (int i = 0; i < PATH_LENGTH; i++)
        if (a->path[i] != b->path[i])
            return levels[i];
    return SINGLE_SWITCH;
}

/* begin_device for two GPUs. On success the lock is held until the caller calls finish(). */
static nvmlReturn_t begin_pair(nvmlDevice_t device1, nvmlDevice_t device2, struct target *a,
                               struct target *b)
{
    nvmlReturn_t result = begin_device(device1, WHOLE_GPU, a);
    if (result)
        return result;
    result = resolve(a->state, device2, WHOLE_GPU, b);
    return result ? finish(result) : NVML_SUCCESS;
}

static nvmlReturn_t common_level(nvmlDevice_t device1, nvmlDevice_t device2, unsigned *level)
{
    struct target a, b;
    nvmlReturn_t result = begin_pair(device1, device2, &a, &b);
    if (result)
        return result;
    if (!level)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *level = level_of(a.gpu, b.gpu);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                     unsigned *level)
{
    return common_level(device1, device2, level);
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same)
{
    unsigned level;
    nvmlReturn_t result = common_level(device1, device2, &level);
    if (!result && same)
        *same = level == INTERNAL;
    return result || same ? result : NVML_ERROR_INVALID_ARGUMENT;
}

/* Return as many handles as there is room for, and the total number in the count. */
static nvmlReturn_t list_gpus(struct snapshot *s, unsigned *count, nvmlDevice_t *devices,
                              bool (*matches)(const struct gpu *gpu, const void *arg),
                              const void *arg)
{
    unsigned size = *count, n = 0;
    for (unsigned i = 0; i < s->n_gpus; i++) {
        struct gpu *gpu = &s->gpus[i];
        if (!gpu_is_visible(gpu) || gpu->lost || !matches(gpu, arg))
            continue;
        if (devices && n < size) {
            nvmlReturn_t result = set_handle(&devices[n], GPU_HANDLE, gpu->index, 0, 0);
            if (result)
                return result;
        }
        n++;
    }
    *count = n;
    return devices && n > size ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

struct distance {
    const struct gpu *gpu;
    unsigned level;
};

static bool is_at_level(const struct gpu *gpu, const void *arg)
{
    const struct distance *distance = arg;
    return gpu->index != distance->gpu->index && level_of(distance->gpu, gpu) == distance->level;
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level,
                                                  unsigned *count, nvmlDevice_t *devices)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, &t);
    if (result)
        return result;
    if (!count || level > SYSTEM || level % 10)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    struct distance distance = {t.gpu, level};
    return finish(list_gpus(t.state, count, devices, is_at_level, &distance));
}

/* --- NVLink ------------------------------------------------------------------------------- */

/* begin_device for a link. A GPU without NVLinks supports none of these functions. */
static nvmlReturn_t begin_link(nvmlDevice_t device, unsigned link, struct target *target)
{
    nvmlReturn_t result = begin_device(device, WHOLE_GPU, target);
    if (result)
        return result;
    if (!target->gpu->n_links)
        return finish(NVML_ERROR_NOT_SUPPORTED);
    return link < target->gpu->n_links ? NVML_SUCCESS : finish(NVML_ERROR_INVALID_ARGUMENT);
}

/* A link is up while its peer is on the bus, except for the first `linksdown` links. */
static bool is_up(struct snapshot *s, const struct gpu *gpu, unsigned link)
{
    if (link < metric_or(gpu, NVLINKS_DOWN, 0))
        return false;
    struct nvlink peer = gpu->links[link];
    const struct gpu *gpu_peer = peer.to_switch ? NULL : find_gpu(s, peer.index);
    return peer.to_switch ? peer.index < s->n_switches : gpu_peer && !gpu_peer->lost;
}

static nvmlReturn_t link_number(nvmlDevice_t device, unsigned link, unsigned *out,
                                unsigned (*read)(struct snapshot *, const struct gpu *, unsigned))
{
    struct target t;
    nvmlReturn_t result = begin_link(device, link, &t);
    if (result)
        return result;
    if (!out)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    *out = read(t.state, t.gpu, link);
    return finish(NVML_SUCCESS);
}

static unsigned link_state(struct snapshot *s, const struct gpu *gpu, unsigned link)
{
    return is_up(s, gpu, link);
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    return link_number(device, link, active, link_state);
}

static unsigned link_version(struct snapshot *s, const struct gpu *gpu, unsigned link)
{
    (void)s;
    (void)link;
    return gpu->nvlink;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    return link_number(device, link, version, link_version);
}

static unsigned link_type(struct snapshot *s, const struct gpu *gpu, unsigned link)
{
    enum { GPU = 0, SWITCH = 2, UNKNOWN = 255 };
    if (!is_up(s, gpu, link))
        return UNKNOWN;
    return gpu->links[link].to_switch ? SWITCH : GPU;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link,
                                                     unsigned *type)
{
    return link_number(device, link, type, link_type);
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link,
                                               unsigned capability, unsigned *out)
{
    /* P2P and system memory, atomics of both, SLI, valid: a link has all of them. */
    enum { CAPABILITIES = 6 };
    nvmlReturn_t result = link_number(device, link, out, link_state);
    return !result && capability >= CAPABILITIES ? NVML_ERROR_INVALID_ARGUMENT : result;
}

static nvmlReturn_t remote_pci(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    struct target t;
    nvmlReturn_t result = begin_link(device, link, &t);
    if (result)
        return result;
    if (!pci)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    if (!is_up(t.state, t.gpu, link))
        return finish(NVML_ERROR_NOT_SUPPORTED);
    struct nvlink peer = t.gpu->links[link];
    if (peer.to_switch)
        fill_pci_info(&t.state->switches[peer.index].pci, pci);
    else
        fill_pci_info(&find_gpu(t.state, peer.index)->pci, pci);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                     nvmlPciInfo_t *pci)
{
    return remote_pci(device, link, pci);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link,
                                                  nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_t v3;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = remote_pci(device, link, &v3);
    if (!result)
        shorten_pci_info(&v3, pci);
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link,
                                                 unsigned counter, unsigned long long *out)
{
    enum { COUNTERS = 5 };
    struct target t;
    nvmlReturn_t result = begin_link(device, link, &t);
    if (result)
        return result;
    if (!out || counter >= COUNTERS)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    static const int metrics[COUNTERS] = {NVLINK_REPLAYS, NVLINK_RECOVERIES, NVLINK_CRC_FLIT,
                                          NVLINK_CRC_DATA, -1};
    bool counts = link == 0 && metrics[counter] >= 0; /* the first link has all errors */
    *out = counts ? metric_or(t.gpu, (enum metric)metrics[counter], 0) : 0;
    return finish(NVML_SUCCESS);
}

/* Whether NVLinks connect two GPUs: a direct one, or one from each GPU to a switch. */
static bool are_linked(struct snapshot *s, const struct gpu *a, const struct gpu *b)
{
    for (unsigned i = 0; i < a->n_links; i++) {
        struct nvlink peer = a->links[i];
        if (!is_up(s, a, i))
            continue;
        if (!peer.to_switch && peer.index == b->index)
            return true;
        if (peer.to_switch && b->n_links && b->links[0].to_switch)
            return true; /* switches of all boards are connected */
    }
    return false;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                        unsigned capability, unsigned *status)
{
    enum { READ, WRITE, NVLINK, ATOMICS, PROPRIETARY, CAPABILITIES };
    enum { OK = 0, CHIPSET_NOT_SUPPORTED = 1, NOT_SUPPORTED = 5 };
    struct target a, b;
    nvmlReturn_t result = begin_pair(device1, device2, &a, &b);
    if (result)
        return result;
    if (!status || capability >= CAPABILITIES)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    bool linked = are_linked(a.state, a.gpu, b.gpu);
    if (capability == READ || capability == WRITE)
        *status = linked || level_of(a.gpu, b.gpu) <= HOST_BRIDGE ? OK : CHIPSET_NOT_SUPPORTED;
    else
        *status = linked && capability != PROPRIETARY ? OK : NOT_SUPPORTED;
    return finish(NVML_SUCCESS);
}

/* --- NUMA --------------------------------------------------------------------------------- */

/* The machine may have another number of NUMA nodes than the simulated node: its processors are
 * divided equally. nvct_sim.sysfs has the same rule. */
static void local_processors(const struct snapshot *s, unsigned numa, long *first, long *count)
{
    unsigned nodes = 1;
    for (unsigned i = 0; i < s->n_gpus; i++)
        if (s->gpus[i].path[0] >= nodes)
            nodes = s->gpus[i].path[0] + 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    *count = processors / (long)nodes ? processors / (long)nodes : 1;
    *first = (long)numa * *count;
    if (*first > processors - *count)
        *first = processors - *count;
}

static void set_bits(unsigned long *set, unsigned words, long first, long count)
{
    enum { BITS = 8 * sizeof(long) };
    memset(set, 0, words * sizeof(*set));
    for (long i = first; i < first + count && i < (long)words * (long)BITS; i++)
        set[i / (long)BITS] |= 1UL << i % (long)BITS;
}

static nvmlReturn_t affinity(nvmlDevice_t device, unsigned words, unsigned long *set, bool memory)
{
    struct target t;
    nvmlReturn_t result = begin_device(device, ANY_DEVICE, &t);
    if (result)
        return result;
    if (!words || !set)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    long first = t.gpu->path[0], count = 1;
    if (!memory)
        local_processors(t.state, t.gpu->path[0], &first, &count);
    set_bits(set, words, first, count);
    return finish(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
    return affinity(device, words, set, false);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words,
                                                     unsigned long *set, unsigned scope)
{
    (void)scope;
    return affinity(device, words, set, false);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words,
                                             unsigned long *set, unsigned scope)
{
    (void)scope;
    return affinity(device, words, set, true);
}

struct processor {
    const struct snapshot *state;
    long number;
};

static bool is_local(const struct gpu *gpu, const void *arg)
{
    const struct processor *processor = arg;
    long first, count;
    local_processors(processor->state, gpu->path[0], &first, &count);
    return processor->number >= first && processor->number < first + count;
}

API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *devices)
{
    struct snapshot *s;
    nvmlReturn_t result = begin(&s);
    if (result)
        return result;
    if (!count)
        return finish(NVML_ERROR_INVALID_ARGUMENT);
    struct processor processor = {s, (long)cpu};
    return finish(list_gpus(s, count, devices, is_local, &processor));
}
