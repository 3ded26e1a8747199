/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi's lists as CSV: --query-gpu and --query-compute-apps.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

bool has_word(const char *list, const char *word)
{
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (n == strlen(word) && strncmp(p, word, n) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

/* Cut the next field off a list. Returns where the rest starts. */
static const char *next_field(const char *list, char *field, size_t size)
{
    size_t n = strcspn(list, ",");
    while (*list == ' ')
        list++, n--;
    snprintf(field, size, "%.*s", (int)n, list);
    return list + n + (list[n] == ',');
}

static void query_head(const char *list)
{
    char name[64];
    for (const char *p = list; *p;) {
        bool first = p == list;
        p = next_field(p, name, sizeof(name));
        const char *unit, *full = field_name(name, &unit);
        printf(*unit ? "%s%s [%s]" : "%s%s", first ? "" : ", ", full, unit);
    }
    putchar('\n');
}

static void query_line(const struct gpu_entry *gpu, const char *list, bool units)
{
    char name[64], value[128];
    for (const char *p = list; *p;) {
        bool first = p == list;
        p = next_field(p, name, sizeof(name));
        const char *unit;
        field_name(name, &unit);
        write_bare(gpu, name, value, sizeof(value));
        bool shown = units && *value && *unit;
        printf("%s%s%s%s", first ? "" : ", ", *value ? value : "[N/A]", shown ? " " : "",
               shown ? unit : "");
    }
    putchar('\n');
}

static int check_format(const char *format)
{
    if (format && has_word(format, "csv"))
        return EXIT_DONE;
    puts("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.");
    return EXIT_INVALID_ARGUMENT;
}

static int no_such_field(const char *name)
{
    printf("Field \"%s\" is not a valid field to query.\n", name);
    return EXIT_INVALID_ARGUMENT;
}

int print_query(const struct gpu_list *list, const char *wanted, const char *names,
                const char *format)
{
    char name[64];
    const char *unit;
    int status = check_format(format);
    for (const char *p = names; !status && *p;) {
        p = next_field(p, name, sizeof(name));
        if (!field_name(name, &unit))
            status = no_such_field(name);
    }
    if (status)
        return status;
    if (!has_word(format, "noheader"))
        query_head(names);
    for (unsigned i = 0; i < list->count; i++)
        if (!list->gpus[i].status && is_selected(&list->gpus[i], i, wanted))
            query_line(&list->gpus[i], names, !has_word(format, "nounits"));
    return EXIT_DONE;
}

/* Nothing runs on a simulated GPU: the answer is the head of a list. */
int print_processes(const char *names, const char *format)
{
    static const char *const known[][2] = {
        {"timestamp", "timestamp"}, {"gpu_name", "gpu_name"}, {"gpu_bus_id", "gpu_bus_id"},
        {"gpu_serial", "gpu_serial"}, {"gpu_uuid", "gpu_uuid"}, {"pid", "pid"},
        {"process_name", "process_name"}, {"name", "process_name"},
        {"used_gpu_memory", "used_gpu_memory [MiB]"}, {"used_memory", "used_gpu_memory [MiB]"}};
    char name[64], head[512] = "";
    int status = check_format(format);
    for (const char *p = names; !status && *p;) {
        const char *shown = NULL;
        p = next_field(p, name, sizeof(name));
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            if (!strcmp(known[i][0], name))
                shown = known[i][1];
        size_t n = strlen(head);
        if (shown)
            snprintf(head + n, sizeof(head) - n, "%s%s", n ? ", " : "", shown);
        else
            status = no_such_field(name);
    }
    if (!status && !has_word(format, "noheader"))
        puts(head);
    return status;
}
