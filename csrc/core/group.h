/* What move.c needs of group.c. */
#ifndef ML_CORE_GROUP_H
#define ML_CORE_GROUP_H

#include "core/core.h"

/* The handle has come to another segment or slot, or runs in a forked child: it follows nobody, and requests that were
 * made before are not for it. Under M or before anybody else has the handle. */
void ml_group_forget(ml_ledger *ledger);

#endif
