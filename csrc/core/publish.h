/* What publish.c and claim.c share. */
#ifndef ML_CORE_PUBLISH_H
#define ML_CORE_PUBLISH_H

#include "core/core.h"

/* Every writing hot call starts here. ML_OK: M is held. */
int ml_enter(ml_ledger *ledger);
/* Under M: the account that stands for this one now. */
static inline ml_account *ml_account_now(ml_account *account) {
    while (account->moved_to) account = account->moved_to;
    return account;
}
/* Under M: replace the account's amounts and move the process's claims in one publish per level. */
int ml_account_apply(ml_account *account, const ml_amounts *new_amounts, uint64_t claims_down, uint64_t claims_up);

#endif
