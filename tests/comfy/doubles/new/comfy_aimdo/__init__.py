"""The pager, the package."""
