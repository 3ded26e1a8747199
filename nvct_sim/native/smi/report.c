/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi -q as text and as XML: a table of rows; their values are fields of values.c.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "smi.h"

/* A row without a field opens a section. `group` is its group for -d, "" if it has none. */
struct row {
    unsigned depth;
    const char *label, *tag, *field, *group;
};

static const struct row rows[] = {
    {1, "Product Name", "product_name", "name", ""},
    {1, "Product Brand", "product_brand", "brand", ""},
    {1, "Product Architecture", "product_architecture", "architecture", ""},
    {1, "Display Mode", "display_mode", "display_mode", ""},
    {1, "Display Active", "display_active", "display_active", ""},
    {1, "Persistence Mode", "persistence_mode", "persistence_mode", ""},
    {1, "MIG Mode", "mig_mode", NULL, ""},
    {2, "Current", "current_mig", "mig.mode.current", ""},
    {2, "Pending", "pending_mig", "mig.mode.pending", ""},
    {1, "Accounting Mode", "accounting_mode", "accounting.mode", "ACCOUNTING"},
    {1, "Accounting Mode Buffer Size", "accounting_mode_buffer_size", "accounting.buffer_size",
     "ACCOUNTING"},
    {1, "Serial Number", "serial", "serial", ""},
    {1, "GPU UUID", "uuid", "uuid", ""},
    {1, "Minor Number", "minor_number", "minor_number", ""},
    {1, "VBIOS Version", "vbios_version", "vbios_version", ""},
    {1, "MultiGPU Board", "multigpu_board", "multi_gpu_board", ""},
    {1, "Board ID", "board_id", "board_id", ""},
    {1, "GPU Virtualization Mode", "gpu_virtualization_mode", NULL, ""},
    {2, "Virtualization Mode", "virtualization_mode", "virtualization_mode", ""},
    {1, "GSP Firmware Version", "gsp_firmware_version", "gsp_firmware_version", ""},
    {1, "PCI", "pci", NULL, ""},
    {2, "Bus", "pci_bus", "pci.bus", ""},
    {2, "Device", "pci_device", "pci.device", ""},
    {2, "Domain", "pci_domain", "pci.domain", ""},
    {2, "Device Id", "pci_device_id", "pci.device_id", ""},
    {2, "Bus Id", "pci_bus_id", "pci.bus_id", ""},
    {2, "Sub System Id", "pci_sub_system_id", "pci.sub_device_id", ""},
    {2, "GPU Link Info", "pci_gpu_link_info", NULL, ""},
    {3, "PCIe Generation", "pcie_gen", NULL, ""},
    {4, "Max", "max_link_gen", "pcie.link.gen.max", ""},
    {4, "Current", "current_link_gen", "pcie.link.gen.current", ""},
    {3, "Link Width", "link_widths", NULL, ""},
    {4, "Max", "max_link_width", "pcie.link.width.max", ""},
    {4, "Current", "current_link_width", "pcie.link.width.current", ""},
    {1, "Fan Speed", "fan_speed", "fan.speed", ""},
    {1, "Performance State", "performance_state", "pstate", "PERFORMANCE"},
    {1, "FB Memory Usage", "fb_memory_usage", NULL, "MEMORY"},
    {2, "Total", "total", "memory.total", "MEMORY"},
    {2, "Reserved", "reserved", "memory.reserved", "MEMORY"},
    {2, "Used", "used", "memory.used", "MEMORY"},
    {2, "Free", "free", "memory.free", "MEMORY"},
    {1, "BAR1 Memory Usage", "bar1_memory_usage", NULL, "MEMORY"},
    {2, "Total", "total", "bar1.total", "MEMORY"},
    {2, "Used", "used", "bar1.used", "MEMORY"},
    {2, "Free", "free", "bar1.free", "MEMORY"},
    {1, "Compute Mode", "compute_mode", "compute_mode", "COMPUTE"},
    {1, "Utilization", "utilization", NULL, "UTILIZATION"},
    {2, "GPU", "gpu_util", "utilization.gpu", "UTILIZATION"},
    {2, "Memory", "memory_util", "utilization.memory", "UTILIZATION"},
    {2, "Encoder", "encoder_util", "utilization.encoder", "UTILIZATION"},
    {2, "Decoder", "decoder_util", "utilization.decoder", "UTILIZATION"},
    {2, "JPEG", "jpeg_util", "utilization.jpeg", "UTILIZATION"},
    {2, "OFA", "ofa_util", "utilization.ofa", "UTILIZATION"},
    {1, "ECC Mode", "ecc_mode", NULL, "ECC"},
    {2, "Current", "current_ecc", "ecc.mode.current", "ECC"},
    {2, "Pending", "pending_ecc", "ecc.mode.pending", "ECC"},
    {1, "Remapped Rows", "remapped_rows", NULL, "ROW_REMAPPER"},
    {2, "Correctable Error", "remapped_row_corr", "remapped_rows.correctable", "ROW_REMAPPER"},
    {2, "Uncorrectable Error", "remapped_row_unc", "remapped_rows.uncorrectable", "ROW_REMAPPER"},
    {2, "Pending", "remapped_row_pending", "remapped_rows.pending", "ROW_REMAPPER"},
    {2, "Remapping Failure Occurred", "remapped_row_failure", "remapped_rows.failure",
     "ROW_REMAPPER"},
    {1, "Temperature", "temperature", NULL, "TEMPERATURE"},
    {2, "GPU Current Temp", "gpu_temp", "temperature.current", "TEMPERATURE"},
    {2, "GPU Shutdown Temp", "gpu_temp_max_threshold", "temperature.shutdown", "TEMPERATURE"},
    {2, "GPU Slowdown Temp", "gpu_temp_slow_threshold", "temperature.slowdown", "TEMPERATURE"},
    {2, "GPU Max Operating Temp", "gpu_temp_max_gpu_threshold", "temperature.max_operating",
     "TEMPERATURE"},
    {1, "GPU Power Readings", "gpu_power_readings", NULL, "POWER"},
    {2, "Average Power Draw", "average_power_draw", "power.draw.average", "POWER"},
    {2, "Instantaneous Power Draw", "instant_power_draw", "power.draw.instant", "POWER"},
    {2, "Current Power Limit", "current_power_limit", "enforced.power.limit", "POWER"},
    {2, "Requested Power Limit", "requested_power_limit", "power.limit", "POWER"},
    {2, "Default Power Limit", "default_power_limit", "power.default_limit", "POWER"},
    {2, "Min Power Limit", "min_power_limit", "power.min_limit", "POWER"},
    {2, "Max Power Limit", "max_power_limit", "power.max_limit", "POWER"},
    {1, "Clocks", "clocks", NULL, "CLOCK"},
    {2, "Graphics", "graphics_clock", "clocks.current.graphics", "CLOCK"},
    {2, "SM", "sm_clock", "clocks.current.sm", "CLOCK"},
    {2, "Memory", "mem_clock", "clocks.current.memory", "CLOCK"},
    {2, "Video", "video_clock", "clocks.current.video", "CLOCK"},
    {1, "Max Clocks", "max_clocks", NULL, "CLOCK"},
    {2, "Graphics", "graphics_clock", "clocks.max.graphics", "CLOCK"},
    {2, "SM", "sm_clock", "clocks.max.sm", "CLOCK"},
    {2, "Memory", "mem_clock", "clocks.max.memory", "CLOCK"},
    {2, "Video", "video_clock", "clocks.max.video", "CLOCK"},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]), LABEL_WIDTH = 50 };

static void indent(unsigned depth, bool xml)
{
    for (unsigned i = 0; i < depth; i++)
        fputs(xml ? "\t" : "    ", stdout);
}

/* A line with one value. */
static void leaf(unsigned depth, const char *label, const char *tag, const char *value, bool xml)
{
    indent(xml ? depth + 1 : depth, xml);
    if (xml)
        printf("<%s>%s</%s>\n", tag, value, tag);
    else
        printf("%-*s: %s\n", LABEL_WIDTH - 4 * (int)depth, label, value);
}

static void begin_section(unsigned depth, const char *label, const char *tag, bool xml)
{
    indent(xml ? depth + 1 : depth, xml);
    if (xml)
        printf("<%s>\n", tag);
    else
        puts(label);
}

static void end_section(unsigned depth, const char *tag, bool xml)
{
    if (!xml)
        return;
    indent(depth + 1, true);
    printf("</%s>\n", tag);
}

/* End the sections that do not contain a row of this depth. */
static void end_sections(const char *open[], unsigned *n, unsigned depth, bool xml)
{
    for (; *n >= depth; --*n)
        end_section(*n, open[*n - 1], xml);
}

static void leaf_number(unsigned depth, const char *label, const char *tag,
                        unsigned long long number, const char *unit, bool xml)
{
    char value[32];
    snprintf(value, sizeof(value), "%llu%s", number, unit);
    leaf(depth, label, tag, value, xml);
}

static void mig_device_section(unsigned depth, unsigned index, nvmlDevice_t device, bool xml)
{
    unsigned gi = 0, ci = 0;
    nvmlMemory_t memory = {0};
    nvml.nvmlDeviceGetGpuInstanceId(device, &gi);
    nvml.nvmlDeviceGetComputeInstanceId(device, &ci);
    nvml.nvmlDeviceGetMemoryInfo(device, &memory);
    unsigned long long total = memory.total >> 20, used = memory.used >> 20;
    begin_section(depth, "MIG Device", "mig_device", xml);
    leaf_number(depth + 1, "Index", "index", index, "", xml);
    leaf_number(depth + 1, "GPU Instance ID", "gpu_instance_id", gi, "", xml);
    leaf_number(depth + 1, "Compute Instance ID", "compute_instance_id", ci, "", xml);
    begin_section(depth + 1, "FB Memory Usage", "fb_memory_usage", xml);
    leaf_number(depth + 2, "Total", "total", total, " MiB", xml);
    leaf_number(depth + 2, "Used", "used", used, " MiB", xml);
    leaf_number(depth + 2, "Free", "free", total - used, " MiB", xml);
    end_section(depth + 1, "fb_memory_usage", xml);
    end_section(depth, "mig_device", xml);
}

static void mig_devices(const struct gpu_entry *gpu, bool xml)
{
    bool any = false;
    if (xml)
        puts("\t\t<mig_devices>");
    for (unsigned index = 0; index < max_mig_devices(gpu); index++) {
        nvmlDevice_t device = mig_device(gpu, index);
        if (!device)
            continue;
        any = true;
        mig_device_section(xml ? 2 : 1, index, device, xml);
    }
    if (xml)
        puts(any ? "\t\t</mig_devices>" : "\t\t\tNone\n\t\t</mig_devices>");
    else if (!any)
        leaf(1, "MIG Devices", "", "None", false);
}

static void show_gpu(const struct gpu_entry *gpu, const char *groups, bool xml)
{
    const char *open[8];
    unsigned n = 0;
    char value[128];
    for (unsigned i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        if (groups && !(*row->group && has_word(groups, row->group)))
            continue;
        end_sections(open, &n, row->depth, xml);
        if (!row->field) {
            begin_section(row->depth, row->label, row->tag, xml);
            open[n++] = row->tag;
            continue;
        }
        write_value(gpu, row->field, value, sizeof(value));
        leaf(row->depth, row->label, row->tag, value, xml);
    }
    end_sections(open, &n, 1, xml);
    if (!groups)
        mig_devices(gpu, xml);
    if (!groups || has_word(groups, "PIDS"))
        leaf(1, "Processes", "processes", xml ? "" : "None", xml);
}

static void show_head(unsigned count, bool xml)
{
    char now[64];
    struct versions versions;
    struct tm local;
    time_t seconds = time(NULL);
    strftime(now, sizeof(now), "%a %b %e %H:%M:%S %Y", localtime_r(&seconds, &local));
    read_versions(&versions);
    puts(xml ? "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>"
             : "\n==============NVSMI LOG==============\n");
    leaf(0, "Timestamp", "timestamp", now, xml);
    leaf(0, "Driver Version", "driver_version", versions.driver, xml);
    leaf(0, "CUDA Version", "cuda_version", versions.cuda, xml);
    if (!xml)
        putchar('\n');
    leaf_number(0, "Attached GPUs", "attached_gpus", count, "", xml);
}

/* The groups of -d. A group without a row is accepted and shows nothing, as by the real program on
 * a GPU without such values. */
static bool are_groups(const char *groups)
{
    static const char known[] = "MEMORY,UTILIZATION,ECC,TEMPERATURE,POWER,CLOCK,COMPUTE,PIDS,"
                                "PERFORMANCE,ACCOUNTING,ROW_REMAPPER";
    char group[32];
    for (const char *p = groups; p && *p;) {
        p = next_word(p, group, sizeof(group));
        if (!has_word(known, group)) {
            printf("\"%s\" is no group of -d that is simulated: %s\n", group, known);
            return false;
        }
    }
    return true;
}

int print_report(const struct gpu_list *list, const char *ids, const char *groups, bool xml)
{
    int status = EXIT_DONE;
    if (!are_groups(groups))
        return EXIT_INVALID_ARGUMENT;
    show_head(list->count, xml);
    for (unsigned i = 0; i < list->count; i++) {
        const struct gpu_entry *gpu = &list->gpus[i];
        if (gpu->status)
            status = (int)gpu->status;
        if (gpu->status || !is_selected(gpu, ids))
            continue;
        printf(xml ? "\t<gpu id=\"%s\">\n" : "GPU %s\n", gpu->bus_id);
        show_gpu(gpu, groups, xml);
        puts(xml ? "\t</gpu>" : "");
    }
    if (xml)
        puts("</nvidia_smi_log>");
    return status;
}
