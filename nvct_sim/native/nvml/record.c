/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers and fields of one line of the state. Numbers are parsed here: newer C libraries redirect
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

/* The start of a field's value in a line that ends with '\n' or NUL; NULL if there is no field. */
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

unsigned field_unsigned(const char *line, const char *key, unsigned fallback)
{
    unsigned long long value;
    return field_number(line, key, &value) ? (unsigned)value : fallback;
}
