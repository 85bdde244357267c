"""What a comfy-env worker runs before ComfyUI's modules: the host names it in
COMFY_ENV_SERIALIZER_FILES.

Executed by path, in a Python that knows neither this package nor memledger. Registers nothing.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _package() -> None:
    """Make memledger_comfy importable without putting its neighbours on sys.path."""
    if "memledger_comfy" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "memledger_comfy",
        os.path.join(_HERE, "__init__.py"),
        submodule_search_locations=[_HERE],
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["memledger_comfy"] = module
    spec.loader.exec_module(module)


if os.environ.get("COMFYUI_ISOLATION_WORKER") == "1":
    _package()
    from memledger_comfy import worker

    worker.start(os.path.basename(os.getcwd()))
