/* The claim object: what a process keeps of a grant, until its bytes have landed or it is dropped. */
#include "core/claim.h"
#include "core/publish.h"

#include <string.h>

static void link_claim(ml_ledger *ledger, ml_claim *claim) {
    claim->next = ledger->claims;
    claim->link = &ledger->claims;
    if (claim->next) claim->next->link = &claim->next;
    ledger->claims = claim;
}

static void unlink_claim(ml_claim *claim) {
    if (!claim->link) return;
    *claim->link = claim->next;
    if (claim->next) claim->next->link = claim->link;
    claim->link = NULL;
    claim->next = NULL;
}

int ml_claim_run(ml_account *account, uint64_t bytes, uint64_t replacing, uint64_t ttl_ns, ml_ticket *ticket, bool cold,
                 ml_claim *claim) {
    ml_ledger *ledger = account->device->ledger;
    memset(claim, 0, sizeof *claim);
    if (bytes > ML_BYTES_MAX || replacing > ML_BYTES_MAX) return ML_ERR_FIGURE;
    uint64_t deadline = ttl_ns ? ml_add_sat(os_now_ns(), ttl_ns) : 0;
    uint64_t now_bytes = ml_sub_sat(bytes, replacing);
    uint32_t checked = 0;
    int status = ml_claim_acquire(account, now_bytes, ticket, cold, &checked);
    if (status != ML_OK) return status;
    claim->account = ml_account_now(account);
    claim->size_bytes = bytes;
    claim->open_bytes = now_bytes;
    claim->deadline_ns = deadline;
    claim->checked = checked;
    claim->fork_count = ledger->fork_count;
    link_claim(ledger, claim);
    ml_lock_release(&ledger->lock);
    return ML_OK;
}

static bool reading_is_due(const ml_device *device) {
    for (unsigned l = 0; l < device->level_count; l++)
        if (ml_load_relaxed(&device->level[l]->due)) return true;
    return false;
}

int ml_claim_try(ml_account *account, uint64_t bytes, uint64_t replacing, uint64_t ttl_ns, ml_claim *claim) {
    memset(claim, 0, sizeof *claim);
    if (ML_UNLIKELY(reading_is_due(account->device))) return ML_SLOW_READING;
    return ml_claim_run(account, bytes, replacing, ttl_ns, NULL, false, claim);
}

/* Ended, or of the process that we were forked from. Under M. */
static bool is_open(const ml_ledger *ledger, const ml_claim *claim) {
    return claim->account && claim->link && claim->fork_count == ledger->fork_count;
}

/* The claim pays for the growth: by as much as held grows it shrinks, and the reverse, within 0..size. */
static uint64_t open_after(const ml_claim *claim, uint64_t held) {
    uint64_t before = claim->account->amounts.held;
    if (held >= before) return ml_sub_sat(claim->open_bytes, held - before);
    return ml_min_u64(claim->size_bytes, ml_add_sat(claim->open_bytes, before - held));
}

static int publish_through(ml_claim *claim, const ml_amounts *amounts, bool settle) {
    if (!claim->account) return ML_EXPIRED;
    ml_ledger *ledger = claim->account->device->ledger;
    int status = ml_enter(ledger);
    if (status != ML_OK) return status;
    bool open = is_open(ledger, claim);
    uint64_t before = open ? claim->open_bytes : 0;
    uint64_t after = !open || settle ? 0 : open_after(claim, amounts->held);
    /* Above the claim, or after its end: growth without a claim. The memory exists, so it is published, never
     * refused. */
    status = ml_account_apply(claim->account, amounts, before, after);
    if (status == ML_OK && open) {
        claim->open_bytes = after;
        if (settle) unlink_claim(claim);
    }
    ml_lock_release(&ledger->lock);
    return status;
}

int ml_claim_publish(ml_claim *claim, const ml_amounts *amounts) {
    return publish_through(claim, amounts, false);
}

int ml_claim_settle(ml_claim *claim, const ml_amounts *amounts) {
    return publish_through(claim, amounts, true);
}

/* Under M: give back what has not landed. */
static void drop(ml_claim *claim) {
    ml_amounts same = claim->account->amounts;
    (void)ml_account_apply(claim->account, &same, claim->open_bytes, 0);
    claim->open_bytes = 0;
    unlink_claim(claim);
}

int ml_claim_cancel(ml_claim *claim) {
    if (!claim->account) return ML_OK;
    ml_ledger *ledger = claim->account->device->ledger;
    int status = ml_enter(ledger);
    if (status == ML_ERR_CLOSED) return ML_OK;
    if (status != ML_OK) return status;
    if (is_open(ledger, claim)) drop(claim);
    ml_lock_release(&ledger->lock);
    return ML_OK;
}

void ml_claim_forget(ml_claim *claim) {
    if (!claim->account) return;
    ml_ledger *ledger = claim->account->device->ledger;
    ml_lock_wait(&ledger->lock);
    unlink_claim(claim);
    ml_lock_release(&ledger->lock);
}

int ml_claim_resize_run(ml_claim *claim, uint64_t bytes, ml_ticket *ticket, bool cold) {
    if (bytes > ML_BYTES_MAX) return ML_ERR_FIGURE;
    if (!claim->account) return ML_EXPIRED;
    ml_ledger *ledger = claim->account->device->ledger;
    int status = ml_enter(ledger);
    if (status != ML_OK) return status;
    bool open = is_open(ledger, claim);
    uint64_t grow = ml_sub_sat(bytes, claim->size_bytes);
    if (open && grow == 0) {
        uint64_t less = ml_min_u64(claim->size_bytes - bytes, claim->open_bytes);
        ml_amounts same = claim->account->amounts;
        (void)ml_account_apply(claim->account, &same, less, 0);
        claim->open_bytes -= less;
        claim->size_bytes = bytes;
    }
    ml_lock_release(&ledger->lock);
    if (!open) return ML_EXPIRED;
    if (grow == 0) return ML_OK;
    uint32_t checked;
    status = ml_claim_acquire(claim->account, grow, ticket, cold, &checked);
    if (status != ML_OK) return status;
    if (is_open(ledger, claim)) {
        claim->open_bytes = ml_add_sat(claim->open_bytes, grow);
        claim->size_bytes = bytes;
        claim->checked = claim->checked && checked;
    } else { /* expired while we were at it: the growth goes back */
        ml_amounts same = claim->account->amounts;
        (void)ml_account_apply(claim->account, &same, grow, 0);
        status = ML_EXPIRED;
    }
    ml_lock_release(&ledger->lock);
    return status;
}

int ml_claim_resize(ml_claim *claim, uint64_t bytes) {
    return ml_claim_resize_run(claim, bytes, NULL, false);
}

int ml_claim_renew(ml_claim *claim, uint64_t ttl_ns) {
    if (!claim->account) return ML_EXPIRED;
    uint64_t now_ns = os_now_ns();
    ml_ledger *ledger = claim->account->device->ledger;
    int status = ml_enter(ledger);
    if (status != ML_OK) return status;
    bool late = claim->deadline_ns && now_ns >= claim->deadline_ns;
    status = is_open(ledger, claim) && !late ? ML_OK : ML_EXPIRED;
    if (status == ML_OK) claim->deadline_ns = ttl_ns ? ml_add_sat(now_ns, ttl_ns) : 0;
    ml_lock_release(&ledger->lock);
    return status;
}

void ml_claims_expire(ml_ledger *ledger, uint64_t now_ns) {
    for (ml_claim *claim = ledger->claims, *next; claim; claim = next) {
        next = claim->next;
        if (!claim->deadline_ns || now_ns < claim->deadline_ns) continue;
        claim->expired = 1;
        drop(claim);
    }
}
