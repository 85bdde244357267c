"""Sizes as people type them: exact, or refused with a text that says what to write."""

from __future__ import annotations

import pytest

from memledger.errors import InvalidFigure
from memledger.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GiB", 24 * 1024**3),
        ("24 GB", 24 * 1000**3),
        ("512MiB", 512 * 1024**2),
        ("1.5GiB", 1610612736),
        (" 1.5 gib ", 1610612736),
        ("0.1GiB", 107374182),
        ("0.3 KB", 300),
        ("123", 123),
        ("123 B", 123),
        ("0", 0),
        (123, 123),
        (2**63 - 1, 2**63 - 1),
        ("9223372036854775807", 2**63 - 1),
        # 2^53 + 1 KiB and a third decimal: what a float would round away.
        ("9007199254740993", 9007199254740993),
        ("4095.999TiB", 4095999 * 1024**4 // 1000),
    ],
)
def test_parse_size_readable_text_is_exact(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24G", "24GiB"),
        ("", "expected a size"),
        ("GiB", "expected a size"),
        ("1.2.3GiB", "expected a size"),
        ("--1", "expected a size"),
        ("lots", "expected a size"),
        ("24 zb", "unknown unit 'zb'"),
        ("1e9", "unknown unit 'e9'"),
        ("-1GiB", "negative"),
        (-1, "negative"),
        (2**63, "2^63-1"),
        ("8EiB", "unknown unit"),
        ("9223372036854775808", "2^63-1"),
    ],
)
def test_parse_size_wrong_text_says_what_is_wrong(text: str | int, expected: str) -> None:
    with pytest.raises(InvalidFigure) as caught:
        parse_size(text)
    assert expected in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("value", [True, 1.0, None, b"24GiB"])
def test_parse_size_wrong_type_raises_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        parse_size(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (24 << 30, "24.0 GiB"),
        (-(3 << 29), "-1.5 GiB"),
        ((1 << 30) - 1, "1.0 GiB"),  # not "1024.0 MiB"
        (1 << 62, "4096.0 PiB"),
        (None, "unknown"),
    ],
)
def test_format_size_any_number_reads_well(nbytes: int | None, text: str) -> None:
    assert format_size(nbytes) == text


def test_format_size_result_parses_back_within_a_twentieth_of_its_unit() -> None:
    for nbytes in (1, 1500, 10**9, 24 << 30, (1 << 63) - 1):
        back = parse_size(format_size(nbytes)) if nbytes < 1 << 62 else nbytes
        assert abs(back - nbytes) * 20 <= max(nbytes, 1024)
