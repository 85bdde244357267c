/* A C program as a member of the ledger. docs/embed.md says how to build it; run it beside a Python member. */
#include "memledger.h"

#include <pthread.h>
#include <stdio.h>

static void *keep_house(void *ledger) {
    while (ml_housekeep(ledger, UINT64_MAX) == ML_OK) continue;
    return NULL; /* left */
}

int main(int argc, char **argv) {
    const uint64_t gib = UINT64_C(1) << 30;
    ml_join_options options = {.label = "c-program", .program = "join", .version = "1"};
    ml_pool_spec card = {.key = argc > 1 ? argv[1] : "sim:card", .kind = ML_KIND_SIM};
    ml_amounts amounts = {.held = 1 * gib};
    ml_ledger *ledger;
    ml_device *device;
    ml_claim claim;
    pthread_t thread;
    uint64_t free_bytes;
    int status;

    if (ml_ledger_join(&options, &ledger) != ML_OK || ml_device_open(ledger, &card, 1, &device) != ML_OK) return 1;
    if (pthread_create(&thread, NULL, keep_house, ledger) != 0) return 1;
    ml_account *account = ml_device_account(device);
    do status = ml_account_publish(account, &amounts);
    while (ml_ledger_retry(ledger, status));

    status = ml_claim_wait(account, 2 * gib, 0, 0, 500000000, &claim, &free_bytes); /* waits for 0.5 s at most */
    puts(status != ML_OK ? "claim refused" : claim.checked ? "claim granted" : "claim granted, not checked");
    do status = ml_device_free(device, &free_bytes);
    while (ml_ledger_retry(ledger, status));
    if (status == ML_OK) printf("free %llu\n", (unsigned long long)free_bytes);
    if (status == ML_NOT_READY) puts("free unknown");
    fflush(stdout);

    getchar(); /* the 2 GiB would be allocated here */
    amounts.held += claim.account ? 2 * gib : 0;
    do status = ml_claim_settle(&claim, &amounts);
    while (ml_ledger_retry(ledger, status));
    ml_ledger_leave(ledger);
    pthread_join(thread, NULL);
    ml_ledger_free(ledger); /* nobody uses it any more */
    return 0;
}
