/* The waiting ticket: a refused claimer stands in line, and later ones leave room for it, so that bytes which were
 * freed for it reach it. It plays no part in safety. */
#ifndef ML_CORE_WAITING_H
#define ML_CORE_WAITING_H

#include "core/claim.h"

/* One claimer's view of the line, for the whole of one claim. */
struct ml_ticket {
    bool taken;      /* own ticket */
    uint64_t number; /* 34 bits */
    bool looked;     /* `noted` is filled: the waiting words of the first scan. Later ones never count. */
    uint64_t noted[ML_SLOTS_MAX];
    uint64_t now_ns; /* of this process, read before M was taken */
};

/* Under M, at the outermost level, where somebody waits: may a claimer go on, whose scan found `taken` units (its own
 * included) below `top`? `ticket` NULL (hot): no, since honouring needs a clock. */
bool ml_ticket_look(ml_ticket *ticket, ml_local_pool *pool, uint64_t taken, uint64_t top);

#endif
