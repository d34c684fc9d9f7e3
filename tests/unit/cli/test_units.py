"""Times, sizes and moments as people write them."""

from __future__ import annotations

import pytest

from magnetar.cli.units import iso_time, megabytes, minutes, seconds, size_bytes, timestamp_ms


def test_times() -> None:
    assert [seconds(text) for text in ("90", "90s", "10m", "3h", "7d", "2w", "-1", "0", "5 M")] == [
        *(90, 90, 600, 10800, 604800, 1209600, -1, 0, 300)
    ]
    assert [minutes(text) for text in ("90", "3h", "120s", "-1", "0")] == [90, 180, 2, -1, 0]


def test_sizes() -> None:
    assert [size_bytes(text) for text in ("4096", "512K", "10M", "2g", "1T", "-1", "3MiB")] == [
        *(4096, 512 * 1024, 10 * 1024**2, 2 * 1024**3, 1024**4, -1, 3 * 1024**2)
    ]
    assert [megabytes(text) for text in ("10G", "512M", "-1", "1", "0")] == [10240, 512, -1, 1, 0]


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5m", "1.5h", "h"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="10m, 3h"):
        seconds(text)


@pytest.mark.parametrize("text", ["", "big", "10X", "-5M"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="10M, 2G"):
        size_bytes(text)


def test_a_fraction_of_a_minute_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of minutes"):
        minutes("90s")


def test_moments() -> None:
    texts = ("0", "1782665588123", "2026-06-28T16:53:08Z", "2026-06-28T18:53:08.123+02:00")
    assert [timestamp_ms(text) for text in texts] == [0, 1782665588123, 1782665588000, 1782665588123]
    assert iso_time(1782665588123) == "2026-06-28T16:53:08.123Z"
    assert iso_time(2**63) == str(2**63)


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "2026-13-01T00:00:00Z", "2026-06-28T16:53:08"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    """Without a zone it could be several."""
    with pytest.raises(ValueError, match="16:53:08Z"):
        timestamp_ms(text)
