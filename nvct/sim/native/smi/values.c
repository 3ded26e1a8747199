/* SPDX-License-Identifier: Apache-2.0
 *
 * What nvidia-smi knows of a GPU, by the names that --query-gpu has for it (query.c); nvidia-smi
 * -q shows the same values (report.c).
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "smi.h"

typedef void (*write_t)(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size);

/* How the answer of an NVML function is written. */
enum shape { NUMBER, SWITCH, MILLIWATTS, TEXT, OF_KIND, CUSTOM };

struct field {
    const char *name, *unit;
    enum shape shape;
    size_t function; /* of struct nvml */
    unsigned argument;
    write_t write; /* CUSTOM */
};

typedef nvmlReturn_t (*number_t)(nvmlDevice_t, unsigned *);
typedef nvmlReturn_t (*kind_t)(nvmlDevice_t, unsigned, unsigned *);
typedef nvmlReturn_t (*text_t)(nvmlDevice_t, char *, unsigned);

/* --- values that are no single answer ------------------------------------------------------ */

static void write_name(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    (void)argument;
    snprintf(out, size, "%s", gpu->name);
}

static void write_uuid(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    (void)argument;
    snprintf(out, size, "%s", gpu->uuid);
}

static void write_index(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    (void)argument;
    snprintf(out, size, "%u", gpu->index);
}

static void write_count(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    unsigned count;
    (void)gpu;
    (void)argument;
    if (!nvml.nvmlDeviceGetCount_v2(&count))
        snprintf(out, size, "%u", count);
}

static void write_time(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    struct timespec now;
    struct tm local;
    char day[32];
    (void)gpu;
    (void)argument;
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(day, sizeof(day), "%Y/%m/%d %H:%M:%S", localtime_r(&now.tv_sec, &local));
    snprintf(out, size, "%s.%03ld", day, now.tv_nsec / 1000000);
}

static void write_driver(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    (void)gpu;
    (void)argument;
    nvml.nvmlSystemGetDriverVersion(out, (unsigned)size);
}

enum pci { BUS_ID, DOMAIN, BUS, DEVICE, DEVICE_ID, SUBSYSTEM_ID };

static void write_pci(const struct gpu_entry *gpu, unsigned what, char *out, size_t size)
{
    nvmlPciInfo_t pci;
    if (nvml.nvmlDeviceGetPciInfo_v3(gpu->device, &pci))
        return;
    if (what == BUS_ID)
        snprintf(out, size, "%s", pci.busId);
    else if (what == DOMAIN)
        snprintf(out, size, "0x%04X", pci.domain);
    else if (what == BUS || what == DEVICE)
        snprintf(out, size, "0x%02X", what == BUS ? pci.bus : pci.device);
    else
        snprintf(out, size, "0x%08X", what == DEVICE_ID ? pci.pciDeviceId : pci.pciSubSystemId);
}

enum memory { TOTAL, RESERVED, USED, FREE };

static void write_memory(const struct gpu_entry *gpu, unsigned what, char *out, size_t size)
{
    nvmlMemory_v2_t memory = {.version = NVML_STRUCT(nvmlMemory_v2_t, 2)};
    if (nvml.nvmlDeviceGetMemoryInfo_v2(gpu->device, &memory))
        return;
    const unsigned long long bytes[] = {memory.total, memory.reserved, memory.used, memory.free};
    snprintf(out, size, "%llu", bytes[what] >> 20);
}

static void write_bar1(const struct gpu_entry *gpu, unsigned what, char *out, size_t size)
{
    nvmlMemory_t bar1;
    if (nvml.nvmlDeviceGetBAR1MemoryInfo(gpu->device, &bar1))
        return;
    snprintf(out, size, "%llu",
             (what == TOTAL ? bar1.total : what == USED ? bar1.used : bar1.free) >> 20);
}

static void write_busy(const struct gpu_entry *gpu, unsigned memory, char *out, size_t size)
{
    nvmlUtilization_t busy;
    if (!nvml.nvmlDeviceGetUtilizationRates(gpu->device, &busy))
        snprintf(out, size, "%u", memory ? busy.memory : busy.gpu);
}

enum engine { ENCODER, DECODER, JPEG, OFA };

static void write_engine(const struct gpu_entry *gpu, unsigned engine, char *out, size_t size)
{
    unsigned percent, period;
    nvmlReturn_t result =
        engine == ENCODER   ? nvml.nvmlDeviceGetEncoderUtilization(gpu->device, &percent, &period)
        : engine == DECODER ? nvml.nvmlDeviceGetDecoderUtilization(gpu->device, &percent, &period)
        : engine == JPEG    ? nvml.nvmlDeviceGetJpgUtilization(gpu->device, &percent, &period)
                            : nvml.nvmlDeviceGetOfaUtilization(gpu->device, &percent, &period);
    if (!result)
        snprintf(out, size, "%u", percent);
}

static void write_performance(const struct gpu_entry *gpu, unsigned argument, char *out,
                              size_t size)
{
    unsigned state;
    (void)argument;
    if (!nvml.nvmlDeviceGetPerformanceState(gpu->device, &state))
        snprintf(out, size, "P%u", state);
}

static void write_capability(const struct gpu_entry *gpu, unsigned argument, char *out,
                             size_t size)
{
    int major, minor;
    (void)argument;
    if (!nvml.nvmlDeviceGetCudaComputeCapability(gpu->device, &major, &minor))
        snprintf(out, size, "%d.%d", major, minor);
}

enum when { CURRENT, PENDING };

static void write_mig(const struct gpu_entry *gpu, unsigned when, char *out, size_t size)
{
    unsigned now, next;
    if (!nvml.nvmlDeviceGetMigMode(gpu->device, &now, &next))
        snprintf(out, size, "%s", (when == PENDING ? next : now) ? "Enabled" : "Disabled");
}

static void write_ecc(const struct gpu_entry *gpu, unsigned when, char *out, size_t size)
{
    unsigned now, next;
    if (!nvml.nvmlDeviceGetEccMode(gpu->device, &now, &next))
        snprintf(out, size, "%s", (when == PENDING ? next : now) ? "Enabled" : "Disabled");
}

/* argument: corrected or not, volatile or since ever */
static void write_errors(const struct gpu_entry *gpu, unsigned kinds, char *out, size_t size)
{
    unsigned long long errors;
    if (!nvml.nvmlDeviceGetTotalEccErrors(gpu->device, kinds & 1, kinds >> 1, &errors))
        snprintf(out, size, "%llu", errors);
}

enum limit { LEAST, MOST };

static void write_limit(const struct gpu_entry *gpu, unsigned which, char *out, size_t size)
{
    unsigned least, most;
    if (nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu->device, &least, &most))
        return;
    unsigned milliwatts = which == LEAST ? least : most;
    snprintf(out, size, "%u.%02u", milliwatts / 1000, milliwatts % 1000 / 10);
}

static void write_reasons(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    unsigned long long reasons;
    (void)argument;
    if (!nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu->device, &reasons))
        snprintf(out, size, "0x%016llx", reasons);
}

static void write_word(const struct gpu_entry *gpu, const char *const *words, unsigned n,
                       number_t function, char *out, size_t size)
{
    unsigned number;
    if (!function(gpu->device, &number))
        snprintf(out, size, "%s", number < n && words[number] ? words[number] : "Unknown");
}

static void write_compute_mode(const struct gpu_entry *gpu, unsigned argument, char *out,
                               size_t size)
{
    static const char *const words[] = {"Default", "Exclusive_Thread", "Prohibited",
                                        "Exclusive_Process"};
    (void)argument;
    write_word(gpu, words, 4, nvml.nvmlDeviceGetComputeMode, out, size);
}

static void write_brand(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    static const char *const words[] = {
        "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan", "NVIDIA vApps",
        "NVIDIA vPC", "NVIDIA Virtual Compute Server", "NVIDIA RTX Virtual Workstation",
        "NVIDIA Cloud Gaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA"};
    (void)argument;
    write_word(gpu, words, 15, nvml.nvmlDeviceGetBrand, out, size);
}

static void write_architecture(const struct gpu_entry *gpu, unsigned argument, char *out,
                               size_t size)
{
    static const char *const words[] = {NULL,     NULL,     "Kepler",       "Maxwell", "Pascal",
                                        "Volta",  "Turing", "Ampere", "Ada Lovelace", "Hopper",
                                        "Blackwell"};
    (void)argument;
    write_word(gpu, words, 11, nvml.nvmlDeviceGetArchitecture, out, size);
}

static void write_virtualization(const struct gpu_entry *gpu, unsigned argument, char *out,
                                 size_t size)
{
    static const char *const words[] = {"None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"};
    (void)argument;
    write_word(gpu, words, 5, nvml.nvmlDeviceGetVirtualizationMode, out, size);
}

static void write_firmware(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    char version[64];
    (void)argument;
    if (!nvml.nvmlDeviceGetGspFirmwareVersion(gpu->device, version))
        snprintf(out, size, "%s", version);
}

static void write_rows(const struct gpu_entry *gpu, unsigned which, char *out, size_t size)
{
    unsigned rows[4];
    if (nvml.nvmlDeviceGetRemappedRows(gpu->device, &rows[0], &rows[1], &rows[2], &rows[3]))
        return;
    if (which < 2)
        snprintf(out, size, "%u", rows[which]);
    else
        snprintf(out, size, "%s", rows[which] ? "Yes" : "No");
}

static void write_hex(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    unsigned number;
    (void)argument;
    if (!nvml.nvmlDeviceGetBoardId(gpu->device, &number))
        snprintf(out, size, "0x%x", number);
}

static void write_multi(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    static const char *const words[] = {"No", "Yes"};
    (void)argument;
    write_word(gpu, words, 2, nvml.nvmlDeviceGetMultiGpuBoard, out, size);
}

static void write_nothing(const struct gpu_entry *gpu, unsigned argument, char *out, size_t size)
{
    (void)gpu;
    (void)argument;
    (void)out;
    (void)size;
}

/* --- the table ---------------------------------------------------------------------------- */

#define OF(name, unit, shape, function)                                                            \
    {name, unit, shape, offsetof(struct nvml, function), 0, NULL}
#define KIND(name, unit, function, kind)                                                           \
    {name, unit, OF_KIND, offsetof(struct nvml, function), kind, NULL}
#define OWN(name, unit, write, argument) {name, unit, CUSTOM, 0, argument, write}

static const struct field fields[] = {
    OWN("timestamp", "", write_time, 0),
    OWN("driver_version", "", write_driver, 0),
    OWN("count", "", write_count, 0),
    OWN("name", "", write_name, 0),
    OF("serial", "", TEXT, nvmlDeviceGetSerial),
    OWN("uuid", "", write_uuid, 0),
    OWN("index", "", write_index, 0),
    OWN("brand", "", write_brand, 0),
    OWN("architecture", "", write_architecture, 0),
    OF("minor_number", "", NUMBER, nvmlDeviceGetMinorNumber),
    OWN("board_id", "", write_hex, 0),
    OWN("multi_gpu_board", "", write_multi, 0),
    OWN("virtualization_mode", "", write_virtualization, 0),
    OWN("gsp_firmware_version", "", write_firmware, 0),
    OWN("pci.bus_id", "", write_pci, BUS_ID),
    OWN("pci.domain", "", write_pci, DOMAIN),
    OWN("pci.bus", "", write_pci, BUS),
    OWN("pci.device", "", write_pci, DEVICE),
    OWN("pci.device_id", "", write_pci, DEVICE_ID),
    OWN("pci.sub_device_id", "", write_pci, SUBSYSTEM_ID),
    OF("pcie.link.gen.current", "", NUMBER, nvmlDeviceGetCurrPcieLinkGeneration),
    OF("pcie.link.gen.gpucurrent", "", NUMBER, nvmlDeviceGetCurrPcieLinkGeneration),
    OF("pcie.link.gen.max", "", NUMBER, nvmlDeviceGetMaxPcieLinkGeneration),
    OF("pcie.link.gen.gpumax", "", NUMBER, nvmlDeviceGetGpuMaxPcieLinkGeneration),
    OF("pcie.link.width.current", "", NUMBER, nvmlDeviceGetCurrPcieLinkWidth),
    OF("pcie.link.width.max", "", NUMBER, nvmlDeviceGetMaxPcieLinkWidth),
    OF("display_active", "", SWITCH, nvmlDeviceGetDisplayActive),
    OF("display_mode", "", SWITCH, nvmlDeviceGetDisplayMode),
    OF("persistence_mode", "", SWITCH, nvmlDeviceGetPersistenceMode),
    OF("accounting.mode", "", SWITCH, nvmlDeviceGetAccountingMode),
    OF("accounting.buffer_size", "", NUMBER, nvmlDeviceGetAccountingBufferSize),
    OWN("driver_model.current", "", write_nothing, 0),
    OWN("driver_model.pending", "", write_nothing, 0),
    OF("vbios_version", "", TEXT, nvmlDeviceGetVbiosVersion),
    OWN("inforom.img", "", write_nothing, 0),
    OWN("inforom.oem", "", write_nothing, 0),
    OWN("inforom.ecc", "", write_nothing, 0),
    OWN("inforom.pwr", "", write_nothing, 0),
    OWN("gom.current", "", write_nothing, 0),
    OWN("gom.pending", "", write_nothing, 0),
    OF("fan.speed", "%", NUMBER, nvmlDeviceGetFanSpeed),
    OWN("pstate", "", write_performance, 0),
    OWN("clocks_event_reasons.active", "", write_reasons, 0),
    OWN("memory.total", "MiB", write_memory, TOTAL),
    OWN("memory.reserved", "MiB", write_memory, RESERVED),
    OWN("memory.used", "MiB", write_memory, USED),
    OWN("memory.free", "MiB", write_memory, FREE),
    OWN("bar1.total", "MiB", write_bar1, TOTAL),
    OWN("bar1.used", "MiB", write_bar1, USED),
    OWN("bar1.free", "MiB", write_bar1, FREE),
    OWN("compute_mode", "", write_compute_mode, 0),
    OWN("compute_cap", "", write_capability, 0),
    OWN("utilization.gpu", "%", write_busy, 0),
    OWN("utilization.memory", "%", write_busy, 1),
    OWN("utilization.encoder", "%", write_engine, ENCODER),
    OWN("utilization.decoder", "%", write_engine, DECODER),
    OWN("utilization.jpeg", "%", write_engine, JPEG),
    OWN("utilization.ofa", "%", write_engine, OFA),
    OWN("ecc.mode.current", "", write_ecc, CURRENT),
    OWN("ecc.mode.pending", "", write_ecc, PENDING),
    OWN("ecc.errors.corrected.volatile.total", "", write_errors, 0),
    OWN("ecc.errors.uncorrected.volatile.total", "", write_errors, 1),
    OWN("ecc.errors.corrected.aggregate.total", "", write_errors, 2),
    OWN("ecc.errors.uncorrected.aggregate.total", "", write_errors, 3),
    OF("retired_pages.pending", "", SWITCH, nvmlDeviceGetRetiredPagesPendingStatus),
    OWN("remapped_rows.correctable", "", write_rows, 0),
    OWN("remapped_rows.uncorrectable", "", write_rows, 1),
    OWN("remapped_rows.pending", "", write_rows, 2),
    OWN("remapped_rows.failure", "", write_rows, 3),
    KIND("temperature.gpu", "", nvmlDeviceGetTemperature, 0),
    KIND("temperature.current", "C", nvmlDeviceGetTemperature, 0),
    KIND("temperature.shutdown", "C", nvmlDeviceGetTemperatureThreshold, 0),
    KIND("temperature.slowdown", "C", nvmlDeviceGetTemperatureThreshold, 1),
    KIND("temperature.max_operating", "C", nvmlDeviceGetTemperatureThreshold, 3),
    OWN("temperature.memory", "", write_nothing, 0),
    OF("power.management", "", SWITCH, nvmlDeviceGetPowerManagementMode),
    OF("power.draw", "W", MILLIWATTS, nvmlDeviceGetPowerUsage),
    OF("power.draw.average", "W", MILLIWATTS, nvmlDeviceGetPowerUsage),
    OF("power.draw.instant", "W", MILLIWATTS, nvmlDeviceGetPowerUsage),
    OF("power.limit", "W", MILLIWATTS, nvmlDeviceGetPowerManagementLimit),
    OF("enforced.power.limit", "W", MILLIWATTS, nvmlDeviceGetEnforcedPowerLimit),
    OF("power.default_limit", "W", MILLIWATTS, nvmlDeviceGetPowerManagementDefaultLimit),
    OWN("power.min_limit", "W", write_limit, LEAST),
    OWN("power.max_limit", "W", write_limit, MOST),
    KIND("clocks.current.graphics", "MHz", nvmlDeviceGetClockInfo, 0),
    KIND("clocks.current.sm", "MHz", nvmlDeviceGetClockInfo, 1),
    KIND("clocks.current.memory", "MHz", nvmlDeviceGetClockInfo, 2),
    KIND("clocks.current.video", "MHz", nvmlDeviceGetClockInfo, 3),
    KIND("clocks.applications.graphics", "MHz", nvmlDeviceGetApplicationsClock, 0),
    KIND("clocks.applications.memory", "MHz", nvmlDeviceGetApplicationsClock, 2),
    KIND("clocks.max.graphics", "MHz", nvmlDeviceGetMaxClockInfo, 0),
    KIND("clocks.max.sm", "MHz", nvmlDeviceGetMaxClockInfo, 1),
    KIND("clocks.max.memory", "MHz", nvmlDeviceGetMaxClockInfo, 2),
    KIND("clocks.max.video", "MHz", nvmlDeviceGetMaxClockInfo, 3),
    OWN("mig.mode.current", "", write_mig, CURRENT),
    OWN("mig.mode.pending", "", write_mig, PENDING),
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

static void write_field(const struct gpu_entry *gpu, const struct field *field, char *out,
                        size_t size)
{
    const void *function = (const char *)&nvml + field->function;
    unsigned number = 0;
    nvmlReturn_t result;
    *out = '\0';
    if (field->shape == CUSTOM) {
        field->write(gpu, field->argument, out, size);
        return;
    }
    if (field->shape == TEXT) {
        if ((*(const text_t *)function)(gpu->device, out, (unsigned)size))
            *out = '\0';
        return;
    }
    if (field->shape == OF_KIND)
        result = (*(const kind_t *)function)(gpu->device, field->argument, &number);
    else
        result = (*(const number_t *)function)(gpu->device, &number);
    if (result)
        return;
    if (field->shape == SWITCH)
        snprintf(out, size, "%s", number ? "Enabled" : "Disabled");
    else if (field->shape == MILLIWATTS)
        snprintf(out, size, "%u.%02u", number / 1000, number % 1000 / 10);
    else
        snprintf(out, size, "%u", number);
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

/* Write a field's value without its unit, nothing where the GPU has none. */
void write_bare(const struct gpu_entry *gpu, const char *name, char *out, size_t size)
{
    write_field(gpu, find_field(name), out, size);
}

/* The same with its unit, and "N/A". */
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
