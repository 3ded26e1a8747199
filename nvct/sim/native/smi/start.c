/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's entry point, in place of crt1.o: that of glibc 2.34 and later wants a symbol which
 * older C libraries lack, and nvidia-smi has to start in containers with glibc 2.31. The old version
 * of __libc_start_main is still exported, and so are the old ones of dlopen and dlsym.
 */
#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\n"
        "    xor %ebp, %ebp\n    mov %rsp, %rdi\n    mov %rdx, %rsi\n"
        "    and $-16, %rsp\n    call start_program\n    hlt\n");
#elif defined(__aarch64__)
#define BASE "GLIBC_2.17"
__asm__(".text\n.globl _start\n.type _start,%function\n_start:\n"
        "    mov x29, #0\n    mov x30, #0\n    mov x1, x0\n    mov x0, sp\n"
        "    b start_program\n");
#else
#error "the simulation knows x86_64 and aarch64"
#endif

__asm__(".symver old_start_main,__libc_start_main@" BASE);
__asm__(".symver old_dlopen,dlopen@" BASE);
__asm__(".symver old_dlsym,dlsym@" BASE);

int old_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                   void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
void *old_dlopen(const char *name, int flags);
void *old_dlsym(void *library, const char *name);
void *open_library(const char *name, int flags);
void *find_symbol(void *library, const char *name);
int main(int argc, char **argv, char **environment);
void start_program(long *stack, void (*rtld_fini)(void));

void start_program(long *stack, void (*rtld_fini)(void))
{
    old_start_main(main, (int)stack[0], (char **)(stack + 1), 0, 0, rtld_fini, stack);
    __builtin_unreachable();
}

void *open_library(const char *name, int flags)
{
    return old_dlopen(name, flags);
}

void *find_symbol(void *library, const char *name)
{
    return old_dlsym(library, name);
}
