/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi's table, in the layout of driver 580, and --query-gpu.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define RULE "+-----------------------------------------+------------------------+----------------------+"

static void table_head(void)
{
    char driver[80] = "N/A";
    int cuda = 0;
    nvml.nvmlSystemGetDriverVersion(driver, sizeof(driver));
    nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda);
    char version[24];
    snprintf(version, sizeof(version), "%d.%d", cuda / 1000, cuda % 1000 / 10);
    printf("+-----------------------------------------------------------------------------------------+\n"
           "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n" RULE "\n"
           "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
           "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
           "|                                         |                        |               MIG M. |\n"
           "|=========================================+========================+======================|\n",
           driver, driver, version);
}

static void table_row(const struct gpu_entry *gpu, unsigned index)
{
    unsigned persistence = 0, celsius = 0, power = 0, limit = 0, mode, pending;
    nvmlMemory_t memory = {0};
    nvmlUtilization_t busy = {0};
    unsigned long long errors = 0;
    char ecc[24] = "N/A", used[48];
    nvml.nvmlDeviceGetPersistenceMode(gpu->device, &persistence);
    nvml.nvmlDeviceGetTemperature(gpu->device, 0, &celsius);
    nvml.nvmlDeviceGetPowerUsage(gpu->device, &power);
    nvml.nvmlDeviceGetEnforcedPowerLimit(gpu->device, &limit);
    nvml.nvmlDeviceGetMemoryInfo(gpu->device, &memory);
    nvml.nvmlDeviceGetUtilizationRates(gpu->device, &busy);
    if (nvml.nvmlDeviceGetTotalEccErrors(gpu->device, 1, 0, &errors) == NVML_SUCCESS)
        snprintf(ecc, sizeof(ecc), "%llu", errors);
    const char *mig = nvml.nvmlDeviceGetMigMode(gpu->device, &mode, &pending) ? "N/A"
                      : mode                                                   ? "Enabled"
                                                                               : "Disabled";
    snprintf(used, sizeof(used), "%6lluMiB / %6lluMiB", memory.used >> 20, memory.total >> 20);
    printf("| %3u  %-25.25s     %3s  | %18s Off | %20s |\n", index, gpu->name,
           persistence ? "On" : "Off", gpu->bus_id, gpu->mig ? "On" : ecc);
    printf("| N/A  %3uC    P0          %4uW / %4uW  | %22s | %6u%%      Default |\n", celsius,
           power / 1000, limit / 1000, used, busy.gpu);
    printf("|                                         |                        | %20s |\n" RULE "\n",
           mig);
}

static void mig_table(const struct gpu_list *list, const char *wanted)
{
    bool head = false;
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        for (unsigned place = 0, n = 0; is_selected(gpu, i, wanted) && place < max_mig_devices(gpu);
             place++) {
            unsigned gi = 0, ci = 0;
            nvmlMemory_t memory = {0};
            char name[2 * NVML_NAME_LENGTH] = "";
            nvmlDevice_t device = mig_device(gpu, place, &n);
            if (!device)
                continue;
            if (!head)
                puts("\nMIG devices:\n  GPU  GI  CI  MIG  Profile          Memory-Usage");
            head = true;
            nvml.nvmlDeviceGetGpuInstanceId(device, &gi);
            nvml.nvmlDeviceGetComputeInstanceId(device, &ci);
            nvml.nvmlDeviceGetMemoryInfo(device, &memory);
            nvml.nvmlDeviceGetName(device, name, sizeof(name));
            const char *profile = strstr(name, " MIG ");
            printf("  %3u  %2u  %2u  %3u  %-14s %6lluMiB / %6lluMiB\n", i, gi, ci, place,
                   profile ? profile + 5 : "", memory.used >> 20, memory.total >> 20);
        }
    }
}

int print_table(const struct gpu_list *list, const char *wanted)
{
    int status = EXIT_DONE;
    table_head();
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        if (gpu->status) {
            printf("Unable to determine the device handle for gpu %u: %s\n", i,
                   nvml.nvmlErrorString(gpu->status));
            status = (int)gpu->status;
        } else if (is_selected(gpu, i, wanted))
            table_row(gpu, i);
    }
    mig_table(list, wanted);
    puts("\nProcesses: no running processes found");
    return status;
}

/* --- --query-gpu -------------------------------------------------------------------------- */

/* Write a field's value. False: no such field. */
static bool query(const struct gpu_entry *gpu, unsigned index, unsigned count, const char *field,
                  char *out, size_t size)
{
    unsigned value = 0, other = 0;
    int major = 0, minor = 0;
    nvmlMemory_t memory = {0};
    nvmlUtilization_t busy = {0};
    snprintf(out, size, "[N/A]");
    if (!strcmp(field, "index"))
        snprintf(out, size, "%u", index);
    else if (!strcmp(field, "count"))
        snprintf(out, size, "%u", count);
    else if (!strcmp(field, "name") || !strcmp(field, "gpu_name"))
        snprintf(out, size, "%s", gpu->name);
    else if (!strcmp(field, "uuid") || !strcmp(field, "gpu_uuid"))
        snprintf(out, size, "%s", gpu->uuid);
    else if (!strcmp(field, "pci.bus_id") || !strcmp(field, "gpu_bus_id"))
        snprintf(out, size, "%s", gpu->bus_id);
    else if (!strcmp(field, "serial") || !strcmp(field, "gpu_serial"))
        nvml.nvmlDeviceGetSerial(gpu->device, out, (unsigned)size);
    else if (!strcmp(field, "driver_version"))
        nvml.nvmlSystemGetDriverVersion(out, (unsigned)size);
    else if (!strncmp(field, "memory.", 7)) {
        const unsigned long long *bytes = !strcmp(field + 7, "total")  ? &memory.total
                                          : !strcmp(field + 7, "used") ? &memory.used
                                          : !strcmp(field + 7, "free") ? &memory.free
                                                                       : NULL;
        if (!bytes)
            return false;
        if (!nvml.nvmlDeviceGetMemoryInfo(gpu->device, &memory))
            snprintf(out, size, "%llu", *bytes >> 20);
    } else if (!strcmp(field, "utilization.gpu")) {
        if (!nvml.nvmlDeviceGetUtilizationRates(gpu->device, &busy))
            snprintf(out, size, "%u", busy.gpu);
    } else if (!strcmp(field, "temperature.gpu")) {
        if (!nvml.nvmlDeviceGetTemperature(gpu->device, 0, &value))
            snprintf(out, size, "%u", value);
    } else if (!strcmp(field, "power.draw") || !strcmp(field, "power.limit")) {
        if (!(field[6] == 'd' ? nvml.nvmlDeviceGetPowerUsage(gpu->device, &value)
                              : nvml.nvmlDeviceGetEnforcedPowerLimit(gpu->device, &value)))
            snprintf(out, size, "%u.%02u", value / 1000, value % 1000 / 10);
    } else if (!strcmp(field, "compute_cap")) {
        if (!nvml.nvmlDeviceGetCudaComputeCapability(gpu->device, &major, &minor))
            snprintf(out, size, "%d.%d", major, minor);
    } else if (!strcmp(field, "mig.mode.current")) {
        if (!nvml.nvmlDeviceGetMigMode(gpu->device, &value, &other))
            snprintf(out, size, "%s", value ? "Enabled" : "Disabled");
    } else
        return false;
    return true;
}

static bool has_word(const char *list, const char *word)
{
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (n == strlen(word) && strncmp(p, word, n) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

static const char *unit_of(const char *field)
{
    return !strncmp(field, "memory.", 7)        ? "MiB"
           : !strncmp(field, "power.", 6)       ? "W"
           : !strcmp(field, "utilization.gpu") ? "%"
                                                : "";
}

/* Cut the next field off a list. Returns where the rest starts. */
static const char *next_field(const char *list, char *field, size_t size)
{
    size_t n = strcspn(list, ",");
    snprintf(field, size, "%.*s", (int)n, list);
    return list + n + (list[n] == ',');
}

static void query_head(const char *fields)
{
    char field[64];
    for (const char *p = fields; *p;) {
        bool first = p == fields;
        p = next_field(p, field, sizeof(field));
        const char *unit = unit_of(field);
        printf(*unit ? "%s%s [%s]" : "%s%s", first ? "" : ", ", field, unit);
    }
    putchar('\n');
}

static void query_line(const struct gpu_entry *gpu, unsigned index, unsigned count,
                       const char *fields, bool units)
{
    char field[64], value[128];
    for (const char *p = fields; *p;) {
        bool first = p == fields;
        p = next_field(p, field, sizeof(field));
        query(gpu, index, count, field, value, sizeof(value));
        const char *unit = units && value[0] != '[' ? unit_of(field) : "";
        printf("%s%s%s%s", first ? "" : ", ", value, *unit ? " " : "", unit);
    }
    putchar('\n');
}

int print_query(const struct gpu_list *list, const char *wanted, const char *fields,
                const char *format)
{
    char field[64], value[128];
    if (!format || !has_word(format, "csv")) {
        puts("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.");
        return EXIT_INVALID_ARGUMENT;
    }
    for (const char *p = fields; *p;) {
        p = next_field(p, field, sizeof(field));
        if (!query(&list->gpus[0], 0, list->count, field, value, sizeof(value))) {
            printf("Field \"%s\" is not a valid field to query.\n", field);
            return EXIT_INVALID_ARGUMENT;
        }
    }
    if (!has_word(format, "noheader"))
        query_head(fields);
    for (unsigned i = 0; i < list->count; i++)
        if (!list->gpus[i].status && is_selected(&list->gpus[i], i, wanted))
            query_line(&list->gpus[i], i, list->count, fields, !has_word(format, "nounits"));
    return EXIT_DONE;
}
