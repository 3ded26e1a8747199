/* SPDX-License-Identifier: Apache-2.0
 *
 * Common declarations of the simulated nvidia-smi. Like the real program it loads NVML by name at
 * run time, so that a working nvidia-smi proves the injected library.
 */
#ifndef NVCT_SIM_SMI_H
#define NVCT_SIM_SMI_H

#include <stdbool.h>
#include <stddef.h>

#include "../nvml_abi.h"

/* The version of the first symbols that glibc has for this machine. */
#if defined(__x86_64__)
#define OLDEST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST_GLIBC "GLIBC_2.17"
#else
#error "the simulation is for x86_64 and aarch64"
#endif

/* Exit statuses from the real program's manual; other statuses are NVML's numbers. */
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
    X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *))                               \
    X(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t, nvmlMemory_t *))                                 \
    X(nvmlDeviceGetAttributes_v2, (nvmlDevice_t, nvmlDeviceAttributes_t *))                        \
    X(nvmlDeviceGetVbiosVersion, (nvmlDevice_t, char *, unsigned))                                 \
    X(nvmlDeviceGetGspFirmwareVersion, (nvmlDevice_t, char *))                                     \
    X(nvmlDeviceGetBrand, (nvmlDevice_t, unsigned *))                                              \
    X(nvmlDeviceGetArchitecture, (nvmlDevice_t, unsigned *))                                       \
    X(nvmlDeviceGetBoardId, (nvmlDevice_t, unsigned *))                                            \
    X(nvmlDeviceGetMultiGpuBoard, (nvmlDevice_t, unsigned *))                                      \
    X(nvmlDeviceGetVirtualizationMode, (nvmlDevice_t, unsigned *))                                 \
    X(nvmlDeviceGetDisplayActive, (nvmlDevice_t, unsigned *))                                      \
    X(nvmlDeviceGetDisplayMode, (nvmlDevice_t, unsigned *))                                        \
    X(nvmlDeviceGetAccountingMode, (nvmlDevice_t, unsigned *))                                     \
    X(nvmlDeviceGetAccountingBufferSize, (nvmlDevice_t, unsigned *))                               \
    X(nvmlDeviceGetCurrPcieLinkGeneration, (nvmlDevice_t, unsigned *))                             \
    X(nvmlDeviceGetMaxPcieLinkGeneration, (nvmlDevice_t, unsigned *))                              \
    X(nvmlDeviceGetGpuMaxPcieLinkGeneration, (nvmlDevice_t, unsigned *))                           \
    X(nvmlDeviceGetCurrPcieLinkWidth, (nvmlDevice_t, unsigned *))                                  \
    X(nvmlDeviceGetMaxPcieLinkWidth, (nvmlDevice_t, unsigned *))                                   \
    X(nvmlDeviceGetFanSpeed, (nvmlDevice_t, unsigned *))                                           \
    X(nvmlDeviceGetPerformanceState, (nvmlDevice_t, unsigned *))                                   \
    X(nvmlDeviceGetComputeMode, (nvmlDevice_t, unsigned *))                                        \
    X(nvmlDeviceSetComputeMode, (nvmlDevice_t, unsigned))                                          \
    X(nvmlDeviceGetCurrentClocksEventReasons, (nvmlDevice_t, unsigned long long *))                \
    X(nvmlDeviceGetEncoderUtilization, (nvmlDevice_t, unsigned *, unsigned *))                     \
    X(nvmlDeviceGetDecoderUtilization, (nvmlDevice_t, unsigned *, unsigned *))                     \
    X(nvmlDeviceGetJpgUtilization, (nvmlDevice_t, unsigned *, unsigned *))                         \
    X(nvmlDeviceGetOfaUtilization, (nvmlDevice_t, unsigned *, unsigned *))                         \
    X(nvmlDeviceGetEccMode, (nvmlDevice_t, unsigned *, unsigned *))                                \
    X(nvmlDeviceGetRetiredPagesPendingStatus, (nvmlDevice_t, unsigned *))                          \
    X(nvmlDeviceGetRemappedRows, (nvmlDevice_t, unsigned *, unsigned *, unsigned *, unsigned *))   \
    X(nvmlDeviceGetTemperatureThreshold, (nvmlDevice_t, unsigned, unsigned *))                     \
    X(nvmlDeviceGetPowerManagementMode, (nvmlDevice_t, unsigned *))                                \
    X(nvmlDeviceGetPowerManagementLimit, (nvmlDevice_t, unsigned *))                               \
    X(nvmlDeviceGetPowerManagementDefaultLimit, (nvmlDevice_t, unsigned *))                        \
    X(nvmlDeviceGetPowerManagementLimitConstraints, (nvmlDevice_t, unsigned *, unsigned *))        \
    X(nvmlDeviceGetClockInfo, (nvmlDevice_t, unsigned, unsigned *))                                \
    X(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t, unsigned, unsigned *))                             \
    X(nvmlDeviceGetApplicationsClock, (nvmlDevice_t, unsigned, unsigned *))                        \
    X(nvmlDeviceGetTopologyCommonAncestor, (nvmlDevice_t, nvmlDevice_t, unsigned *))               \
    X(nvmlDeviceGetNvLinkState, (nvmlDevice_t, unsigned, unsigned *))                              \
    X(nvmlDeviceGetNvLinkRemoteDeviceType, (nvmlDevice_t, unsigned, unsigned *))                   \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t, unsigned, nvmlPciInfo_t *))              \
    X(nvmlDeviceGetCpuAffinity, (nvmlDevice_t, unsigned, unsigned long *))                         \
    X(nvmlDeviceGetMemoryAffinity, (nvmlDevice_t, unsigned, unsigned long *, unsigned))            \
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
    X(nvmlComputeInstanceDestroy, (nvmlComputeInstance_t))                                         \
    X(nvctDeviceReset, (nvmlDevice_t)) /* of the simulated NVML only */

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
    unsigned index;
    bool mig;
};

struct gpu_list {
    unsigned count;
    struct gpu_entry gpus[MAX_DEVICES];
};

struct versions {
    char driver[80], cuda[24];
};

/* The files in their order: each calls those above it only. */

/* dl.c */
void *open_library(const char *name, int flags);
void *find_symbol(void *library, const char *name);

/* words.c */
bool parse_unsigned(const char *text, unsigned *out);
bool has_word(const char *list, const char *word);
const char *next_word(const char *list, char *word, size_t size); /* returns the list after it */

/* gpus.c */
bool load_nvml(void);
nvmlReturn_t list_gpus(struct gpu_list *list);
int fail(const char *operation, nvmlReturn_t result); /* prints, returns the exit status */
int report_unavailable(const struct gpu_entry *gpu);  /* the same, of a GPU without a handle */
bool is_selected(const struct gpu_entry *gpu, const char *ids); /* index, UUID, bus id; or NULL */
unsigned max_mig_devices(const struct gpu_entry *gpu);
nvmlDevice_t mig_device(const struct gpu_entry *gpu, unsigned index); /* or NULL */
void read_versions(struct versions *versions);

/* values.c: "" or "N/A" if the GPU has no such value; NULL if there is no such field. */
const char *field_name(const char *name, const char **unit);
void write_bare(const struct gpu_entry *gpu, const char *name, char *out, size_t size);
void write_value(const struct gpu_entry *gpu, const char *name, char *out, size_t size);

/* table.c */
int print_table(const struct gpu_list *list, const char *ids);

/* query.c */
int print_processes(const char *names, const char *format);
int print_query(const struct gpu_list *list, const char *ids, const char *names,
                const char *format);

/* report.c */
int print_report(const struct gpu_list *list, const char *ids, const char *groups, bool xml);

/* compute_mode.c */
int set_compute_mode(const struct gpu_list *list, const char *ids, const char *mode);
int set_time_slice(const struct gpu_list *list, const char *ids, const char *number);

/* reset.c */
int reset_gpus(const struct gpu_list *list, const char *ids);

/* topology.c */
int run_topology(const struct gpu_list *list, int argc, char **argv);

/* mig.c */
int run_mig(const struct gpu_list *list, int argc, char **argv);
int set_mig_mode(const struct gpu_list *list, const char *ids, const char *mode);

#endif
