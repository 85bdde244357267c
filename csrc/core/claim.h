/* What the waiting claim (waiting.c) and the bindings need beside memledger.h. */
#ifndef ML_CORE_CLAIM_H
#define ML_CORE_CLAIM_H

#include "core/core.h"

typedef struct ml_ticket ml_ticket;

/* Make `bytes` more granted, by one run of attempts. On ML_OK M is still held, so that the caller can finish its own
 * books; *checked: 0 where there was nothing to check against. */
int ml_claim_acquire(ml_account *account, uint64_t bytes, ml_ticket *ticket, bool cold, uint32_t *checked);
/* One run of attempts. Hot: few, never yields, leaves as ML_BUSY when somebody waits in line. */
int ml_claim_run(ml_account *account, uint64_t bytes, uint64_t replacing, uint64_t ttl_ns, ml_ticket *ticket, bool cold,
                 ml_claim *claim);
int ml_claim_resize_run(ml_claim *claim, uint64_t bytes, ml_ticket *ticket, bool cold);

/* Asked while a claim waits, every 50 ms; true: wait no longer. NULL: nobody is asked. Holds no lock of the ledger. */
typedef struct ml_stop {
    bool (*asked)(void *context);
    void *context;
} ml_stop;

typedef struct ml_claim_request {
    uint64_t bytes, replacing, ttl_ns, timeout_ns;
    bool sweep; /* clear the dead before a refusal, without asking any source */
    ml_stop stop;
} ml_claim_request;
int ml_claim_wait_run(ml_account *account, const ml_claim_request *request, ml_claim *claim, uint64_t *free_bytes);
/* The memory of *claim is about to go away: take it off the ledger's list. May wait for M. */
void ml_claim_forget(ml_claim *claim);
int ml_claim_resize_wait(ml_claim *claim, uint64_t bytes, uint64_t timeout_ns, ml_stop stop);

#endif
