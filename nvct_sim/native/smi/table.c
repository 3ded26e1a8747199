/* SPDX-License-Identifier: Apache-2.0
 *
 * The table that nvidia-smi prints without options, in the layout of driver 580.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define RULE "+-----------------------------------------+------------------------+----------------------+"

static void table_head(void)
{
    struct versions versions;
    read_versions(&versions);
    printf("+-----------------------------------------------------------------------------------------+\n"
           "| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n" RULE "\n"
           "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
           "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
           "|                                         |                        |               MIG M. |\n"
           "|=========================================+========================+======================|\n",
           versions.driver, versions.driver, versions.cuda);
}

enum { CELL_SIZE = 32 };

/* A field's value without decimals, such as "31C" or "7W"; "N/A" if the GPU has no such value. */
static void write_cell(const struct gpu_entry *gpu, const char *field, const char *unit, char *out)
{
    char value[CELL_SIZE - 8];
    write_bare(gpu, field, value, sizeof(value));
    value[strcspn(value, ".")] = '\0';
    snprintf(out, CELL_SIZE, "%s%s", *value ? value : "N/A", *value ? unit : "");
}

static void table_row(const struct gpu_entry *gpu)
{
    char persistence[CELL_SIZE], ecc[CELL_SIZE], fan[CELL_SIZE], celsius[CELL_SIZE],
        state[CELL_SIZE], power[CELL_SIZE], limit[CELL_SIZE], used[CELL_SIZE], total[CELL_SIZE],
        percent[CELL_SIZE], mig[CELL_SIZE], memory[3 * CELL_SIZE];
    write_cell(gpu, "persistence_mode", "", persistence);
    write_cell(gpu, "ecc.errors.uncorrected.volatile.total", "", ecc);
    write_cell(gpu, "fan.speed", "%", fan);
    write_cell(gpu, "temperature.gpu", "C", celsius);
    write_cell(gpu, "pstate", "", state);
    write_cell(gpu, "power.draw", "W", power);
    write_cell(gpu, "enforced.power.limit", "W", limit);
    write_cell(gpu, "memory.used", "MiB", used);
    write_cell(gpu, "memory.total", "MiB", total);
    write_cell(gpu, "utilization.gpu", "%", percent);
    write_cell(gpu, "mig.mode.current", "", mig);
    snprintf(memory, sizeof(memory), "%9s / %9s", used, total);
    printf("| %3u  %-26.26s     %-3s | %18s Off | %20s |\n", gpu->index, gpu->name,
           strcmp(persistence, "Enabled") ? "Off" : "On", gpu->bus_id, gpu->mig ? "On" : ecc);
    printf("| %3s  %4s    %s           %5s / %5s | %22s | %7s      Default |\n", fan, celsius,
           state, power, limit, memory, percent);
    printf("|                                         |                        | %20s |\n" RULE "\n",
           mig);
}

#define WIDE "+-----------------------------------------------------------------------------------------+"
#define MIG_RULE                                                                                   \
    "+------------------+----------------------------------+-----------+-----------------------+"

static void mig_head(void)
{
    puts("\n" WIDE "\n"
         "| MIG devices:                                                                            |\n"
         MIG_RULE "\n"
         "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n"
         "|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
         "|                  |                                  |        ECC|                       |\n"
         "|==================+==================================+===========+=======================|");
}

static void mig_row(unsigned gpu, unsigned index, nvmlDevice_t device)
{
    unsigned gi = 0, ci = 0;
    nvmlMemory_t memory = {0}, bar1 = {0};
    nvmlDeviceAttributes_t attributes = {0};
    nvml.nvmlDeviceGetGpuInstanceId(device, &gi);
    nvml.nvmlDeviceGetComputeInstanceId(device, &ci);
    nvml.nvmlDeviceGetMemoryInfo(device, &memory);
    nvml.nvmlDeviceGetBAR1MemoryInfo(device, &bar1);
    nvml.nvmlDeviceGetAttributes_v2(device, &attributes);
    printf("| %2u  %3u  %2u  %2u  | %15lluMiB / %5lluMiB    | %3u     0 | %2u  %2u   %2u   %2u   %2u |\n",
           gpu, gi, ci, index, memory.used >> 20, memory.total >> 20, attributes.multiprocessorCount,
           attributes.sharedCopyEngineCount, attributes.sharedEncoderCount, attributes.sharedDecoderCount,
           attributes.sharedOfaCount, attributes.sharedJpegCount);
    printf("|                  | %15lluMiB / %6lluMiB   |           |                       |\n",
           bar1.used >> 20, bar1.total >> 20);
    puts(MIG_RULE);
}

static void mig_table(const struct gpu_list *list, const char *ids)
{
    bool has_head = false;
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        unsigned count = is_selected(gpu, ids) ? max_mig_devices(gpu) : 0;
        for (unsigned index = 0; index < count; index++) {
            nvmlDevice_t device = mig_device(gpu, index);
            if (!device)
                continue;
            if (!has_head)
                mig_head();
            has_head = true;
            mig_row(i, index, device);
        }
    }
}

int print_table(const struct gpu_list *list, const char *ids)
{
    int status = EXIT_DONE;
    table_head();
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        if (gpu->status)
            status = report_unavailable(gpu);
        else if (is_selected(gpu, ids))
            table_row(gpu);
    }
    mig_table(list, ids);
    puts("\n" WIDE "\n"
         "| Processes:                                                                              |\n"
         "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
         "|        ID   ID                                                               Usage      |\n"
         "|=========================================================================================|\n"
         "|  No running processes found                                                             |\n"
         WIDE);
    return status;
}
