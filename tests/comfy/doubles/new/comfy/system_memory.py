"""comfy.system_memory of the new generation: RAM of the machine or the container."""

import psutil


def cgroup_memory_limit():
    return None


def cgroup_memory_usage():
    return None


def virtual_memory_total():
    return psutil.virtual_memory().total


def virtual_memory_available():
    return psutil.virtual_memory().available
