"""The pager's totals. Tests set them."""

devctxs = []
usage = 0


def get_total_vram_usage():
    return usage
