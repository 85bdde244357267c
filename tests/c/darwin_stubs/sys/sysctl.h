/* Just enough of macOS's header for a syntax check of csrc/os/os_darwin.c on another system. */
#ifndef DARWIN_STUB_SYS_SYSCTL_H
#define DARWIN_STUB_SYS_SYSCTL_H
#include <stddef.h>
#include <sys/time.h>
#include <unistd.h>
#define CTL_KERN 1
#define KERN_PROC 14
#define KERN_PROC_PID 1
#define KERN_BOOTTIME 21
#define _CS_DARWIN_USER_TEMP_DIR 65537
struct extern_proc {
    struct timeval p_starttime; /* a macro for a member of a union there; used the same way */
};
struct kinfo_proc {
    struct extern_proc kp_proc;
};
int sysctl(int *name, unsigned length, void *old, size_t *old_length, void *fresh, size_t fresh_length);
#endif
