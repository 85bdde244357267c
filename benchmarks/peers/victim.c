/* A member that dies inside a publish: joins PATH, publishes a triple, then begins to publish a larger one and is
 * killed by SIGKILL before the store that POINT names. For the peers' crash rows. */
#define _GNU_SOURCE
#include "core/core.h"
#include "kill_points.h"

#include "include/memledger.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "victim: %s failed\n", what);
    exit(1);
}

int main(int argc, char **argv) {
    ml_pool_spec spec = {.key = "bench:card", .kind = ML_KIND_SIM};
    ml_amounts small = {4096, 1024, 512}, large = {8192, 2048, 1024};
    ml_ledger *ledger = NULL;
    ml_device *device = NULL;
    if (argc != 3) fail("reading PATH POINT");
    ml_join_options options = {.path = argv[1], .label = "victim"};
    if (ml_ledger_join(&options, &ledger) != ML_OK) fail("ml_ledger_join");
    if (ml_device_open(ledger, &spec, 1, &device) != ML_OK) fail("ml_device_open");
    ml_account *account = ml_device_account(device);
    if (ml_account_publish(account, &small) != ML_OK) fail("ml_account_publish");
    /* The survivor has seen it whole. */
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) fail("waiting");
    kill_points_arm(argv[2], 1, SIGKILL);
    (void)ml_account_publish(account, &large);
    fail("dying");
}
