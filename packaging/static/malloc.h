/* SPDX-License-Identifier: Apache-2.0
 *
 * The heap that goes into the image.
 */
#define HEAP (8 << 20) /* image.py has it too */

void heap_open(void); /* the seed maps it; of a program with an image it is a part */
char *heap_close(void); /* returns where it ends in the image */
