/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi topo -m: the links between GPUs, and their CPU and memory affinity.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

enum { MAX_LINKS = 18, SET_WORDS = 16, WORD_BITS = 64 };

/* Count the NVLinks from a GPU to a peer: direct ones, and all links to switches if both GPUs have
 * links to switches. */
static unsigned links_between(const struct gpu_entry *gpu, const struct gpu_entry *peer)
{
    enum { GPU = 0, SWITCH = 2 };
    unsigned count = 0, active = 0, type = 0, peer_active = 0;
    for (unsigned link = 0; link < MAX_LINKS; link++) {
        nvmlPciInfo_t pci;
        if (nvml.nvmlDeviceGetNvLinkState(gpu->device, link, &active) || !active ||
            nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu->device, link, &type))
            continue;
        if (type == SWITCH)
            count += !nvml.nvmlDeviceGetNvLinkState(peer->device, 0, &peer_active) && peer_active;
        else if (!nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu->device, link, &pci))
            count += !strcmp(pci.busId, peer->bus_id);
    }
    return count;
}

static void show_pair(const struct gpu_entry *gpu, const struct gpu_entry *peer)
{
    static const char *const levels[] = {"PIX", "PIX", "PXB", "PHB", "NODE", "SYS"};
    unsigned level = 0, links;
    if (gpu == peer)
        printf("\t X ");
    else if (gpu->status || peer->status)
        printf("\tN/A");
    else if ((links = links_between(gpu, peer)))
        printf("\tNV%u", links);
    else if (nvml.nvmlDeviceGetTopologyCommonAncestor(gpu->device, peer->device, &level))
        printf("\tN/A");
    else
        printf("\t%s", levels[level / 10]);
}

/* Write a set of bits as a list of ranges, such as 0-3,8. */
static void write_set(const unsigned long *set, char *out, size_t size)
{
    size_t n = 0;
    snprintf(out, size, "N/A");
    for (unsigned i = 0; i < SET_WORDS * WORD_BITS && n < size; i++) {
        unsigned first = i;
        while (i < SET_WORDS * WORD_BITS && set[i / WORD_BITS] >> i % WORD_BITS & 1)
            i++;
        if (i > first)
            n += (size_t)snprintf(out + n, size - n, i - first > 1 ? "%s%u-%u" : "%s%u",
                                  n ? "," : "", first, i - 1);
    }
}

static void show_affinity(const struct gpu_entry *gpu)
{
    unsigned long set[SET_WORDS] = {0};
    char processors[128] = "N/A", memory[128] = "N/A";
    if (!gpu->status && !nvml.nvmlDeviceGetCpuAffinity(gpu->device, SET_WORDS, set))
        write_set(set, processors, sizeof(processors));
    memset(set, 0, sizeof(set));
    if (!gpu->status && !nvml.nvmlDeviceGetMemoryAffinity(gpu->device, SET_WORDS, set, 0))
        write_set(set, memory, sizeof(memory));
    printf("\t%s\t%s\t\tN/A\n", processors, memory);
}

int run_topology(const struct gpu_list *list, int argc, char **argv)
{
    if (argc != 1 || (strcmp(argv[0], "-m") && strcmp(argv[0], "--matrix"))) {
        puts("Only \"nvidia-smi topo -m\" is simulated.");
        return EXIT_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < list->count; i++)
        printf("\tGPU%u", i);
    puts("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID");
    for (unsigned i = 0; i < list->count; i++) {
        printf("GPU%u", i);
        for (unsigned j = 0; j < list->count; j++)
            show_pair(&list->gpus[i], &list->gpus[j]);
        show_affinity(&list->gpus[i]);
    }
    puts("\nLegend:\n\n"
         "  X    = Self\n"
         "  SYS  = PCIe, and what joins NUMA nodes\n"
         "  NODE = PCIe, and what joins PCIe host bridges of a NUMA node\n"
         "  PHB  = PCIe, and a PCIe host bridge\n"
         "  PXB  = several PCIe switches\n"
         "  PIX  = one PCIe switch\n"
         "  NV#  = # NVLinks");
    return EXIT_DONE;
}
