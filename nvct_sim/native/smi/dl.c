/* SPDX-License-Identifier: Apache-2.0
 *
 * dlopen and dlsym in the versions that every glibc exports; those of glibc 2.34 are new symbols.
 */
#include "smi.h"

__asm__(".symver old_dlopen,dlopen@" OLDEST_GLIBC);
__asm__(".symver old_dlsym,dlsym@" OLDEST_GLIBC);

void *old_dlopen(const char *name, int flags);
void *old_dlsym(void *library, const char *name);

void *open_library(const char *name, int flags)
{
    return old_dlopen(name, flags);
}

void *find_symbol(void *library, const char *name)
{
    return old_dlsym(library, name);
}
