/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi -mig and nvidia-smi mig: partition GPUs.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

struct request {
    const char *ids, *create, *create_compute;
    bool list_profiles, list_instances, list_compute, destroy, destroy_compute, with_compute;
    bool has_gi, has_ci;
    unsigned gi, ci;
};

int set_mig_mode(const struct gpu_list *list, const char *ids, const char *mode)
{
    unsigned on;
    if (!parse_unsigned(mode, &on) || on > 1) {
        printf("Invalid MIG mode: %s\n", mode);
        return EXIT_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        nvmlReturn_t activation, result;
        char operation[96];
        if (gpu->status || !is_selected(gpu, ids))
            continue;
        snprintf(operation, sizeof(operation), "Unable to %s MIG Mode for GPU %s",
                 on ? "enable" : "disable", gpu->bus_id);
        result = nvml.nvmlDeviceSetMigMode(gpu->device, on, &activation);
        if (result)
            return fail(operation, result);
        printf("%s MIG Mode for GPU %s\n", on ? "Enabled" : "Disabled", gpu->bus_id);
    }
    puts("All done.");
    return EXIT_DONE;
}

static nvmlReturn_t profile_info(const struct gpu_entry *gpu, unsigned kind,
                                 nvmlGpuInstanceProfileInfo_v2_t *info)
{
    info->version = NVML_STRUCT(nvmlGpuInstanceProfileInfo_v2_t, 2);
    return nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu->device, kind, info);
}

/* Find a profile by "19", "1g.10gb" or "MIG 1g.10gb". */
static bool find_profile(const struct gpu_entry *gpu, const char *name,
                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    unsigned id;
    bool by_id = parse_unsigned(name, &id);
    for (unsigned kind = 0; kind < GPU_PROFILES; kind++)
        if (profile_info(gpu, kind, info) == NVML_SUCCESS &&
            (by_id ? info->id == id
                   : !strcmp(info->name, name) || !strcmp(info->name + strlen("MIG "), name)))
            return true;
    return false;
}

static void list_profiles(const struct gpu_entry *gpu, unsigned index)
{
    nvmlGpuInstanceProfileInfo_v2_t info;
    for (unsigned kind = 0; kind < GPU_PROFILES; kind++) {
        unsigned left = 0;
        if (profile_info(gpu, kind, &info))
            continue;
        nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu->device, info.id, &left);
        printf("|%4u  %-18s %2u     %u/%-2u       %6.2f    %-3u %3u    %2u |\n", index, info.name,
               info.id, left, info.instanceCount, (double)info.memorySizeMB / 1024,
               info.isP2pSupported, info.multiprocessorCount, info.decoderCount);
    }
}

/* Call `visit` for each GPU instance that the request selects; stop at the first failure. */
static int each_instance(const struct gpu_entry *gpu, unsigned index, const struct request *r,
                         int (*visit)(const struct gpu_entry *, unsigned, const struct request *,
                                      nvmlGpuInstance_t, const nvmlGpuInstanceInfo_t *,
                                      const char *))
{
    nvmlGpuInstanceProfileInfo_v2_t profile;
    for (unsigned kind = 0; kind < GPU_PROFILES; kind++) {
        nvmlGpuInstance_t instances[MAX_INSTANCES];
        unsigned count = 0;
        if (profile_info(gpu, kind, &profile) ||
            nvml.nvmlDeviceGetGpuInstances(gpu->device, profile.id, instances, &count))
            continue;
        for (unsigned i = 0; i < count; i++) {
            nvmlGpuInstanceInfo_t info;
            int status;
            if (nvml.nvmlGpuInstanceGetInfo(instances[i], &info) || (r->has_gi && info.id != r->gi))
                continue;
            status = visit(gpu, index, r, instances[i], &info, profile.name);
            if (status)
                return status;
        }
    }
    return EXIT_DONE;
}

static int show_instance(const struct gpu_entry *gpu, unsigned index, const struct request *r,
                         nvmlGpuInstance_t instance, const nvmlGpuInstanceInfo_t *info,
                         const char *name)
{
    (void)gpu;
    (void)r;
    (void)instance;
    printf("|%4u  %-18s %4u       %4u          %u:%u     |\n", index, name, info->profileId,
           info->id, info->placement.start, info->placement.size);
    return EXIT_DONE;
}

static int destroy_instance(const struct gpu_entry *gpu, unsigned index, const struct request *r,
                            nvmlGpuInstance_t instance, const nvmlGpuInstanceInfo_t *info,
                            const char *name)
{
    char operation[96];
    (void)gpu;
    (void)r;
    (void)name;
    snprintf(operation, sizeof(operation), "Unable to destroy GPU instance ID %2u from GPU %2u",
             info->id, index);
    nvmlReturn_t result = nvml.nvmlGpuInstanceDestroy(instance);
    if (result)
        return fail(operation, result);
    printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", info->id, index);
    return EXIT_DONE;
}

/* List or destroy the compute instances of a GPU instance. */
static int each_compute(unsigned index, const struct request *r, nvmlGpuInstance_t instance,
                        const nvmlGpuInstanceInfo_t *owner)
{
    for (unsigned kind = 0; kind < COMPUTE_PROFILES; kind++) {
        nvmlComputeInstance_t list[MAX_INSTANCES];
        unsigned count = 0;
        if (nvml.nvmlGpuInstanceGetComputeInstances(instance, kind, list, &count))
            continue;
        for (unsigned i = 0; i < count; i++) {
            nvmlComputeInstanceInfo_t info;
            nvmlReturn_t result = nvml.nvmlComputeInstanceGetInfo_v2(list[i], &info);
            if (result || (r->has_ci && info.id != r->ci))
                continue;
            if (!r->destroy_compute) {
                printf("|%4u  %4u   %4u      %4u        %u:%u     |\n", index, owner->id, info.id,
                       info.profileId, info.placement.start, info.placement.size);
                continue;
            }
            result = nvml.nvmlComputeInstanceDestroy(list[i]);
            if (result)
                return fail("Unable to destroy a compute instance", result);
            printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID "
                   "%2u\n", info.id, index, owner->id);
        }
    }
    return EXIT_DONE;
}

static int visit_compute(const struct gpu_entry *gpu, unsigned index, const struct request *r,
                         nvmlGpuInstance_t instance, const nvmlGpuInstanceInfo_t *info,
                         const char *name)
{
    (void)gpu;
    (void)name;
    return each_compute(index, r, instance, info);
}

/* Create a compute instance: `profile` is an id, or "" for the largest profile that fits. */
static int create_compute(unsigned index, nvmlGpuInstance_t instance, unsigned gi,
                          const char *profile)
{
    nvmlComputeInstanceProfileInfo_v3_t info, best = {0};
    nvmlComputeInstance_t created;
    nvmlComputeInstanceInfo_t instance_info;
    unsigned id;
    bool by_id = parse_unsigned(profile, &id);
    for (unsigned kind = 0; kind < COMPUTE_PROFILES; kind++) {
        info.version = NVML_STRUCT(nvmlComputeInstanceProfileInfo_v3_t, 3);
        if (nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, kind, 0, &info))
            continue;
        if (by_id ? info.id == id : info.sliceCount > best.sliceCount)
            best = info;
    }
    if (!best.sliceCount) {
        printf("Unable to find compute instance profile %s\n", profile);
        return EXIT_NOT_FOUND;
    }
    nvmlReturn_t result = nvml.nvmlGpuInstanceCreateComputeInstance(instance, best.id, &created);
    if (!result)
        result = nvml.nvmlComputeInstanceGetInfo_v2(created, &instance_info);
    if (result)
        return fail("Unable to create a compute instance", result);
    printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using "
           "profile %s (ID %2u)\n", instance_info.id, index, gi, best.name, best.id);
    return EXIT_DONE;
}

static int visit_create_compute(const struct gpu_entry *gpu, unsigned index,
                                const struct request *r, nvmlGpuInstance_t instance,
                                const nvmlGpuInstanceInfo_t *info, const char *name)
{
    (void)gpu;
    (void)name;
    return create_compute(index, instance, info->id, r->create_compute);
}

/* Create a GPU instance from a word of -cgi: a profile, and optionally a colon and the first
 * slice. */
static int create_instance(const struct gpu_entry *gpu, unsigned index, const struct request *r,
                      char *word)
{
    nvmlGpuInstanceProfileInfo_v2_t profile;
    nvmlGpuInstance_t created;
    nvmlGpuInstanceInfo_t info;
    nvmlPlacement_t placement = {0};
    char *colon = strchr(word, ':');
    if (colon)
        *colon++ = '\0';
    if (!find_profile(gpu, word, &profile) || (colon && !parse_unsigned(colon, &placement.start))) {
        printf("Unable to find GPU instance profile %s on GPU %u\n", word, index);
        return EXIT_NOT_FOUND;
    }
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (!colon)
        result = nvml.nvmlDeviceCreateGpuInstance(gpu->device, profile.id, &created);
    /* The user names the start; the size is that of the profile. */
    for (placement.size = 1; colon && placement.size <= 8; placement.size++) {
        result = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu->device, profile.id, &placement,
                                                               &created);
        if (result != NVML_ERROR_INSUFFICIENT_RESOURCES)
            break;
    }
    if (!result)
        result = nvml.nvmlGpuInstanceGetInfo(created, &info);
    if (result)
        return fail("Unable to create a GPU instance", result);
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n",
           info.id, index, profile.name, profile.id);
    return r->with_compute ? create_compute(index, created, info.id, "") : EXIT_DONE;
}

static int create_instances(const struct gpu_entry *gpu, unsigned index, const struct request *r)
{
    char word[64];
    for (const char *p = r->create; *p;) {
        p = next_word(p, word, sizeof(word));
        int status = create_instance(gpu, index, r, word);
        if (status)
            return status;
    }
    return EXIT_DONE;
}

static int parse(int argc, char **argv, struct request *r)
{
    for (int i = 0; i < argc; i++) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        bool has_value = *value && *value != '-';
        if (!strcmp(option, "-lgip"))
            r->list_profiles = true;
        else if (!strcmp(option, "-lgi"))
            r->list_instances = true;
        else if (!strcmp(option, "-lci"))
            r->list_compute = true;
        else if (!strcmp(option, "-dgi"))
            r->destroy = true;
        else if (!strcmp(option, "-dci"))
            r->destroy_compute = true;
        else if (!strcmp(option, "-C"))
            r->with_compute = true;
        else if (!strcmp(option, "-cci"))
            r->create_compute = has_value ? argv[++i] : "";
        else if (!strcmp(option, "-cgi") && has_value)
            r->create = argv[++i];
        else if (!strcmp(option, "-i") && has_value)
            r->ids = argv[++i];
        else if (!strcmp(option, "-gi") && parse_unsigned(value, &r->gi))
            r->has_gi = ++i;
        else if (!strcmp(option, "-ci") && parse_unsigned(value, &r->ci))
            r->has_ci = ++i;
        else {
            printf("Option \"%s\" is not recognized. Please run 'nvidia-smi -h' for help.\n",
                   option);
            return EXIT_INVALID_ARGUMENT;
        }
    }
    return EXIT_DONE;
}

static int run_on(const struct gpu_entry *gpu, unsigned index, const struct request *r)
{
    int status = EXIT_DONE;
    if (r->list_profiles)
        list_profiles(gpu, index);
    if (r->create)
        status = create_instances(gpu, index, r);
    if (!status && r->create_compute)
        status = each_instance(gpu, index, r, visit_create_compute);
    if (!status && (r->list_compute || r->destroy_compute))
        status = each_instance(gpu, index, r, visit_compute);
    if (!status && r->destroy)
        status = each_instance(gpu, index, r, destroy_instance);
    if (!status && r->list_instances)
        status = each_instance(gpu, index, r, show_instance);
    return status;
}

int run_mig(const struct gpu_list *list, int argc, char **argv)
{
    struct request request = {0};
    bool any = false;
    int status = parse(argc, argv, &request);
    if (request.list_profiles)
        puts("| GPU  Name               ID   Free/Total   Memory GiB  P2P  SM   DEC |");
    if (request.list_instances)
        puts("| GPU  Name             Profile   Instance   Placement (start:size) |");
    if (request.list_compute)
        puts("| GPU   GPU    Compute    Profile    Placement    |\n"
             "|     instance instance     ID       start:size   |");
    for (unsigned i = 0; i < list->count && !status; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        if (gpu->status || !gpu->mig || !is_selected(gpu, request.ids))
            continue;
        any = true;
        status = run_on(gpu, i, &request);
    }
    if (!status && !any) {
        puts("No MIG-enabled devices found.");
        return EXIT_NOT_FOUND;
    }
    return status;
}
