/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the records of GPUs, NVSwitches and processes.
 */

#include "simulation.h"

/* "00000000:18:00.0": PCI numbers are hexadecimal without 0x. */
static unsigned parse_hex(const char **at)
{
    unsigned n = 0;
    for (;; ++*at) {
        char c = **at;
        if (c >= '0' && c <= '9')
            n = n * 16 + (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f')
            n = n * 16 + (unsigned)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            n = n * 16 + (unsigned)(c - 'A') + 10;
        else
            return n;
    }
}

static void parse_pci(const char *line, const char *bus_id, struct pci_device *pci)
{
    const char *at = bus_id;
    pci->domain = parse_hex(&at);
    pci->bus = *at == ':' ? (at++, parse_hex(&at)) : 0;
    pci->slot = *at == ':' ? (at++, parse_hex(&at)) : 0;
    pci->id = field_unsigned(line, "device", 0);
    pci->subsystem = field_unsigned(line, "subsystem", 0);
    pci->class_code = field_unsigned(line, "class", 0x030200);
}

/* The default: one NUMA node, two host bridges, a PCIe switch for each GPU. */
static void parse_path(const char *line, struct gpu *gpu)
{
    char text[64] = "";
    unsigned long long value;
    const unsigned fallback[PATH_LENGTH] = {0, gpu->pci.bus >> 7, gpu->index, 0};
    field_text(line, "path", text, sizeof(text));
    const char *at = text;
    for (int i = 0; i < PATH_LENGTH; i++) {
        gpu->path[i] = parse_number(&at, &value) ? (unsigned)value : fallback[i];
        at += *at == '/';
    }
}

/* "1,1,s0": two links to GPU 1, one to switch 0. */
static void parse_links(const char *line, struct gpu *gpu)
{
    char text[256] = "";
    unsigned long long value;
    gpu->nvlink = field_unsigned(line, "nvlink", 0);
    field_text(line, "links", text, sizeof(text));
    const char *at = text;
    while (*at && gpu->n_links < MAX_LINKS) {
        bool to_switch = *at == 's';
        at += to_switch;
        if (!parse_number(&at, &value))
            break;
        gpu->links[gpu->n_links++] = (struct nvlink){to_switch, (unsigned char)value};
        at += *at == ',';
    }
}

bool parse_switch(const char *line, struct nvswitch *out)
{
    char bus_id[NVML_BUS_ID_LENGTH];
    if (!field_text(line, "bus", bus_id, sizeof(bus_id)))
        return false;
    parse_pci(line, bus_id, &out->pci);
    return true;
}

void parse_process(const char *line, struct process *process)
{
    process->gpu = field_unsigned(line, "gpu", UINT_MAX);
    process->pid = field_unsigned(line, "pid", 0);
    process->gi = field_unsigned(line, "gi", NO_ID);
    process->ci = field_unsigned(line, "ci", NO_ID);
    process->sm = field_unsigned(line, "sm", 0);
    process->memory_utilization = field_unsigned(line, "mem", 0);
    process->graphics = field_unsigned(line, "graphics", 0);
    field_number(line, "memory", &process->memory);
}

bool parse_gpu(const char *line, struct gpu *gpu)
{
    unsigned long long index, value;
    if (!field_number(line, "index", &index) ||
        !field_text(line, "uuid", gpu->uuid, sizeof(gpu->uuid)) ||
        !field_text(line, "bus", gpu->bus_id, sizeof(gpu->bus_id)))
        return false;
    gpu->index = (unsigned)index;
    gpu->minor = field_unsigned(line, "minor", gpu->index);
    field_text(line, "name", gpu->name, sizeof(gpu->name));
    field_text(line, "serial", gpu->serial, sizeof(gpu->serial));
    field_text(line, "vbios", gpu->vbios, sizeof(gpu->vbios));
    const char *at;
    parse_pci(line, gpu->bus_id, &gpu->pci);
    char cc[16] = "";
    field_text(line, "cc", cc, sizeof(cc));
    at = cc;
    if (parse_number(&at, &value)) {
        gpu->cc_major = (unsigned)value;
        if (*at == '.' && (at++, parse_number(&at, &value)))
            gpu->cc_minor = (unsigned)value;
    }
    field_number(line, "memory", &gpu->memory);
    gpu->memory_reserved = gpu->memory / 1024 * 7; /* as an idle driver: about 0.7 per cent */
    gpu->memory_used = gpu->memory_reserved;
    gpu->has_memory_used = field_number(line, "used", &gpu->memory_used);
    parse_metrics(line, gpu);
    field_number(line, "eccerrors", &gpu->ecc_errors);
    gpu->arch = field_unsigned(line, "arch", UINT_MAX);
    gpu->brand = field_unsigned(line, "brand", 0);
    gpu->board = field_unsigned(line, "board", gpu->pci.bus << 8);
    gpu->power = field_unsigned(line, "power", 0);
    gpu->temperature = field_unsigned(line, "temp", 0);
    gpu->utilization = field_unsigned(line, "util", 0);
    gpu->persistence = field_unsigned(line, "persistence", 1);
    gpu->ecc = field_unsigned(line, "ecc", 1);
    gpu->ecc_capable = field_unsigned(line, "ecccapable", 1);
    gpu->bar1 = field_unsigned(line, "bar1", 0);
    gpu->cores = field_unsigned(line, "cores", 0);
    gpu->bus_width = field_unsigned(line, "buswidth", 0);
    gpu->fan = field_unsigned(line, "fan", 0);
    char host[32];
    gpu->is_virtual = field_text(line, "vgpuhost", host, sizeof(host));
    parse_path(line, gpu);
    parse_links(line, gpu);
    gpu->addressing = field_unsigned(line, "addressing", 0);
    gpu->mig_capable = field_unsigned(line, "migcapable", 0);
    gpu->mig = field_unsigned(line, "mig", 0);
    gpu->mig_pending = gpu->mig != (bool)field_unsigned(line, "migflip", 0);
    gpu->mig_needs_reset = field_unsigned(line, "migreset", 0);
    gpu->lost = field_unsigned(line, "lost", 0);
    if (gpu->memory)
        gpu->memory_used = gpu->memory_used > gpu->memory ? gpu->memory : gpu->memory_used;
    if (gpu->memory_reserved > gpu->memory_used)
        gpu->memory_reserved = gpu->memory_used;
    return true;
}
