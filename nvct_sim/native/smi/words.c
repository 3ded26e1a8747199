/* SPDX-License-Identifier: Apache-2.0
 *
 * Words of the command line: numbers, and lists separated by commas.
 */
#include <stdio.h>
#include <string.h>

#include "smi.h"

bool parse_unsigned(const char *text, unsigned *out)
{
    unsigned n = 0;
    if (!text || !*text || strlen(text) > 9)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        n = n * 10 + (unsigned)(*text - '0');
    }
    *out = n;
    return true;
}

const char *next_word(const char *list, char *word, size_t size)
{
    size_t n = strcspn(list, ",");
    snprintf(word, size, "%.*s", (int)n, list);
    return list + n + (list[n] == ',');
}

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
