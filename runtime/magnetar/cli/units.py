"""Times, sizes and moments as people write them: `10m`, `3d`, `512K`, `10G`, `-1`, `2026-06-28T16:53:08Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_TIME = re.compile(r"(\d+)\s*([smhdwy]?)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def seconds(text: str, *, default_unit: str = "s") -> int:
    """`90`, `90s`, `10m`, `3h`, `7d`, `2w`, `1y`; `-1` stays -1: without limit. Raises ValueError."""
    if text.strip() == "-1":
        return -1
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a time: write 90s, 10m, 3h, 7d, or -1 for no limit")
    return int(match[1]) * _SECONDS[match[2].lower() or default_unit]


def minutes(text: str) -> int:
    """As `seconds`, in minutes; a bare number is minutes. Raises ValueError."""
    total = seconds(text, default_unit="m")
    if total > 0 and total % 60:
        raise ValueError(f"{text!r} is not a whole number of minutes")
    return total if total < 0 else total // 60


def size_bytes(text: str) -> int:
    """`4096`, `512K`, `10M`, `2G`, `1T`; `-1` stays -1. Raises ValueError."""
    if text.strip() == "-1":
        return -1
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size: write 4096, 512K, 10M, 2G, or -1 for no limit")
    return int(match[1]) * _BYTES[match[2].lower()]


def megabytes(text: str) -> int:
    """As `size_bytes`, in MiB, rounded up; a bare number is bytes, as with pulsar-admin. Raises ValueError."""
    total = size_bytes(text)
    return total if total < 0 else -(-total // 1024**2)


def timestamp_ms(text: str) -> int:
    """`2026-06-28T16:53:08Z`, `…+02:00`, or milliseconds since 1970. Raises ValueError."""
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"{text!r} is not a moment: write 2026-06-28T16:53:08Z, 2026-06-28T18:53:08+02:00, "
            "or milliseconds since 1970"
        )
    return int(moment.timestamp() * 1000)


def iso_time(ms: int) -> str:
    """`2026-06-28T16:53:08.123Z`, as the REST API writes moments; what is no time of this calendar as its number."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
