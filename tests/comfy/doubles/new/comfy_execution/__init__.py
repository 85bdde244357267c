"""comfy_execution, the package."""
