/* What check.c and readings.c share with snapshot.c. */
#ifndef ML_CORE_SNAPSHOT_H
#define ML_CORE_SNAPSHOT_H

#include "core/core.h"
#include "core/hot.h"

void ml_view_snapshot(const ml_view *view, unsigned index, ml_snapshot *out);
unsigned ml_view_members(const ml_view *view, os_probe *probe, bool hosts_only, ml_member *out, unsigned capacity);
void ml_sample_to_reading(const ml_sample *sample, ml_reading *out);
const ml_view *ml_image_view(const ml_image *image);
/* Does any process hold a slot of the file at `path`, whatever its layout? 1, 0, or -1: cannot tell. */
int ml_path_has_owners(const char *path);

#endif
