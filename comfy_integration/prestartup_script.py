"""Runs before torch and before ComfyUI's own modules: sets hooks behind their imports, so that our
wraps are there before anybody copies a name. Imports neither."""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))
if _HERE not in sys.path:
    sys.path.append(_HERE)

from memledger_comfy import host  # noqa: E402

host.start_early()
