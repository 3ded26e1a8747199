/* SPDX-License-Identifier: Apache-2.0
 *
 * malloc for a process of one thread that lives for milliseconds. musl's asks the kernel for every
 * few pages and hands them back at once: 130 calls of mmap and 50 of munmap, 1.8 of 10.5 ms of CPU
 * from start to exec. Here memory comes in chunks, freed blocks are kept by size, and only large
 * ones go back. Compile with -fno-builtin-malloc, or calloc becomes a call of itself.
 *
 * Memory comes from the heap first, which begins where the program's variables end. What is in it
 * when the image is taken (main.c) is part of the file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "malloc.h"

#define CHUNK (256 << 10)
#define CODE 320 /* most code objects are as large, and few others are */
#define LARGE (1 << 20) /* from here on a mapping of its own; smaller ones have a class */
#define HEAD 16
#define PAGE 4096

struct block {
	size_t room; /* bytes behind the head */
	size_t mapped; /* bytes of a large block's mapping, else 0 */
};

static struct block *free_blocks[64];
static struct {
	char *next, *limit;
} chunks[2]; /* code is written to when it runs, which costs a page's copy: it stands together */
static char *heap_next, *heap_end;
static int has_image;

extern char end[]; /* of the program's variables: end(3) */

/* Four classes between powers of two, so that at most a quarter is lost. */
static unsigned class_of(size_t size, size_t *room)
{
	unsigned shift;
	size_t step;
	if (size <= 64) {
		*room = (size + 15) & ~(size_t)15;
		if (!*room)
			*room = 16;
		return (unsigned)(*room / 16) - 1;
	}
	shift = 63 - (unsigned)__builtin_clzl(size - 1);
	step = (size_t)1 << (shift - 2);
	*room = (size + step - 1) & ~(step - 1);
	return 4 * (shift - 6) + 4 + (unsigned)((*room - ((size_t)1 << shift)) / step) - 1;
}

void heap_open(void)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	char *start = (char *)(((uintptr_t)end + page - 1) & ~(page - 1));
	if (mmap(start, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != start)
		return;
	heap_next = start;
	heap_end = start + HEAP;
}

char *heap_close(void)
{
	has_image = 1;
	memset(chunks, 0, sizeof chunks); /* in a hole between old blocks a new one costs a page's copy */
	memset(free_blocks, 0, sizeof free_blocks);
	return heap_next;
}

static void *map(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void *take(size_t size)
{
	char *at = heap_next;
	size = (size + HEAD - 1) & ~(size_t)(HEAD - 1);
	if (size <= (size_t)(heap_end - heap_next)) {
		heap_next += size;
		return at;
	}
	return has_image ? map(size) : NULL; /* it would not be in the image */
}

static void *large(size_t size)
{
	struct block *block;
	size_t mapped = (size + HEAD + PAGE - 1) & ~(size_t)(PAGE - 1);
	block = mapped > size && has_image ? map(mapped) : NULL;
	if (!block) {
		errno = ENOMEM;
		return NULL;
	}
	block->room = mapped - HEAD;
	block->mapped = mapped;
	return (char *)block + HEAD;
}

static struct block *cut(size_t room)
{
	struct block *block;
	int which = room >= CODE;
	if (room + HEAD > CHUNK) {
		block = take(room + HEAD);
	} else {
		if ((size_t)(chunks[which].limit - chunks[which].next) < room + HEAD) {
			char *chunk = take(CHUNK); /* what is left of the last one stays unused */
			if (!chunk)
				return NULL;
			chunks[which].next = chunk;
			chunks[which].limit = chunk + CHUNK;
		}
		block = (struct block *)chunks[which].next;
		chunks[which].next += room + HEAD;
	}
	if (block) {
		block->room = room;
		block->mapped = 0;
	}
	return block;
}

void *malloc(size_t size)
{
	struct block *block;
	unsigned class;
	size_t room;
	if (size >= LARGE)
		return large(size);
	class = class_of(size, &room);
	block = free_blocks[class];
	if (block) {
		memcpy(&free_blocks[class], (char *)block + HEAD, sizeof(void *));
		return (char *)block + HEAD;
	}
	block = cut(room);
	if (!block) {
		errno = ENOMEM;
		return NULL;
	}
	return (char *)block + HEAD;
}

void free(void *at)
{
	struct block *block;
	size_t room;
	unsigned class;
	if (!at)
		return;
	block = (struct block *)((char *)at - HEAD);
	if (block->mapped) {
		munmap(block, block->mapped);
		return;
	}
	class = class_of(block->room, &room);
	memcpy(at, &free_blocks[class], sizeof(void *));
	free_blocks[class] = block;
}

void *calloc(size_t count, size_t size)
{
	size_t whole;
	void *at;
	if (__builtin_mul_overflow(count, size, &whole)) {
		errno = ENOMEM;
		return NULL;
	}
	at = malloc(whole);
	if (at && !((struct block *)((char *)at - HEAD))->mapped) /* a mapping is zero */
		memset(at, 0, whole);
	return at;
}

void *realloc(void *at, size_t size)
{
	struct block *block;
	void *moved;
	if (!at)
		return malloc(size);
	block = (struct block *)((char *)at - HEAD);
	if (size <= block->room)
		return at;
	if (block->mapped && size < SIZE_MAX - PAGE - HEAD) {
		size_t mapped = (size + HEAD + PAGE - 1) & ~(size_t)(PAGE - 1);
		block = mremap(block, block->mapped, mapped, MREMAP_MAYMOVE);
		if (block == MAP_FAILED) {
			errno = ENOMEM;
			return NULL;
		}
		block->room = mapped - HEAD;
		block->mapped = mapped;
		return (char *)block + HEAD;
	}
	moved = malloc(size);
	if (moved) {
		memcpy(moved, at, block->room);
		free(at);
	}
	return moved;
}
