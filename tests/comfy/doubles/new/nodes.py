"""nodes: what the executor and the server call."""

import comfy.model_management


def interrupt_processing(value=True):
    comfy.model_management.interrupt_current_processing(value)
