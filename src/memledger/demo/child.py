"""The entry of a process of the demo, started by cast.py."""

from __future__ import annotations

import faulthandler
import json
import sys

from memledger.demo import roles, roles_together
from memledger.demo.actor import Actor


def main() -> int:
    spec = json.loads(sys.argv[1])
    # A thread of C's, so that it works with the GIL stuck, too.
    faulthandler.dump_traceback_later(spec["watchdog_s"], exit=True)
    parameters = spec["parameters"]
    actor = Actor(
        spec["name"], spec["directory"], parameters.pop("mode"), **parameters.pop("joins", {})
    )
    role = getattr(roles, spec["role"], None) or getattr(roles_together, spec["role"])
    result = role(actor, **parameters)
    actor.say({"result": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
