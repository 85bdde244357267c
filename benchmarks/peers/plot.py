"""Draws a run of the peers: latency of one read and one publish, alone and beside writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BLUE, ORANGE = "#0072B2", "#D55E00"
"""Told apart by people who see colours otherwise, and by their shapes."""
MEMBERS = 8


def draw(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "memledger"
    from matplotlib import pyplot as plt

    alone = rows(report, beside=False)
    names = sorted(alone, key=lambda name: alone[name]["read"]["p50"], reverse=True)
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.4), sharex=True, sharey=True)
    titles = (f"{MEMBERS} members, nobody else", f"{MEMBERS} members, 2 others publish flat out")
    for panel, title, found in zip(panels, titles, (alone, rows(report, beside=True)), strict=True):
        one_panel(panel, names, found)
        panel.set_title(title, fontsize=10)
    panels[0].set_yticks(range(len(names)), names)
    for label in panels[0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text().startswith("memledger") else "normal")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=2, frameon=False, fontsize=9)
    about = report["machine"]
    figure.suptitle("One call: mark p50, line to p99.9 (the clock is part of it)", fontsize=11)
    figure.text(
        0.995, 0.01, f"{about['cpu']}, {about['cores']} cores, {about['commit']}",
        ha="right", fontsize=7, color="#555555",
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def rows(report: dict[str, Any], *, beside: bool) -> dict[str, dict[str, Any]]:
    """By name; what is only read has one number of members."""
    found: dict[str, dict[str, Any]] = {}
    for row in report["rows"]:
        if (
            bool(row["writers"]) == beside
            and "failed" not in row
            and row["members"] in (1, MEMBERS)
        ):
            found[row["peer"]] = row  # the larger number comes later
    return found if not beside else {k: v for k, v in found.items() if v["members"] == MEMBERS}


def one_panel(panel: Any, names: list[str], found: dict[str, dict[str, Any]]) -> None:
    for call, colour, marker, offset in (
        ("read", BLUE, "o", 0.16),
        ("publish", ORANGE, "s", -0.16),
    ):
        label: str | None = call
        for place, name in enumerate(names):
            figures = found.get(name, {}).get(call)
            if figures is None:
                continue
            at = place + offset
            panel.plot(
                [figures["p50"], figures["p999"]], [at, at], color=colour, linewidth=1.6, alpha=0.55
            )
            panel.plot(figures["p50"], at, marker, color=colour, markersize=5.5, label=label)
            label = None
    panel.set_xscale("log")
    names_of_ticks = ("100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s")
    _, most = panel.get_xlim()
    ticks = [100.0 * 10**power for power in range(len(names_of_ticks))]
    count = sum(tick <= most for tick in ticks)
    panel.set_xticks(ticks[:count], names_of_ticks[:count], fontsize=8)
    panel.minorticks_off()
    panel.grid(axis="x", color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.tick_params(axis="y", length=0)
