"""The picture of a recording, by matplotlib. Imported only by `report`, since it may be missing."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from memledger.cli.look import short_names
from memledger.cli.recording import Recording, Sample, Who, thinned

GIB = 1 << 30
_SAMPLES_MAX = 1500

# Okabe and Ito's palette, which colour-blind readers can tell apart; yellow, faint on white, last.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_OTHERS, _UNACCOUNTED, _CLAIMED = "#7F7F7F", "#D0D0D0", "#FFFFFF"

EVENTS = {
    "death": ("deaths", "X", "#000000"),
    "ooms": ("out of memory", "v", "#D55E00"),
    "claims_refused": ("claims refused", "s", "#E69F00"),
    "asks_sent": ("asks sent", ">", "#0072B2"),
    "asks_answered": ("asks answered", "o", "#009E73"),
    "asks_declined": ("asks declined", "x", "#CC79A7"),
    "no_ledger": ("no ledger", "|", "#7F7F7F"),
}
"""Name in the file: (name in the picture, marker, colour). The marker tells them apart too."""


def picture(found: Recording, title: str, kind: str) -> bytes:
    """The whole recording as a "png" or "svg"."""
    style: dict[Any, Any] = {
        "font.size": 9, "hatch.linewidth": 0.6, "axes.spines.top": False,
        "axes.spines.right": False, "svg.hashsalt": "memledger",
        # What a member calls itself is no formula.
        "text.parse_math": False,
    }  # fmt: skip
    with rc_context(style), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the page's tables have it.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = _figure(found, title)
        out = io.BytesIO()
        # Without the date, so that the same recording gives the same file.
        metadata = {"Date": None, "Creator": "memledger"} if kind == "svg" else None
        figure.savefig(out, format=kind, dpi=150, metadata=metadata)
    return out.getvalue()


def _figure(found: Recording, title: str) -> Figure:
    kinds = [name for name in EVENTS if any(e.name == name for e in found.events)]
    heights = [2.9] * len(found.devices) + ([0.5 + 0.22 * len(kinds)] if kinds else [])
    figure = Figure(figsize=(10, sum(heights) + 0.9), layout="constrained")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    places = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    begin, end = found.span
    scale, unit = _time_unit(end - begin)
    names = short_names(list(found.devices))
    colours = _colours(found)
    for place, (key, samples) in zip(places, found.devices.items(), strict=False):
        _draw_device(
            place, names[key], samples, colours, begin, scale, explained=place is places[0]
        )
    if kinds:
        _draw_events(places[-1], found, kinds, begin, scale)
    places[-1].set_xlim(0, max(end - begin, 1e-3) / scale)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begin))
    places[-1].set_xlabel(f"{unit} since {when} UTC")
    return figure


def _time_unit(seconds: float) -> tuple[float, str]:
    """(seconds in it, its name): whatever gives numbers of one to three digits."""
    if seconds < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _colours(found: Recording) -> dict[Who, str]:
    """The same member has the same colour on each device; those that held most come first."""
    peaks: dict[Who, int] = {}
    for samples in found.devices.values():
        for sample in samples:
            for who, amounts in sample.members.items():
                peaks[who] = max(peaks.get(who, 0), amounts["held"] + amounts["claimed"])
    ordered = sorted(peaks, key=lambda who: -peaks[who])
    return dict(zip(ordered, _COLOURS, strict=False))


def _draw_device(
    place: Axes,
    name: str,
    samples: list[Sample],
    colours: dict[Who, str],
    begin: float,
    scale: float,
    *,
    explained: bool,
) -> None:
    """explained: the legend says what hatching and the like mean; once a picture is enough."""
    drawn = _with_gaps(thinned(samples, _SAMPLES_MAX))
    times = [(when - begin) / scale for when, _ in drawn]
    members = [who for who in colours if any(who in s.members for s in samples)]
    rest = any(who not in colours for s in samples for who in s.members)
    bands: list[tuple[list[float], dict[str, Any]]] = []
    handles: list[Patch] = []
    for who in [*members, *([None] if rest else [])]:
        colour = _OTHERS if who is None else colours[who]
        label = "further members" if who is None else f"{who[0]} ({who[1]})"
        kept, loose = _held(drawn, who, colours)
        bands.append((kept, {"facecolor": colour}))
        bands.append((loose, {"facecolor": colour, "hatch": "////", "alpha": 0.55}))
        handles.append(Patch(facecolor=colour, label=label))
    claimed = _of_device(drawn, "claimed")
    bands.append((claimed, {"facecolor": _CLAIMED, "hatch": "....", "edgecolor": "#444444"}))
    bands.append((_of_device(drawn, "unaccounted"), {"facecolor": _UNACCOUNTED}))
    floor = [0.0] * len(times)
    for amounts, style in bands:
        top = [below + amount for below, amount in zip(floor, amounts, strict=True)]
        if any(amount > 0 for amount in amounts):
            place.fill_between(times, floor, top, step="post", linewidth=0, **style)
        floor = top
    if explained:
        handles += _legend_of_kinds()
    total = _of_device(drawn, "total", unknown=float("nan"))
    place.step(times, total, where="post", color="black", linestyle="--", linewidth=1.2)
    highest = max([t for t in [*total, *floor] if t == t], default=1.0)
    place.set_ylim(0, highest * 1.06 or 1.0)
    place.set_ylabel("GiB")
    place.set_title(name, loc="left", fontsize=10)
    place.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10]))
    place.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    place.set_axisbelow(True)
    place.legend(
        handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8
    )


def _legend_of_kinds() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Patch(facecolor="#AAAAAA", hatch="////", alpha=0.55, label="releasable"),
        Patch(facecolor=_CLAIMED, edgecolor="#444444", hatch="....", label="claimed"),
        Patch(facecolor=_UNACCOUNTED, label="unaccounted"),
        Line2D([], [], color="black", linestyle="--", linewidth=1.2, label="total"),
    ]


Drawn = Sequence[tuple[float, Sample | None]]


def _with_gaps(samples: list[Sample]) -> Drawn:
    """(time, sample); None where samples are missing, so that nothing is drawn there."""
    steps = [b.time - a.time for a, b in pairwise(samples)]
    usual = median(steps) if steps else 0.0
    drawn: list[tuple[float, Sample | None]] = []
    for sample in samples:
        if drawn and sample.time - drawn[-1][0] > 3 * usual + 1:
            drawn.append((drawn[-1][0] + usual, None))
        drawn.append((sample.time, sample))
    return drawn


def _held(
    drawn: Drawn, who: Who | None, colours: dict[Who, str]
) -> tuple[list[float], list[float]]:
    """GiB that it keeps and that it could release; who None: of all that have no colour."""
    kept, loose = [], []
    for _, sample in drawn:
        amounts = [
            entry
            for name, entry in (sample.members.items() if sample else ())
            if (name == who if who is not None else name not in colours)
        ]
        free = sum(min(entry["releasable"], entry["held"]) for entry in amounts)
        loose.append(free / GIB)
        kept.append((sum(entry["held"] for entry in amounts) - free) / GIB)
    return kept, loose


def _of_device(drawn: Drawn, name: str, unknown: float = 0.0) -> list[float]:
    values = [None if sample is None else sample.figures[name] for _, sample in drawn]
    return [unknown if value is None else value / GIB for value in values]


def _draw_events(
    place: Axes, found: Recording, kinds: list[str], begin: float, scale: float
) -> None:
    for level, name in enumerate(reversed(kinds)):
        _, marker, colour = EVENTS[name]
        events = [event for event in found.events if event.name == name]
        place.scatter(
            [(event.time - begin) / scale for event in events],
            [level] * len(events),
            s=[24 + 8 * min(event.times - 1, 8) for event in events],
            marker=marker, color=colour, linewidths=1, clip_on=False, zorder=3,
        )  # fmt: skip
    counts = {name: sum(e.times for e in found.events if e.name == name) for name in kinds}
    place.set_yticks(
        range(len(kinds)), [f"{EVENTS[name][0]} ({counts[name]})" for name in reversed(kinds)]
    )
    place.set_ylim(-0.6, len(kinds) - 0.4)
    place.tick_params(axis="y", length=0)
    place.grid(axis="y", color="#EEEEEE", linewidth=0.6)
    place.spines["left"].set_visible(False)
