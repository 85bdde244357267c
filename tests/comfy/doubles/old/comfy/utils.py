"""comfy.utils: the progress hook."""

PROGRESS_BAR_ENABLED = True
PROGRESS_BAR_HOOK = None


def set_progress_bar_global_hook(function):
    global PROGRESS_BAR_HOOK
    PROGRESS_BAR_HOOK = function


class ProgressBar:
    def __init__(self, total, node_id=None):
        self.total, self.current, self.hook = total, 0, PROGRESS_BAR_HOOK

    def update_absolute(self, value, total=None, preview=None):
        self.total = self.total if total is None else total
        self.current = min(value, self.total)
        if self.hook is not None:
            self.hook(self.current, self.total, preview)

    def update(self, value):
        self.update_absolute(self.current + value)
