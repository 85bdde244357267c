"""`memledger export`: the ledger as Prometheus metrics, on stdout or over HTTP. Never joins."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from memledger.cli import screen
from memledger.cli.look import add_path, choose_path, look
from memledger.cli.options import missing_extra

DEFAULT_PORT = 9835

_EPILOG = """\
Without --listen, one set of metrics goes to stdout: for a cron job, or for the
textfile collector of node_exporter. With it, they are served at /metrics
until Ctrl-C or SIGTERM; each request looks anew. There is no password and no
encryption: keep it on loopback, or in a network that you trust.

The metrics are those of docs/export.md; each has a HELP line. A figure that is
unknown is absent, never 0. Sizes are bytes. Counters start anew with the
member, or with the segment.

exit codes: 0 printed, or served until SIGTERM; 1 nothing to tell (stdout: only
            memledger_up 0 is printed), or the address cannot be used; 2 usage;
            130 Ctrl-C
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="metrics for Prometheus, printed or served",
        description="Give the ledger's figures to Prometheus. Joins nothing, changes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", nargs="?", type=_address, const=("127.0.0.1", DEFAULT_PORT),
        help=f"serve over HTTP on ADDRESS (default 127.0.0.1:{DEFAULT_PORT}; port 0 "
        "takes any free one, which is printed)",
    )  # fmt: skip
    parser.add_argument(
        "--openmetrics", action="store_true", help="print the OpenMetrics format instead; over "
        "HTTP the scraper chooses",
    )  # fmt: skip
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    try:
        from memledger.cli import export_metrics
    except ImportError as error:
        return missing_extra("export", "prometheus_client", error)
    if options.listen is None:
        seen = look(path, scope)
        sys.stdout.write(export_metrics.text_of(seen, openmetrics=options.openmetrics))
        if seen.status == "ok":
            return 0
        sys.stdout.flush()
        print(screen.clean(f"memledger: {seen.reason}"), file=sys.stderr)
        return 1
    host, port = options.listen
    return export_metrics.serve(path, scope, host, port)


def _address(text: str) -> tuple[str, int]:
    """ "host:port", ":port", "port" or "[::1]:port"."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"expected address:port, got {text!r}")
    return host, int(port)
