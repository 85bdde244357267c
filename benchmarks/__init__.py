"""Speed, each figure beside an empty method of the same C type. method.md says how."""
