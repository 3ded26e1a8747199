/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's entry point, in place of crt1.o. The crt1.o of glibc 2.34 and later needs a symbol
 * that older C libraries lack, and nvidia-smi has to start in containers with glibc 2.31. Every
 * glibc still exports the old version of __libc_start_main.
 */
#include "smi.h"

#if defined(__x86_64__)
__asm__(".text\n.globl _start\n.type _start,@function\n_start:\n"
        "    xor %ebp, %ebp\n    mov %rsp, %rdi\n    mov %rdx, %rsi\n"
        "    and $-16, %rsp\n    call start_program\n    hlt\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl _start\n.type _start,%function\n_start:\n"
        "    mov x29, #0\n    mov x30, #0\n    mov x1, x0\n    mov x0, sp\n"
        "    b start_program\n");
#endif

__asm__(".symver old_start_main,__libc_start_main@" OLDEST_GLIBC);

int old_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                   void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
int main(int argc, char **argv, char **environment);
void start_program(long *stack, void (*rtld_fini)(void));

void start_program(long *stack, void (*rtld_fini)(void))
{
    old_start_main(main, (int)stack[0], (char **)(stack + 1), 0, 0, rtld_fini, stack);
    __builtin_unreachable();
}
