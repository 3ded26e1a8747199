/* SPDX-License-Identifier: Apache-2.0
 *
 * A table of nvidia-smi's values of a GPU, by the names of --query-gpu: which NVML function returns
 * each, and how it is printed. query.c, report.c and table.c show them.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "smi.h"

/* How a value is read. NVML's function returns NUMBER: one number; KIND: one number, for the kind in
 * `argument`; PAIR: two numbers, `argument` selects one; TEXT: a text. CUSTOM: see `write`. */
enum call { NUMBER, KIND, PAIR, TEXT, CUSTOM };
enum print { DECIMAL, HEX, STATE, MILLIWATTS };

struct field {
    const char *name, *unit;
    enum call call;
    size_t function; /* in struct nvml */
    unsigned argument;
    enum print print;
    const char *const *words; /* for each number, ended by NULL; instead of `print` */
    void (*write)(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size);
};

typedef nvmlReturn_t (*number_t)(nvmlDevice_t, unsigned *);
typedef nvmlReturn_t (*kind_t)(nvmlDevice_t, unsigned, unsigned *);
typedef nvmlReturn_t (*pair_t)(nvmlDevice_t, unsigned *, unsigned *);
typedef nvmlReturn_t (*text_t)(nvmlDevice_t, char *, unsigned);

/* --- words --------------------------------------------------------------------------------- */

static const char *const modes[] = {"Disabled", "Enabled", NULL};
static const char *const no_yes[] = {"No", "Yes", NULL};
static const char *const compute_modes[] = {"Default", "Exclusive_Thread", "Prohibited",
                                            "Exclusive_Process", NULL};
static const char *const virtualization_modes[] = {"None", "Pass-Through", "VGPU", "Host VGPU",
                                                   "Host VSGA", NULL};
static const char *const architectures[] = {
    "Unknown", "Unknown", "Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere",
    "Ada Lovelace", "Hopper", "Blackwell", NULL};
static const char *const brands[] = {
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan", "NVIDIA vApps", "NVIDIA vPC",
    "NVIDIA Virtual Compute Server", "NVIDIA RTX Virtual Workstation", "NVIDIA Cloud Gaming",
    "Quadro RTX", "NVIDIA RTX", "NVIDIA", NULL};

/* --- values that are not one answer of NVML ------------------------------------------------- */

#define UNUSED __attribute__((unused))
#define WRITE(name)                                                                                \
    static void name(const struct gpu_entry *gpu UNUSED, unsigned argument UNUSED,                 \
                     char *out UNUSED, size_t size UNUSED)

WRITE(write_nothing)
{
}

WRITE(write_index)
{
    snprintf(out, size, "%u", gpu->index);
}

WRITE(write_count)
{
    unsigned count;
    if (!nvml.nvmlDeviceGetCount_v2(&count))
        snprintf(out, size, "%u", count);
}

WRITE(write_time)
{
    struct timespec now;
    struct tm local;
    char day[32];
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(day, sizeof(day), "%Y/%m/%d %H:%M:%S", localtime_r(&now.tv_sec, &local));
    snprintf(out, size, "%s.%03ld", day, now.tv_nsec / 1000000);
}

WRITE(write_driver)
{
    nvml.nvmlSystemGetDriverVersion(out, (unsigned)size);
}

WRITE(write_firmware)
{
    char version[64];
    if (!nvml.nvmlDeviceGetGspFirmwareVersion(gpu->device, version))
        snprintf(out, size, "%s", version);
}

enum pci { BUS_ID, DOMAIN, BUS, DEVICE, DEVICE_ID, SUBSYSTEM_ID };

WRITE(write_pci)
{
    nvmlPciInfo_t pci;
    if (nvml.nvmlDeviceGetPciInfo_v3(gpu->device, &pci))
        return;
    if (argument == BUS_ID)
        snprintf(out, size, "%s", pci.busId);
    else if (argument == DOMAIN)
        snprintf(out, size, "0x%04X", pci.domain);
    else if (argument == BUS || argument == DEVICE)
        snprintf(out, size, "0x%02X", argument == BUS ? pci.bus : pci.device);
    else
        snprintf(out, size, "0x%08X",
                 argument == DEVICE_ID ? pci.pciDeviceId : pci.pciSubSystemId);
}

enum memory { TOTAL, RESERVED, USED, FREE };

WRITE(write_memory)
{
    nvmlMemory_v2_t memory = {.version = NVML_STRUCT(nvmlMemory_v2_t, 2)};
    if (nvml.nvmlDeviceGetMemoryInfo_v2(gpu->device, &memory))
        return;
    const unsigned long long bytes[] = {memory.total, memory.reserved, memory.used, memory.free};
    snprintf(out, size, "%llu", bytes[argument] >> 20);
}

WRITE(write_bar1)
{
    nvmlMemory_t bar1;
    if (nvml.nvmlDeviceGetBAR1MemoryInfo(gpu->device, &bar1))
        return;
    const unsigned long long bytes[] = {bar1.total, 0, bar1.used, bar1.free};
    snprintf(out, size, "%llu", bytes[argument] >> 20);
}

WRITE(write_utilization)
{
    enum { GPU, MEMORY };
    nvmlUtilization_t rates;
    if (!nvml.nvmlDeviceGetUtilizationRates(gpu->device, &rates))
        snprintf(out, size, "%u", argument == MEMORY ? rates.memory : rates.gpu);
}

WRITE(write_capability)
{
    int major, minor;
    if (!nvml.nvmlDeviceGetCudaComputeCapability(gpu->device, &major, &minor))
        snprintf(out, size, "%d.%d", major, minor);
}

/* Bit 0 of the argument: uncorrected errors. Bit 1: aggregate, not volatile, counts. */
WRITE(write_errors)
{
    unsigned long long errors;
    if (!nvml.nvmlDeviceGetTotalEccErrors(gpu->device, argument & 1, argument >> 1, &errors))
        snprintf(out, size, "%llu", errors);
}

WRITE(write_event_reasons)
{
    unsigned long long reasons;
    if (!nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu->device, &reasons))
        snprintf(out, size, "0x%016llx", reasons);
}

WRITE(write_rows)
{
    enum { CORRECTABLE, UNCORRECTABLE, PENDING, FAILURE };
    unsigned rows[4];
    if (nvml.nvmlDeviceGetRemappedRows(gpu->device, &rows[CORRECTABLE], &rows[UNCORRECTABLE],
                                       &rows[PENDING], &rows[FAILURE]))
        return;
    if (argument < PENDING)
        snprintf(out, size, "%u", rows[argument]);
    else
        snprintf(out, size, "%s", no_yes[rows[argument] != 0]);
}

/* --- the table ---------------------------------------------------------------------------- */

#define FIELD(field, its_unit, its_call, nvml_function, ...)                                       \
    {.name = field, .unit = its_unit, .call = its_call,                                            \
     .function = offsetof(struct nvml, nvml_function), __VA_ARGS__}
#define OWN(field, its_unit, function, ...)                                                        \
    {.name = field, .unit = its_unit, .call = CUSTOM, .write = function, __VA_ARGS__}

static const struct field fields[] = {
    OWN("timestamp", "", write_time),
    OWN("driver_version", "", write_driver),
    OWN("count", "", write_count),
    FIELD("name", "", TEXT, nvmlDeviceGetName),
    FIELD("serial", "", TEXT, nvmlDeviceGetSerial),
    FIELD("uuid", "", TEXT, nvmlDeviceGetUUID),
    OWN("index", "", write_index),
    FIELD("brand", "", NUMBER, nvmlDeviceGetBrand, .words = brands),
    FIELD("architecture", "", NUMBER, nvmlDeviceGetArchitecture, .words = architectures),
    FIELD("minor_number", "", NUMBER, nvmlDeviceGetMinorNumber),
    FIELD("board_id", "", NUMBER, nvmlDeviceGetBoardId, .print = HEX),
    FIELD("multi_gpu_board", "", NUMBER, nvmlDeviceGetMultiGpuBoard, .words = no_yes),
    FIELD("virtualization_mode", "", NUMBER, nvmlDeviceGetVirtualizationMode,
          .words = virtualization_modes),
    OWN("gsp_firmware_version", "", write_firmware),
    OWN("pci.bus_id", "", write_pci, .argument = BUS_ID),
    OWN("pci.domain", "", write_pci, .argument = DOMAIN),
    OWN("pci.bus", "", write_pci, .argument = BUS),
    OWN("pci.device", "", write_pci, .argument = DEVICE),
    OWN("pci.device_id", "", write_pci, .argument = DEVICE_ID),
    OWN("pci.sub_device_id", "", write_pci, .argument = SUBSYSTEM_ID),
    FIELD("pcie.link.gen.current", "", NUMBER, nvmlDeviceGetCurrPcieLinkGeneration),
    FIELD("pcie.link.gen.gpucurrent", "", NUMBER, nvmlDeviceGetCurrPcieLinkGeneration),
    FIELD("pcie.link.gen.max", "", NUMBER, nvmlDeviceGetMaxPcieLinkGeneration),
    FIELD("pcie.link.gen.gpumax", "", NUMBER, nvmlDeviceGetGpuMaxPcieLinkGeneration),
    FIELD("pcie.link.width.current", "", NUMBER, nvmlDeviceGetCurrPcieLinkWidth),
    FIELD("pcie.link.width.max", "", NUMBER, nvmlDeviceGetMaxPcieLinkWidth),
    FIELD("display_active", "", NUMBER, nvmlDeviceGetDisplayActive, .words = modes),
    FIELD("display_mode", "", NUMBER, nvmlDeviceGetDisplayMode, .words = modes),
    FIELD("persistence_mode", "", NUMBER, nvmlDeviceGetPersistenceMode, .words = modes),
    FIELD("accounting.mode", "", NUMBER, nvmlDeviceGetAccountingMode, .words = modes),
    FIELD("accounting.buffer_size", "", NUMBER, nvmlDeviceGetAccountingBufferSize),
    OWN("driver_model.current", "", write_nothing),
    OWN("driver_model.pending", "", write_nothing),
    FIELD("vbios_version", "", TEXT, nvmlDeviceGetVbiosVersion),
    OWN("inforom.img", "", write_nothing),
    OWN("inforom.oem", "", write_nothing),
    OWN("inforom.ecc", "", write_nothing),
    OWN("inforom.pwr", "", write_nothing),
    OWN("gom.current", "", write_nothing),
    OWN("gom.pending", "", write_nothing),
    FIELD("fan.speed", "%", NUMBER, nvmlDeviceGetFanSpeed),
    FIELD("pstate", "", NUMBER, nvmlDeviceGetPerformanceState, .print = STATE),
    OWN("clocks_event_reasons.active", "", write_event_reasons),
    OWN("memory.total", "MiB", write_memory, .argument = TOTAL),
    OWN("memory.reserved", "MiB", write_memory, .argument = RESERVED),
    OWN("memory.used", "MiB", write_memory, .argument = USED),
    OWN("memory.free", "MiB", write_memory, .argument = FREE),
    OWN("bar1.total", "MiB", write_bar1, .argument = TOTAL),
    OWN("bar1.used", "MiB", write_bar1, .argument = USED),
    OWN("bar1.free", "MiB", write_bar1, .argument = FREE),
    FIELD("compute_mode", "", NUMBER, nvmlDeviceGetComputeMode, .words = compute_modes),
    OWN("compute_cap", "", write_capability),
    OWN("utilization.gpu", "%", write_utilization, .argument = 0),
    OWN("utilization.memory", "%", write_utilization, .argument = 1),
    FIELD("utilization.encoder", "%", PAIR, nvmlDeviceGetEncoderUtilization),
    FIELD("utilization.decoder", "%", PAIR, nvmlDeviceGetDecoderUtilization),
    FIELD("utilization.jpeg", "%", PAIR, nvmlDeviceGetJpgUtilization),
    FIELD("utilization.ofa", "%", PAIR, nvmlDeviceGetOfaUtilization),
    FIELD("ecc.mode.current", "", PAIR, nvmlDeviceGetEccMode, .argument = 0, .words = modes),
    FIELD("ecc.mode.pending", "", PAIR, nvmlDeviceGetEccMode, .argument = 1, .words = modes),
    OWN("ecc.errors.corrected.volatile.total", "", write_errors, .argument = 0),
    OWN("ecc.errors.uncorrected.volatile.total", "", write_errors, .argument = 1),
    OWN("ecc.errors.corrected.aggregate.total", "", write_errors, .argument = 2),
    OWN("ecc.errors.uncorrected.aggregate.total", "", write_errors, .argument = 3),
    FIELD("retired_pages.pending", "", NUMBER, nvmlDeviceGetRetiredPagesPendingStatus,
          .words = modes),
    OWN("remapped_rows.correctable", "", write_rows, .argument = 0),
    OWN("remapped_rows.uncorrectable", "", write_rows, .argument = 1),
    OWN("remapped_rows.pending", "", write_rows, .argument = 2),
    OWN("remapped_rows.failure", "", write_rows, .argument = 3),
    FIELD("temperature.gpu", "", KIND, nvmlDeviceGetTemperature, .argument = 0),
    FIELD("temperature.current", "C", KIND, nvmlDeviceGetTemperature, .argument = 0),
    FIELD("temperature.shutdown", "C", KIND, nvmlDeviceGetTemperatureThreshold, .argument = 0),
    FIELD("temperature.slowdown", "C", KIND, nvmlDeviceGetTemperatureThreshold, .argument = 1),
    FIELD("temperature.max_operating", "C", KIND, nvmlDeviceGetTemperatureThreshold,
          .argument = 3),
    OWN("temperature.memory", "", write_nothing),
    FIELD("power.management", "", NUMBER, nvmlDeviceGetPowerManagementMode, .words = modes),
    FIELD("power.draw", "W", NUMBER, nvmlDeviceGetPowerUsage, .print = MILLIWATTS),
    FIELD("power.draw.average", "W", NUMBER, nvmlDeviceGetPowerUsage, .print = MILLIWATTS),
    FIELD("power.draw.instant", "W", NUMBER, nvmlDeviceGetPowerUsage, .print = MILLIWATTS),
    FIELD("power.limit", "W", NUMBER, nvmlDeviceGetPowerManagementLimit, .print = MILLIWATTS),
    FIELD("enforced.power.limit", "W", NUMBER, nvmlDeviceGetEnforcedPowerLimit,
          .print = MILLIWATTS),
    FIELD("power.default_limit", "W", NUMBER, nvmlDeviceGetPowerManagementDefaultLimit,
          .print = MILLIWATTS),
    FIELD("power.min_limit", "W", PAIR, nvmlDeviceGetPowerManagementLimitConstraints,
          .argument = 0, .print = MILLIWATTS),
    FIELD("power.max_limit", "W", PAIR, nvmlDeviceGetPowerManagementLimitConstraints,
          .argument = 1, .print = MILLIWATTS),
    FIELD("clocks.current.graphics", "MHz", KIND, nvmlDeviceGetClockInfo, .argument = 0),
    FIELD("clocks.current.sm", "MHz", KIND, nvmlDeviceGetClockInfo, .argument = 1),
    FIELD("clocks.current.memory", "MHz", KIND, nvmlDeviceGetClockInfo, .argument = 2),
    FIELD("clocks.current.video", "MHz", KIND, nvmlDeviceGetClockInfo, .argument = 3),
    FIELD("clocks.applications.graphics", "MHz", KIND, nvmlDeviceGetApplicationsClock,
          .argument = 0),
    FIELD("clocks.applications.memory", "MHz", KIND, nvmlDeviceGetApplicationsClock,
          .argument = 2),
    FIELD("clocks.max.graphics", "MHz", KIND, nvmlDeviceGetMaxClockInfo, .argument = 0),
    FIELD("clocks.max.sm", "MHz", KIND, nvmlDeviceGetMaxClockInfo, .argument = 1),
    FIELD("clocks.max.memory", "MHz", KIND, nvmlDeviceGetMaxClockInfo, .argument = 2),
    FIELD("clocks.max.video", "MHz", KIND, nvmlDeviceGetMaxClockInfo, .argument = 3),
    FIELD("mig.mode.current", "", PAIR, nvmlDeviceGetMigMode, .argument = 0, .words = modes),
    FIELD("mig.mode.pending", "", PAIR, nvmlDeviceGetMigMode, .argument = 1, .words = modes),
};

static const char *const aliases[][2] = {
    {"gpu_name", "name"}, {"gpu_serial", "serial"}, {"gpu_uuid", "uuid"},
    {"gpu_bus_id", "pci.bus_id"}, {"clocks.gr", "clocks.current.graphics"},
    {"clocks.sm", "clocks.current.sm"}, {"clocks.mem", "clocks.current.memory"},
    {"clocks.video", "clocks.current.video"}, {"clocks.max.gr", "clocks.max.graphics"},
    {"clocks.max.mem", "clocks.max.memory"},
    {"clocks.applications.gr", "clocks.applications.graphics"},
    {"clocks.applications.mem", "clocks.applications.memory"},
    {"clocks_throttle_reasons.active", "clocks_event_reasons.active"},
    {"inforom.image", "inforom.img"},
};

static const struct field *find_field(const char *name)
{
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (!strcmp(aliases[i][0], name))
            name = aliases[i][1];
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

static bool read_number(const struct gpu_entry *gpu, const struct field *field, unsigned *number)
{
    const void *function = (const char *)&nvml + field->function;
    unsigned pair[2] = {0};
    nvmlReturn_t result;
    switch (field->call) {
    case KIND:
        return !(*(const kind_t *)function)(gpu->device, field->argument, number);
    case PAIR:
        result = (*(const pair_t *)function)(gpu->device, &pair[0], &pair[1]);
        *number = pair[field->argument];
        return !result;
    default:
        return !(*(const number_t *)function)(gpu->device, number);
    }
}

static void print_number(const struct field *field, unsigned number, char *out, size_t size)
{
    static const char *const formats[] = {[DECIMAL] = "%u", [HEX] = "0x%x", [STATE] = "P%u"};
    unsigned i = 0;
    while (field->words && i < number && field->words[i])
        i++;
    if (field->words)
        snprintf(out, size, "%s", field->words[i] ? field->words[i] : "Unknown");
    else if (field->print == MILLIWATTS)
        snprintf(out, size, "%u.%02u", number / 1000, number % 1000 / 10);
    else
        snprintf(out, size, formats[field->print], number);
}

static void write_field(const struct gpu_entry *gpu, const struct field *field, char *out,
                        size_t size)
{
    const void *function = (const char *)&nvml + field->function;
    unsigned number;
    *out = '\0';
    if (field->call == CUSTOM)
        field->write(gpu, field->argument, out, size);
    else if (field->call == TEXT) {
        if ((*(const text_t *)function)(gpu->device, out, (unsigned)size))
            *out = '\0';
    } else if (read_number(gpu, field, &number))
        print_number(field, number, out, size);
}

/* A field's full name, NULL if there is no such field. */
const char *field_name(const char *name, const char **unit)
{
    const struct field *field = find_field(name);
    if (!field)
        return NULL;
    *unit = field->unit;
    return field->name;
}

/* Write a field's value without its unit, or nothing if the GPU has none. */
void write_bare(const struct gpu_entry *gpu, const char *name, char *out, size_t size)
{
    write_field(gpu, find_field(name), out, size);
}

/* Write a field's value with its unit, or "N/A" if the GPU has none. */
void write_value(const struct gpu_entry *gpu, const char *name, char *out, size_t size)
{
    const struct field *field = find_field(name);
    write_field(gpu, field, out, size);
    size_t n = strlen(out);
    if (!n)
        snprintf(out, size, "N/A");
    else if (*field->unit)
        snprintf(out + n, size - n, " %s", field->unit);
}
