/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the simulated nvidia-smi share: NVML, loaded by name at run time as the real
 * program does (so that it proves the injected library), and the options.
 */
#ifndef NVCT_SIM_SMI_H
#define NVCT_SIM_SMI_H

#include <stdbool.h>
#include <stddef.h>

#include "nvml_abi.h"

/* Exit statuses of the real program, from its manual; NVML's own numbers beside them. */
enum { EXIT_DONE = 0, EXIT_INVALID_ARGUMENT = 2, EXIT_NOT_FOUND = 6 };

enum { MAX_DEVICES = 64, GPU_PROFILES = 0x12, COMPUTE_PROFILES = 9, MAX_INSTANCES = 16 };

#define NVML_FUNCTIONS(X)                                                                          \
    X(nvmlInit_v2, (void))                                                                         \
    X(nvmlShutdown, (void))                                                                        \
    X(nvmlSystemGetDriverVersion, (char *, unsigned))                                              \
    X(nvmlSystemGetNVMLVersion, (char *, unsigned))                                                \
    X(nvmlSystemGetCudaDriverVersion_v2, (int *))                                                  \
    X(nvmlDeviceGetCount_v2, (unsigned *))                                                         \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                                   \
    X(nvmlDeviceGetName, (nvmlDevice_t, char *, unsigned))                                         \
    X(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned))                                         \
    X(nvmlDeviceGetSerial, (nvmlDevice_t, char *, unsigned))                                       \
    X(nvmlDeviceGetMinorNumber, (nvmlDevice_t, unsigned *))                                        \
    X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *))                                    \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))                                     \
    X(nvmlDeviceGetTemperature, (nvmlDevice_t, unsigned, unsigned *))                              \
    X(nvmlDeviceGetPowerUsage, (nvmlDevice_t, unsigned *))                                         \
    X(nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t, unsigned *))                                 \
    X(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))                          \
    X(nvmlDeviceGetPersistenceMode, (nvmlDevice_t, unsigned *))                                    \
    X(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t, int *, int *))                            \
    X(nvmlDeviceGetTotalEccErrors, (nvmlDevice_t, unsigned, unsigned, unsigned long long *))       \
    X(nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *))                                \
    X(nvmlDeviceSetMigMode, (nvmlDevice_t, unsigned, nvmlReturn_t *))                              \
    X(nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t, unsigned *))                                  \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t, unsigned, nvmlDevice_t *))               \
    X(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t, unsigned *))                                      \
    X(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t, unsigned *))                                  \
    X(nvmlDeviceGetGpuInstanceProfileInfoV,                                                        \
      (nvmlDevice_t, unsigned, nvmlGpuInstanceProfileInfo_v2_t *))                                 \
    X(nvmlDeviceGetGpuInstanceRemainingCapacity, (nvmlDevice_t, unsigned, unsigned *))             \
    X(nvmlDeviceGetGpuInstances, (nvmlDevice_t, unsigned, nvmlGpuInstance_t *, unsigned *))        \
    X(nvmlGpuInstanceGetInfo, (nvmlGpuInstance_t, nvmlGpuInstanceInfo_t *))                        \
    X(nvmlDeviceCreateGpuInstance, (nvmlDevice_t, unsigned, nvmlGpuInstance_t *))                  \
    X(nvmlDeviceCreateGpuInstanceWithPlacement,                                                    \
      (nvmlDevice_t, unsigned, const nvmlPlacement_t *, nvmlGpuInstance_t *))                      \
    X(nvmlGpuInstanceDestroy, (nvmlGpuInstance_t))                                                 \
    X(nvmlGpuInstanceGetComputeInstanceProfileInfoV,                                               \
      (nvmlGpuInstance_t, unsigned, unsigned, nvmlComputeInstanceProfileInfo_v3_t *))              \
    X(nvmlGpuInstanceGetComputeInstances,                                                          \
      (nvmlGpuInstance_t, unsigned, nvmlComputeInstance_t *, unsigned *))                          \
    X(nvmlGpuInstanceCreateComputeInstance,                                                        \
      (nvmlGpuInstance_t, unsigned, nvmlComputeInstance_t *))                                      \
    X(nvmlComputeInstanceGetInfo_v2, (nvmlComputeInstance_t, nvmlComputeInstanceInfo_t *))         \
    X(nvmlComputeInstanceDestroy, (nvmlComputeInstance_t))

struct nvml {
#define X(name, arguments) nvmlReturn_t(*name) arguments;
    NVML_FUNCTIONS(X)
#undef X
    const char *(*nvmlErrorString)(nvmlReturn_t);
};
extern struct nvml nvml;

struct gpu_entry {
    nvmlDevice_t device;
    nvmlReturn_t status; /* of getting the handle */
    char name[NVML_NAME_LENGTH], uuid[NVML_NAME_LENGTH], bus_id[NVML_BUS_ID_LENGTH];
    bool mig;
};

struct gpu_list {
    unsigned count;
    struct gpu_entry gpus[MAX_DEVICES];
};

/* nvidia_smi.c */
int fail(const char *what, nvmlReturn_t result); /* prints, returns the exit status */
bool parse_unsigned(const char *text, unsigned *out);
bool is_selected(const struct gpu_entry *gpu, unsigned index, const char *wanted);
nvmlDevice_t mig_device(const struct gpu_entry *gpu, unsigned place, unsigned *n);
unsigned max_mig_devices(const struct gpu_entry *gpu);

/* smi_table.c */
int print_table(const struct gpu_list *list, const char *wanted);
int print_query(const struct gpu_list *list, const char *wanted, const char *fields,
                const char *format);

/* smi_mig.c */
int run_mig(const struct gpu_list *list, int argc, char **argv);
int set_mig_mode(const struct gpu_list *list, const char *wanted, const char *mode);

#endif
