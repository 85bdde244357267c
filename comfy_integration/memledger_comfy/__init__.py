"""memledger in ComfyUI: the adapters that make N ComfyUI processes decide as one.

`host` is started by the custom node's two entry files, `worker` by a worker's bootstrap. Both build
a `Context` and install the rows of `adapter`, one module per decision of ComfyUI. Nothing here may
ever raise into ComfyUI: an error costs one log line, and upstream's value stands.
"""
