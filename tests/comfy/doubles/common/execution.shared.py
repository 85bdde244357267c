"""execution: the queue and the executor, what both generations have."""

import asyncio
import threading

import comfy.model_management
import nodes


class PromptQueue:
    def __init__(self, server):
        self.server = server
        self.mutex = threading.RLock()
        self.currently_running = {}
        self.flags = {}

    def set_flag(self, name, data):
        with self.mutex:
            self.flags[name] = data

    def get_flags(self, reset=True):
        with self.mutex:
            flags = self.flags
            if reset:
                self.flags = {}
            return flags


async def execute(server, dynprompt, caches, current_item, extra_data, executed, prompt_id):
    """One node: here a function."""
    comfy.model_management.throw_exception_if_processing_interrupted()
    current_item()


class PromptExecutor:
    def __init__(self, server, cache_type=False, cache_args=None):
        self.server = server
        self.reset()

    def reset(self):
        self.outputs = {}
        self.success = True

    def execute(self, prompt, prompt_id, extra_data={}, execute_outputs=[]):  # noqa: B006
        asyncio.run(self.execute_async(prompt, prompt_id, extra_data, execute_outputs))

    async def execute_async(self, prompt, prompt_id, extra_data={}, execute_outputs=[]):  # noqa: B006
        """`prompt`: a list of functions, each a node."""
        nodes.interrupt_processing(False)
        self.success = True
        try:
            for node in prompt:
                await execute(self.server, None, None, node, extra_data, set(), prompt_id)
        except comfy.model_management.InterruptProcessingException:
            self.success = False
        except Exception as error:
            self.success = False
            self.error = error
            if isinstance(error, comfy.model_management.OOM_EXCEPTION):
                comfy.model_management.unload_all_models()
