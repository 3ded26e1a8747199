/* SPDX-License-Identifier: Apache-2.0
 *
 * Common declarations of the simulated NVML: the state as read from its file, handles, and how an
 * entry point begins and ends.
 *
 * The state file stands for the kernel driver. Its text starts at STATE_OFFSET and has one record
 * a line, with fields `key=value` separated by TAB. The first line is `nvct-sim 1 <generation>`,
 * the last `end <generation>`: while a write is in progress, the two generations differ.
 *
 * Optional keys. gpu: `vbios`, `board`, `util` (per cent), `used` (bytes), `ecc`, `eccerrors`,
 * `persistence`, `addressing` (NVML's number), `ecccapable`, `class`, `bar1` (MiB), `cores`,
 * `buswidth` (of the memory, in bits), `fan` (per cent), `vgpuhost` (of a vGPU), `path`, `nvlink`
 * (NVML's number of the version) with `links`, such as `1,1,s0`; `migreset` (whether a change of MIG
 * mode waits for a reset), `migflip` (whether a reset changes the mode). profile: `kind`
 * (NVML_GPU_INSTANCE_PROFILE_*, by default from the name). ci: `start`, `size`. event: `gi`, `ci`.
 * process: `gpu`, `pid`, `memory` (bytes), `gi`, `ci`, `sm` and `mem` (per cent), `graphics` (0, 1).
 * metrics.c has further keys of a gpu: counters, and values that are derived without them.
 */
#ifndef NVCT_SIM_SIMULATION_H
#define NVCT_SIM_SIMULATION_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "../nvml_abi.h"

#define API __attribute__((visibility("default")))

enum {
    STATE_OFFSET = 8192, /* the bytes before it are a small ELF file */
    STATE_SIZE = 262144,
    TEXT_SIZE = STATE_SIZE - STATE_OFFSET,
    MAX_GPUS = 64,
    MAX_PROFILES = 512,
    MAX_GPU_INSTANCES = 512,
    MAX_COMPUTE_INSTANCES = 512,
    MAX_EVENTS = 256,
    MAX_PROCESSES = 256,
    MAX_SWITCHES = 32,
    MAX_LINKS = 18,
    PATH_LENGTH = 4,
    MAX_PLACEMENTS = 16,
    GPU_INSTANCES_PER_GPU = 15, /* mig-minors of the real driver: gi0 to gi14, ci0 to ci7 */
    COMPUTE_INSTANCES_PER_INSTANCE = 8,
    SERIAL_LENGTH = 32,
    PROFILE_NAME_LENGTH = 32,
    MIG_NAME_LENGTH = PROFILE_NAME_LENGTH + 16, /* and "1c." in front */
    UUID_LENGTH = 96,
};

enum visibility { NOT_PROBED, VISIBLE, HIDDEN };

struct pci_device {
    unsigned domain, bus, slot, id, subsystem, class_code;
};

/* The peer of an NVLink: a GPU, or an NVSwitch. */
struct nvlink {
    bool to_switch;
    unsigned char index;
};

/* In the order of the names in metrics.c. */
enum metric {
    ECC_CORRECTED, ECC_UNCORRECTED, ECC_CORRECTED_TOTAL, ECC_UNCORRECTED_TOTAL,
    ROWS_CORRECTED, ROWS_UNCORRECTED, REMAP_PENDING, REMAP_FAILED,
    RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING,
    THROTTLE, RECOVERY, POWER_USAGE, ENERGY, ENERGY_AT, MEMORY_TEMPERATURE,
    MEMORY_UTILIZATION, ENCODER_UTILIZATION, DECODER_UTILIZATION, SM_CLOCK, MEMORY_CLOCK,
    PCIE_REPLAYS, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX,
    NVLINK_CRC_FLIT, NVLINK_CRC_DATA, NVLINK_REPLAYS, NVLINK_RECOVERIES,
    VIOLATION_POWER, VIOLATION_THERMAL,
    GR_ACTIVE, SM_ACTIVE, SM_OCCUPANCY, TENSOR_ACTIVE, DRAM_ACTIVE, FP64_ACTIVE, FP32_ACTIVE,
    FP16_ACTIVE, COMPUTE_MODE, HANG_UNTIL, ECC_NEXT, PCIE_WIDTH, PCIE_GENERATION, NVLINKS_DOWN,
    METRICS,
};

struct gpu {
    unsigned index, minor, cc_major, cc_minor, arch, brand;
    struct pci_device pci;
    unsigned path[PATH_LENGTH]; /* NUMA node, host bridge, upper and lower PCIe switch */
    unsigned nvlink, n_links;
    struct nvlink links[MAX_LINKS];
    unsigned power, temperature, utilization, board, persistence, ecc, addressing;
    unsigned cores, bus_width, fan; /* 0: unknown */
    unsigned long long memory, memory_used, memory_reserved, ecc_errors, bar1;
    unsigned long long metrics[METRICS], has_metric; /* a bit for each that the state has */
    bool ecc_capable, mig_capable, mig, mig_pending, mig_needs_reset, lost, is_virtual,
        has_memory_used;
    char uuid[UUID_LENGTH], name[NVML_NAME_LENGTH], bus_id[NVML_BUS_ID_LENGTH];
    char serial[SERIAL_LENGTH], vbios[32];
    enum visibility visibility;
};

struct profile {
    int gpu; /* -1: every MIG-capable GPU */
    unsigned id, kind, slices, ce, dec, jpeg, ofa, sm, max, n_placements;
    unsigned long long memory_mb;
    char name[PROFILE_NAME_LENGTH];
    nvmlPlacement_t placements[MAX_PLACEMENTS];
};

struct gpu_instance {
    unsigned gpu, id, profile, start, size, cap;
    bool has_cap;
    enum visibility visibility;
};

struct compute_instance {
    unsigned gpu, gi, id, profile, start, size, cap;
    bool has_cap;
    char uuid[UUID_LENGTH];
    enum visibility visibility;
};

struct event {
    unsigned long long seq, type, data;
    unsigned gpu, gi, ci;
};

enum { NO_ID = 0xFFFFFFFF }; /* of a process that uses a whole GPU (nvml.h) */
struct process {
    unsigned gpu, gi, ci, pid, sm, memory_utilization;
    unsigned long long memory;
    bool graphics;
};

enum fault { NO_FAULT, HANG, HANG_HARD, CRASH };

struct nvswitch {
    struct pci_device pci;
};

struct snapshot {
    unsigned long generation;
    char driver[80], tree[PATH_MAX];
    unsigned cuda, caps_major;
    unsigned n_gpus, n_profiles, n_gpu_instances, n_compute_instances, n_events, n_switches,
        n_processes;
    struct gpu gpus[MAX_GPUS];
    struct profile profiles[MAX_PROFILES];
    struct gpu_instance gpu_instances[MAX_GPU_INSTANCES];
    struct compute_instance compute_instances[MAX_COMPUTE_INSTANCES];
    struct event events[MAX_EVENTS];
    struct process processes[MAX_PROCESSES];
    struct nvswitch switches[MAX_SWITCHES];
    enum fault fault;
    unsigned long long fault_until; /* milliseconds since 1970 */
};

struct text {
    char data[TEXT_SIZE + 1];
    size_t length;
};

/* Selects the lines of one kind whose fields have these values. */
enum { MATCH_FIELDS = 3 };
struct match {
    const char *record;
    struct {
        const char *key;
        unsigned value;
    } fields[MATCH_FIELDS];
};

/* The files in their order: each calls those above it only. */

/* clock.c */
void wait_ms(unsigned ms);
unsigned long long now_us(void); /* since 1970 */

/* record.c: numbers and fields of one line. */
bool parse_number(const char **at, unsigned long long *value);
bool field_text(const char *line, const char *key, char *out, size_t size);
bool field_number(const char *line, const char *key, unsigned long long *value);
unsigned field_unsigned(const char *line, const char *key, unsigned fallback);

/* lookup.c: NULL if there is none. */
struct gpu *find_gpu(struct snapshot *s, unsigned index);
struct gpu_instance *find_gpu_instance(struct snapshot *s, unsigned gpu, unsigned id);
struct compute_instance *find_compute_instance(struct snapshot *s, unsigned gpu, unsigned gi,
                                               unsigned id);
const struct profile *find_profile(const struct snapshot *s, unsigned gpu, unsigned id);

/* slices.c */
unsigned compute_slices(unsigned profile);
unsigned gpu_slices(const struct snapshot *s, unsigned gpu);
unsigned multiprocessors(const struct profile *gi, unsigned slices);
void name_profile(const struct profile *gi, unsigned slices, char *out, size_t size);

/* metrics.c */
void parse_metrics(const char *line, struct gpu *gpu);
bool find_metric(const struct gpu *gpu, enum metric metric, unsigned long long *out);
unsigned long long metric_or(const struct gpu *gpu, enum metric metric, unsigned long long otherwise);

/* gpu_record.c, mig_record.c: one line; false if it is damaged. */
bool parse_gpu(const char *line, struct gpu *gpu);
bool parse_switch(const char *line, struct nvswitch *out);
void parse_process(const char *line, struct process *process);
bool parse_profile(const char *line, struct profile *profile);
bool parse_gpu_instance(const char *line, struct gpu_instance *gi);
bool parse_compute_instance(const char *line, struct compute_instance *ci);
unsigned profile_kind(const struct snapshot *s, const struct profile *profile);
void place_compute_instances(struct snapshot *s);
void parse_capability(struct snapshot *s, const char *line);

/* snapshot.c: all lines. */
nvmlReturn_t parse_snapshot(const struct text *text, struct snapshot *out);

/* text.c: changes to the lines. */
nvmlReturn_t text_append(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void text_remove(struct text *text, const struct match *match);
nvmlReturn_t text_set(struct text *text, const struct match *match, const char *key,
                      const char *value);

/* state.c: the file, read and changed in place. */
nvmlReturn_t state_open(const char *path);
void state_close(void);
nvmlReturn_t state_refresh(struct snapshot *snapshot);
int state_descriptor(void);
int state_watch(const char *tree); /* non-blocking inotify; -1 if the tree cannot be seen */
nvmlReturn_t state_edit(nvmlReturn_t (*edit)(struct snapshot *now, struct text *text, void *arg),
                        void *arg);

/* visibility.c: a device is visible if its nodes can be opened. */
extern const char *device_directory;
nvmlReturn_t probe_control_node(void);
bool gpu_is_visible(struct gpu *gpu);
bool compute_instance_is_visible(struct snapshot *s, struct compute_instance *ci);

/* fault.c: hangs or crashes here if the state has a fault. The caller holds the lock. */
void apply_fault(struct snapshot *s);

/* core.c: the lock, and handles. */
enum kind { GPU_HANDLE = 1, MIG_HANDLE, GPU_INSTANCE_HANDLE, COMPUTE_INSTANCE_HANDLE };

struct handle {
    enum kind kind;
    unsigned gpu, gi, ci;
};

/* What a handle refers to in the current state; gi and ci are NULL for a whole GPU. */
struct target {
    struct snapshot *state;
    struct gpu *gpu;
    struct gpu_instance *gi;
    struct compute_instance *ci;
};

enum accept { WHOLE_GPU, ANY_DEVICE, MIG_DEVICE };

/* Take the lock and read the state. The lock is held only if the result is NVML_SUCCESS. */
nvmlReturn_t begin(struct snapshot **state);
nvmlReturn_t begin_device(nvmlDevice_t device, enum accept accept, struct target *target);
nvmlReturn_t begin_instance(struct handle *instance, enum kind kind, struct target *target);
nvmlReturn_t finish(nvmlReturn_t result); /* releases the lock, returns its argument */

nvmlReturn_t set_handle(struct handle **out, enum kind kind, unsigned gpu, unsigned gi,
                        unsigned ci);
nvmlReturn_t resolve(struct snapshot *state, nvmlDevice_t device, enum accept accept,
                     struct target *target);
nvmlReturn_t copy_text(const char *from, char *to, unsigned length);
bool is_initialized(void);

/* answer.c: one number of a GPU, or an empty list. */
typedef nvmlReturn_t (*reader_t)(const struct gpu *gpu, unsigned argument, unsigned *out);
nvmlReturn_t read_number(nvmlDevice_t device, reader_t reader, unsigned argument, unsigned *out);
nvmlReturn_t read_constant(const struct gpu *gpu, unsigned value, unsigned *out);
nvmlReturn_t empty_list(nvmlDevice_t device, unsigned *count);

#define CONSTANT(function, value)                                                                  \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *out)                                  \
    {                                                                                              \
        return read_number(device, read_constant, value, out);                                     \
    }

#define EMPTY_LIST(function)                                                                       \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *count, void *items)                   \
    {                                                                                              \
        (void)items;                                                                               \
        return empty_list(device, count);                                                          \
    }

/* clocks.c, ecc.c, telemetry.c: readers that other files need, too. */
enum { ARCH_VOLTA = 5, ARCH_TURING = 6, ARCH_AMPERE = 7, ARCH_ADA = 8, ARCH_HOPPER = 9 };
enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_KINDS };
enum { BRAND_GEFORCE = 5 };
nvmlReturn_t read_max_clock(const struct gpu *gpu, unsigned kind, unsigned *out);
nvmlReturn_t read_remapping(const struct gpu *gpu, unsigned argument, unsigned *out);
nvmlReturn_t read_retiring(const struct gpu *gpu, unsigned argument, unsigned *out);
nvmlReturn_t read_generation(const struct gpu *gpu, unsigned argument, unsigned *out);

/* pci.c */
void fill_pci_info(const struct pci_device *device, nvmlPciInfo_t *pci);
void shorten_pci_info(const nvmlPciInfo_t *v3, nvmlPciInfo_v2_t *pci);

/* mig_files.c: the driver's files of MIG instances. */
enum { NO_INSTANCE = -1 };
unsigned cap_minor(unsigned gpu_minor, unsigned gi, int ci);
nvmlReturn_t check_tree(const struct snapshot *s);
nvmlReturn_t add_capability(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci);
void remove_capability(const struct snapshot *s, unsigned gpu_minor, unsigned gi, int ci,
                       unsigned minor);

/* mig_change.c */
struct change {
    unsigned gpu, gi, ci, profile;
    const nvmlPlacement_t *placement; /* NULL: the first that is free */
    bool on, pending;
};
bool overlaps(nvmlPlacement_t a, nvmlPlacement_t b);

/* uuid5.c */
void make_mig_uuid(const char *gpu_uuid, unsigned gi, unsigned ci, char *out, size_t size);

#endif
