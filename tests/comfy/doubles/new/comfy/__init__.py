"""comfy, the package."""
