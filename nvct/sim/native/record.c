/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the records of the state file. Numbers are parsed by hand: newer C libraries redirect
 * strtoul and sscanf to symbols that glibc 2.31 lacks, and this library has to load there.
 */
#include <string.h>

#include "simulation.h"

bool parse_number(const char **at, unsigned long long *value)
{
    const char *p = *at;
    unsigned base = 10;
    unsigned long long n = 0;
    if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
        base = 16;
        p += 2;
    }
    const char *first = p;
    for (;; p++) {
        unsigned digit;
        if (*p >= '0' && *p <= '9')
            digit = (unsigned)(*p - '0');
        else if (base == 16 && *p >= 'a' && *p <= 'f')
            digit = (unsigned)(*p - 'a') + 10;
        else if (base == 16 && *p >= 'A' && *p <= 'F')
            digit = (unsigned)(*p - 'A') + 10;
        else
            break;
        n = n * base + digit;
    }
    if (p == first)
        return false;
    *at = p;
    *value = n;
    return true;
}

/* The place of a field's value in a line that ends with '\n' or NUL. */
static const char *find_field(const char *line, const char *key, size_t *length)
{
    size_t key_length = strlen(key);
    const char *p = line;
    while (*p && *p != '\n') {
        size_t n = strcspn(p, "\t\n");
        if (n > key_length && p[key_length] == '=' && memcmp(p, key, key_length) == 0) {
            *length = n - key_length - 1;
            return p + key_length + 1;
        }
        p += n;
        if (*p == '\t')
            p++;
    }
    return NULL;
}

bool field_text(const char *line, const char *key, char *out, size_t size)
{
    size_t length;
    const char *value = find_field(line, key, &length);
    if (!value)
        return false;
    if (length >= size)
        length = size - 1;
    memcpy(out, value, length);
    out[length] = '\0';
    return true;
}

bool field_number(const char *line, const char *key, unsigned long long *value)
{
    size_t length;
    const char *at = find_field(line, key, &length);
    return at && parse_number(&at, value);
}

unsigned field_unsigned(const char *line, const char *key, unsigned otherwise)
{
    unsigned long long value;
    return field_number(line, key, &value) ? (unsigned)value : otherwise;
}

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

static void parse_place(const char *line, const char *bus_id, struct place *place)
{
    const char *at = bus_id;
    place->domain = parse_hex(&at);
    place->bus = *at == ':' ? (at++, parse_hex(&at)) : 0;
    place->slot = *at == ':' ? (at++, parse_hex(&at)) : 0;
    place->device = field_unsigned(line, "device", 0);
    place->subsystem = field_unsigned(line, "subsystem", 0);
    place->kind = field_unsigned(line, "class", 0x030200);
}

/* Without a path: one NUMA node, two host bridges, a PCIe switch for each GPU. */
static void parse_path(const char *line, struct gpu *gpu)
{
    char text[64] = "";
    unsigned long long value;
    const unsigned otherwise[PATH_LENGTH] = {0, gpu->place.bus >> 7, gpu->index, 0};
    field_text(line, "path", text, sizeof(text));
    const char *at = text;
    for (int i = 0; i < PATH_LENGTH; i++) {
        gpu->path[i] = parse_number(&at, &value) ? (unsigned)value : otherwise[i];
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

static bool parse_switch(const char *line, struct nvswitch *out)
{
    char bus_id[NVML_BUS_ID_LENGTH];
    if (!field_text(line, "bus", bus_id, sizeof(bus_id)))
        return false;
    parse_place(line, bus_id, &out->place);
    return true;
}

static bool parse_gpu(const char *line, struct gpu *gpu)
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
    parse_place(line, gpu->bus_id, &gpu->place);
    char cc[16] = "";
    field_text(line, "cc", cc, sizeof(cc));
    at = cc;
    if (parse_number(&at, &value)) {
        gpu->cc_major = (unsigned)value;
        if (*at == '.' && (at++, parse_number(&at, &value)))
            gpu->cc_minor = (unsigned)value;
    }
    field_number(line, "memory", &gpu->memory);
    gpu->memory_reserved = gpu->memory / 1024 * 7; /* what an idle driver keeps: some 0.7 per cent */
    gpu->memory_used = gpu->memory_reserved;
    field_number(line, "used", &gpu->memory_used);
    field_number(line, "eccerrors", &gpu->ecc_errors);
    gpu->arch = field_unsigned(line, "arch", UINT_MAX);
    gpu->brand = field_unsigned(line, "brand", 0);
    gpu->board = field_unsigned(line, "board", gpu->place.bus << 8);
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
    gpu->lost = field_unsigned(line, "lost", 0);
    if (gpu->memory)
        gpu->memory_used = gpu->memory_used > gpu->memory ? gpu->memory : gpu->memory_used;
    if (gpu->memory_reserved > gpu->memory_used)
        gpu->memory_reserved = gpu->memory_used;
    return true;
}

static void parse_placements(const char *line, struct profile *profile)
{
    char list[512] = "";
    field_text(line, "placements", list, sizeof(list));
    const char *at = list;
    unsigned long long start, size;
    while (profile->n_placements < MAX_PLACEMENTS && parse_number(&at, &start) && *at == ':' &&
           (at++, parse_number(&at, &size))) {
        nvmlPlacement_t *placement = &profile->placements[profile->n_placements++];
        placement->start = (unsigned)start;
        placement->size = (unsigned)size;
        if (*at == ',')
            at++;
    }
}

static bool parse_profile(const char *line, struct profile *profile)
{
    unsigned long long id;
    if (!field_number(line, "id", &id) ||
        !field_text(line, "name", profile->name, sizeof(profile->name)))
        return false;
    profile->id = (unsigned)id;
    profile->gpu = (int)field_unsigned(line, "gpu", UINT_MAX); /* gpu=* is no number */
    profile->slices = field_unsigned(line, "slices", 1);
    profile->media = field_unsigned(line, "media", 0);
    profile->sm = field_unsigned(line, "sm", 0);
    field_number(line, "memory", &profile->memory_mb);
    parse_placements(line, profile);
    profile->max = field_unsigned(line, "max", profile->n_placements);
    profile->kind = field_unsigned(line, "kind", UINT_MAX);
    return true;
}

/* NVML_GPU_INSTANCE_PROFILE_*: named by slice count, and a suffix of the profile's name. */
static unsigned kind_of(const struct snapshot *s, const struct profile *profile)
{
    static const unsigned char by_slices[] = {[1] = 0, [2] = 1, [3] = 2, [4] = 3,
                                              [6] = 6, [7] = 4, [8] = 5};
    unsigned n = profile->slices;
    const char *suffix = strpbrk(profile->name, "+-");
    if (suffix && strcmp(suffix, "+gfx") == 0)
        return n == 1 ? 0xA : n == 2 ? 0xB : n == 3 ? 0x11 : 0xC;
    if (suffix && strcmp(suffix, "-me") == 0)
        return n == 1 ? 0xD : 0xE;
    if (suffix && strcmp(suffix, "+me.all") == 0)
        return n == 1 ? 0xF : 0x10;
    if (suffix && strcmp(suffix, "+me") == 0)
        return n == 1 ? 0x7 : 0x8;
    for (unsigned i = 0; i < s->n_profiles && n == 1; i++) {
        const struct profile *other = &s->profiles[i]; /* 1g.20gb beside 1g.10gb is "REV2" */
        if (other->gpu == profile->gpu && other->slices == 1 &&
            other->memory_mb && other->memory_mb * 3 < profile->memory_mb * 2)
            return 0x9;
    }
    return n < sizeof(by_slices) ? by_slices[n] : UINT_MAX;
}

static bool parse_compute_instance(const char *line, struct compute_instance *ci)
{
    ci->gpu = field_unsigned(line, "gpu", UINT_MAX);
    ci->gi = field_unsigned(line, "gi", UINT_MAX);
    ci->id = field_unsigned(line, "id", UINT_MAX);
    ci->profile = field_unsigned(line, "profile", 0);
    ci->start = field_unsigned(line, "start", UINT_MAX);
    ci->size = field_unsigned(line, "size", compute_slices(ci->profile));
    return ci->id != UINT_MAX && field_text(line, "uuid", ci->uuid, sizeof(ci->uuid));
}

static void parse_event(const char *line, struct event *event)
{
    field_number(line, "seq", &event->seq);
    field_number(line, "type", &event->type);
    field_number(line, "data", &event->data);
    event->gpu = field_unsigned(line, "gpu", UINT_MAX);
    event->gi = field_unsigned(line, "gi", UINT_MAX);
    event->ci = field_unsigned(line, "ci", UINT_MAX);
}

static void parse_fault(const char *line, struct snapshot *s)
{
    char kind[16] = "";
    field_text(line, "nvml", kind, sizeof(kind));
    s->fault = !strcmp(kind, "hang")        ? HANG
               : !strcmp(kind, "hang-hard") ? HANG_HARD
               : !strcmp(kind, "crash")     ? CRASH
                                            : NO_FAULT;
    field_number(line, "until", &s->fault_until);
}

static void set_cap(struct snapshot *s, const char *line)
{
    unsigned gpu = field_unsigned(line, "gpu", UINT_MAX), gi = field_unsigned(line, "gi", UINT_MAX);
    unsigned ci = field_unsigned(line, "ci", UINT_MAX), minor = field_unsigned(line, "minor", 0);
    struct gpu_instance *instance = find_gpu_instance(s, gpu, gi);
    struct compute_instance *compute = find_compute_instance(s, gpu, gi, ci);
    if (ci == UINT_MAX && instance) {
        instance->cap = minor;
        instance->has_cap = true;
    } else if (compute) {
        compute->cap = minor;
        compute->has_cap = true;
    }
}

static bool is_record(const char *line, const char *name)
{
    size_t n = strlen(name);
    return strncmp(line, name, n) == 0 && line[n] == '\t';
}

static void copy_line_value(const char *line, char *out, size_t size)
{
    const char *value = strchr(line, '\t') + 1;
    size_t n = strcspn(value, "\t\n");
    if (n >= size)
        n = size - 1;
    memcpy(out, value, n);
    out[n] = '\0';
}

static bool parse_instance(const char *line, struct gpu_instance *gi)
{
    gi->gpu = field_unsigned(line, "gpu", UINT_MAX);
    gi->id = field_unsigned(line, "id", UINT_MAX);
    gi->profile = field_unsigned(line, "profile", 0);
    gi->start = field_unsigned(line, "start", 0);
    gi->size = field_unsigned(line, "size", 1);
    return gi->gpu != UINT_MAX && gi->id != UINT_MAX;
}

/* Returns false if the record is damaged or does not fit; unknown records are skipped. */
static bool parse_record(struct snapshot *s, const char *line)
{
    if (is_record(line, "driver"))
        copy_line_value(line, s->driver, sizeof(s->driver));
    else if (is_record(line, "tree"))
        copy_line_value(line, s->tree, sizeof(s->tree));
    else if (is_record(line, "cuda")) {
        unsigned long long value = 0;
        const char *at = strchr(line, '\t') + 1;
        if (!parse_number(&at, &value))
            return false;
        s->cuda = (unsigned)value;
    } else if (is_record(line, "major"))
        s->caps_major = field_unsigned(line, "nvidia-caps", 0);
    else if (is_record(line, "gpu"))
        return s->n_gpus < MAX_GPUS && parse_gpu(line, &s->gpus[s->n_gpus++]);
    else if (is_record(line, "fault"))
        parse_fault(line, s);
    else if (is_record(line, "switch"))
        return s->n_switches < MAX_SWITCHES && parse_switch(line, &s->switches[s->n_switches++]);
    else if (is_record(line, "profile"))
        return s->n_profiles < MAX_PROFILES && parse_profile(line, &s->profiles[s->n_profiles++]);
    else if (is_record(line, "gi"))
        return s->n_gpu_instances < MAX_GPU_INSTANCES &&
               parse_instance(line, &s->gpu_instances[s->n_gpu_instances++]);
    else if (is_record(line, "ci"))
        return s->n_compute_instances < MAX_COMPUTE_INSTANCES &&
               parse_compute_instance(line, &s->compute_instances[s->n_compute_instances++]);
    else if (is_record(line, "event")) {
        if (s->n_events == MAX_EVENTS) { /* the oldest go first, as in any ring of events */
            memmove(s->events, s->events + 1, sizeof(s->events) - sizeof(s->events[0]));
            s->n_events--;
        }
        memset(&s->events[s->n_events], 0, sizeof(s->events[0]));
        parse_event(line, &s->events[s->n_events++]);
    }
    return true;
}

/* Sort into the order in which NVML counts. Insertion sort: the lists are short and stable. */
static void sort_records(struct snapshot *s)
{
    for (unsigned i = 1; i < s->n_gpus; i++)
        for (unsigned j = i; j && s->gpus[j].index < s->gpus[j - 1].index; j--) {
            struct gpu gpu = s->gpus[j];
            s->gpus[j] = s->gpus[j - 1];
            s->gpus[j - 1] = gpu;
        }
    for (unsigned i = 1; i < s->n_gpu_instances; i++)
        for (unsigned j = i; j; j--) {
            struct gpu_instance *a = &s->gpu_instances[j - 1], *b = &s->gpu_instances[j], t = *a;
            if (a->gpu < b->gpu || (a->gpu == b->gpu && a->id <= b->id))
                break;
            *a = *b;
            *b = t;
        }
    for (unsigned i = 1; i < s->n_compute_instances; i++)
        for (unsigned j = i; j; j--) {
            struct compute_instance *a = &s->compute_instances[j - 1], *b = a + 1, t = *a;
            if (a->gpu < b->gpu || (a->gpu == b->gpu && (a->gi < b->gi ||
                                    (a->gi == b->gi && a->id <= b->id))))
                break;
            *a = *b;
            *b = t;
        }
}

/* Compute instances without a recorded place stand one after the other. */
static void place_compute_instances(struct snapshot *s)
{
    unsigned next = 0;
    for (unsigned i = 0; i < s->n_compute_instances; i++) {
        struct compute_instance *ci = &s->compute_instances[i];
        if (i == 0 || ci->gpu != ci[-1].gpu || ci->gi != ci[-1].gi)
            next = 0;
        if (ci->start == UINT_MAX)
            ci->start = next;
        next = ci->start + ci->size;
    }
}

nvmlReturn_t parse_snapshot(const struct text *text, struct snapshot *out)
{
    memset(out, 0, sizeof(*out));
    unsigned long long version, generation = 0, end = 0;
    const char *line = text->data, *at;
    if (!is_record(line, "nvct-sim"))
        return NVML_ERROR_UNKNOWN;
    at = strchr(line, '\t') + 1;
    if (!parse_number(&at, &version) || version != 1 || *at++ != '\t' ||
        !parse_number(&at, &generation))
        return NVML_ERROR_UNKNOWN;
    bool ended = false;
    for (const char *next = line; next && *next && !ended;) {
        line = next;
        next = strchr(line, '\n');
        next = next ? next + 1 : NULL;
        if (is_record(line, "end")) {
            at = line + 4;
            ended = parse_number(&at, &end);
        } else if (!parse_record(out, line))
            return NVML_ERROR_UNKNOWN;
    }
    if (!ended || generation != end)
        return NVML_ERROR_UNKNOWN;
    out->generation = (unsigned long)generation;
    sort_records(out);
    for (unsigned i = 0; i < out->n_profiles; i++)
        if (out->profiles[i].kind == UINT_MAX)
            out->profiles[i].kind = kind_of(out, &out->profiles[i]);
    place_compute_instances(out);
    for (const char *next = text->data; next && *next;) { /* after sorting: they look up */
        if (is_record(next, "cap"))
            set_cap(out, next);
        next = strchr(next, '\n');
        next = next ? next + 1 : NULL;
    }
    return NVML_SUCCESS;
}

struct gpu *find_gpu(struct snapshot *s, unsigned index)
{
    for (unsigned i = 0; i < s->n_gpus; i++)
        if (s->gpus[i].index == index)
            return &s->gpus[i];
    return NULL;
}

struct gpu_instance *find_gpu_instance(struct snapshot *s, unsigned gpu, unsigned id)
{
    for (unsigned i = 0; i < s->n_gpu_instances; i++)
        if (s->gpu_instances[i].gpu == gpu && s->gpu_instances[i].id == id)
            return &s->gpu_instances[i];
    return NULL;
}

struct compute_instance *find_compute_instance(struct snapshot *s, unsigned gpu, unsigned gi,
                                               unsigned id)
{
    for (unsigned i = 0; i < s->n_compute_instances; i++) {
        struct compute_instance *ci = &s->compute_instances[i];
        if (ci->gpu == gpu && ci->gi == gi && ci->id == id)
            return ci;
    }
    return NULL;
}

const struct profile *find_profile(const struct snapshot *s, unsigned gpu, unsigned id)
{
    const struct profile *common = NULL;
    for (unsigned i = 0; i < s->n_profiles; i++) {
        const struct profile *profile = &s->profiles[i];
        if (profile->id == id && profile->gpu == (int)gpu)
            return profile; /* a GPU's own record wins over gpu=* */
        if (profile->id == id && profile->gpu == -1)
            common = profile;
    }
    return common;
}
