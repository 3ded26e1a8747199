/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-smi's lists as CSV: --query-gpu and --query-compute-apps.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

/* Cut the next field off a list; spaces before it are skipped. */
static const char *next_field(const char *list, char *field, size_t size)
{
    return next_word(list + strspn(list, " "), field, size);
}

static void query_head(const char *list)
{
    char name[64];
    for (const char *p = list; *p;) {
        bool first = p == list;
        p = next_field(p, name, sizeof(name));
        const char *unit, *full_name = field_name(name, &unit);
        printf(*unit ? "%s%s [%s]" : "%s%s", first ? "" : ", ", full_name, unit);
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
        bool with_unit = units && *value && *unit;
        printf("%s%s%s%s", first ? "" : ", ", *value ? value : "[N/A]", with_unit ? " " : "",
               with_unit ? unit : "");
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

int print_query(const struct gpu_list *list, const char *ids, const char *names,
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
        if (!list->gpus[i].status && is_selected(&list->gpus[i], ids))
            query_line(&list->gpus[i], names, !has_word(format, "nounits"));
    return EXIT_DONE;
}

/* No process runs on a simulated GPU, so the list has a head and no rows. */
int print_processes(const char *names, const char *format)
{
    static const char *const columns[][2] = {
        {"timestamp", "timestamp"}, {"gpu_name", "gpu_name"}, {"gpu_bus_id", "gpu_bus_id"},
        {"gpu_serial", "gpu_serial"}, {"gpu_uuid", "gpu_uuid"}, {"pid", "pid"},
        {"process_name", "process_name"}, {"name", "process_name"},
        {"used_gpu_memory", "used_gpu_memory [MiB]"}, {"used_memory", "used_gpu_memory [MiB]"}};
    char name[64], head[512] = "";
    int status = check_format(format);
    for (const char *p = names; !status && *p;) {
        const char *column = NULL;
        p = next_field(p, name, sizeof(name));
        for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
            if (!strcmp(columns[i][0], name))
                column = columns[i][1];
        size_t n = strlen(head);
        if (column)
            snprintf(head + n, sizeof(head) - n, "%s%s", n ? ", " : "", column);
        else
            status = no_such_field(name);
    }
    if (!status && !has_word(format, "noheader"))
        puts(head);
    return status;
}
