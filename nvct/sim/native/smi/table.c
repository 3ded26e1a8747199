/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi's table, in the layout of driver 580.
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

/* "31C" or "7W", right-aligned by the caller; "N/A" where the GPU has no such value. */
static void write_number(nvmlReturn_t result, unsigned number, const char *unit, char out[16])
{
    if (result)
        snprintf(out, 16, "N/A");
    else
        snprintf(out, 16, "%u%s", number, unit);
}

static void table_row(const struct gpu_entry *gpu, unsigned index)
{
    unsigned number = 0, state = 0, persistence = 0, mode, pending;
    nvmlMemory_v2_t memory = {.version = NVML_STRUCT(nvmlMemory_v2_t, 2)};
    nvmlUtilization_t busy = {0};
    unsigned long long errors = 0;
    char ecc[24] = "N/A", used[48], fan[16], celsius[16], power[16], limit[16], percent[16];
    nvmlReturn_t result = nvml.nvmlDeviceGetFanSpeed(gpu->device, &number);
    write_number(result, number, "%", fan);
    result = nvml.nvmlDeviceGetTemperature(gpu->device, 0, &number);
    write_number(result, number, "C", celsius);
    result = nvml.nvmlDeviceGetPowerUsage(gpu->device, &number);
    write_number(result, number / 1000, "W", power);
    result = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu->device, &number);
    write_number(result, number / 1000, "W", limit);
    result = nvml.nvmlDeviceGetUtilizationRates(gpu->device, &busy);
    write_number(result, busy.gpu, "%", percent);
    nvml.nvmlDeviceGetPersistenceMode(gpu->device, &persistence);
    nvml.nvmlDeviceGetPerformanceState(gpu->device, &state);
    nvml.nvmlDeviceGetMemoryInfo_v2(gpu->device, &memory);
    if (nvml.nvmlDeviceGetTotalEccErrors(gpu->device, 1, 0, &errors) == NVML_SUCCESS)
        snprintf(ecc, sizeof(ecc), "%llu", errors);
    const char *mig = nvml.nvmlDeviceGetMigMode(gpu->device, &mode, &pending) ? "N/A"
                      : mode                                                   ? "Enabled"
                                                                               : "Disabled";
    snprintf(used, sizeof(used), "%6lluMiB / %6lluMiB", memory.used >> 20, memory.total >> 20);
    printf("| %3u  %-26.26s     %-3s | %18s Off | %20s |\n", index, gpu->name,
           persistence ? "On" : "Off", gpu->bus_id, gpu->mig ? "On" : ecc);
    printf("| %3s  %4s    P%u           %5s / %5s | %22s | %7s      Default |\n", fan, celsius,
           state, power, limit, used, percent);
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

static void mig_row(unsigned index, unsigned place, nvmlDevice_t device)
{
    unsigned gi = 0, ci = 0;
    nvmlMemory_t memory = {0}, bar1 = {0};
    nvmlDeviceAttributes_t has = {0};
    nvml.nvmlDeviceGetGpuInstanceId(device, &gi);
    nvml.nvmlDeviceGetComputeInstanceId(device, &ci);
    nvml.nvmlDeviceGetMemoryInfo(device, &memory);
    nvml.nvmlDeviceGetBAR1MemoryInfo(device, &bar1);
    nvml.nvmlDeviceGetAttributes_v2(device, &has);
    printf("| %2u  %3u  %2u  %2u  | %15lluMiB / %5lluMiB    | %3u     0 | %2u  %2u   %2u   %2u   %2u |\n",
           index, gi, ci, place, memory.used >> 20, memory.total >> 20, has.multiprocessorCount,
           has.sharedCopyEngineCount, has.sharedEncoderCount, has.sharedDecoderCount,
           has.sharedOfaCount, has.sharedJpegCount);
    printf("|                  | %15lluMiB / %6lluMiB   |           |                       |\n",
           bar1.used >> 20, bar1.total >> 20);
    puts(MIG_RULE);
}

static void mig_table(const struct gpu_list *list, const char *wanted)
{
    bool head = false;
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        for (unsigned place = 0, n = 0; is_selected(gpu, i, wanted) && place < max_mig_devices(gpu);
             place++) {
            nvmlDevice_t device = mig_device(gpu, place, &n);
            if (!device)
                continue;
            if (!head)
                mig_head();
            head = true;
            mig_row(i, place, device);
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
    puts("\n" WIDE "\n"
         "| Processes:                                                                              |\n"
         "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
         "|        ID   ID                                                               Usage      |\n"
         "|=========================================================================================|\n"
         "|  No running processes found                                                             |\n"
         WIDE);
    return status;
}
