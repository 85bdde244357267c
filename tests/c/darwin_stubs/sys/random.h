/* See sys/sysctl.h beside this file. */
#ifndef DARWIN_STUB_SYS_RANDOM_H
#define DARWIN_STUB_SYS_RANDOM_H
#include <stddef.h>
int getentropy(void *buffer, size_t length);
#endif
