/* SPDX-License-Identifier: Apache-2.0
 *
 * Edits the text of a state: adds, removes and changes lines.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "simulation.h"

/* Insert a line before the last one, "end", or append it if there is no "end" yet. */
nvmlReturn_t text_append(struct text *text, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (n < 0 || (size_t)n >= sizeof(line) || text->length + (size_t)n >= TEXT_SIZE)
        return NVML_ERROR_MEMORY;
    char *at = strstr(text->data, "\nend\t");
    at = at ? at + 1 : text->data + text->length;
    memmove(at + n, at, strlen(at) + 1);
    memcpy(at, line, (size_t)n);
    text->length += (size_t)n;
    return NVML_SUCCESS;
}

static bool line_matches(const char *line, const struct match *match)
{
    size_t n = strlen(match->record);
    if (strncmp(line, match->record, n) != 0 || line[n] != '\t')
        return false;
    for (int i = 0; i < MATCH_FIELDS && match->fields[i].key; i++) {
        unsigned long long value;
        if (!field_number(line, match->fields[i].key, &value) || value != match->fields[i].value)
            return false;
    }
    return true;
}

void text_remove(struct text *text, const struct match *match)
{
    for (char *line = text->data; *line;) {
        char *next = strchr(line, '\n');
        next = next ? next + 1 : line + strlen(line);
        if (line_matches(line, match))
            memmove(line, next, strlen(next) + 1);
        else
            line = next;
    }
    text->length = strlen(text->data);
}

nvmlReturn_t text_set(struct text *text, const struct match *match, const char *key,
                      const char *value)
{
    char field[64];
    int n = snprintf(field, sizeof(field), "\t%s=", key);
    for (char *line = text->data; line && *line;) {
        char *next = strchr(line, '\n');
        if (line_matches(line, match)) {
            char *at = strstr(line, field);
            if (!at || at > next) { /* no such field: add it at the line's end */
                size_t added = (size_t)n + strlen(value);
                if (!next || text->length + added >= TEXT_SIZE)
                    return NVML_ERROR_MEMORY;
                memmove(next + added, next, strlen(next) + 1);
                memcpy(next, field, (size_t)n);
                memcpy(next + n, value, strlen(value));
            } else {
                char *old = at + n;
                size_t length = strcspn(old, "\t\n");
                if (text->length - length + strlen(value) >= TEXT_SIZE)
                    return NVML_ERROR_MEMORY;
                memmove(old + strlen(value), old + length, strlen(old + length) + 1);
                memcpy(old, value, strlen(value));
            }
            text->length = strlen(text->data);
            return NVML_SUCCESS;
        }
        line = next ? next + 1 : NULL;
    }
    return NVML_ERROR_NOT_FOUND;
}
