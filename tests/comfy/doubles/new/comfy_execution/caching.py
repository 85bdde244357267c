"""comfy_execution.caching: a copy of a name, as the real one has it."""

from comfy.system_memory import virtual_memory_available


def headroom_left():
    return virtual_memory_available()
