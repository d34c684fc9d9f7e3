"""Samples as Prometheus text, version 0.0.4, chunk by chunk.

However many topics there are, a scrape holds one chunk in memory and gives the loop a turn after each.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

from magnetar.environment.logs import get_logger
from magnetar.metrics.sample import Collector, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CHUNK_BYTES = 16 * 1024

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_log = get_logger("magnetar.metrics")


def write(samples: Iterable[Sample], *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The page, in chunks of about `chunk_bytes`."""
    typed: set[str] = set()
    lines: list[str] = []
    size = 0
    for sample in samples:
        family = _family(sample)
        if family not in typed:
            typed.add(family)
            lines.append(f"# TYPE {family} {sample.kind}\n")
            size += len(lines[-1])
        lines.append(f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}\n")
        size += len(lines[-1])
        if size >= chunk_bytes:
            yield "".join(lines).encode()
            lines.clear()
            size = 0
    if lines:
        yield "".join(lines).encode()


async def stream(collectors: Iterable[Collector], *, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
    """The page of all `collectors`, with a turn for the loop after each chunk.

    A collector that fails costs its own samples, which is logged, and nobody else's.
    """
    for chunk in write(_gather(collectors), chunk_bytes=chunk_bytes):
        yield chunk
        await asyncio.sleep(0)


def _gather(collectors: Iterable[Collector]) -> Iterator[Sample]:
    for collect in collectors:
        try:
            yield from collect()
        except Exception:
            _log.exception("collector.failed", collector=getattr(collect, "__qualname__", repr(collect)))


def _family(sample: Sample) -> str:
    if sample.kind == "histogram":
        return sample.name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
    return sample.name


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{pairs}}}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True and False too.
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
