"""Calls the user's window function. Runs in Spark's own Python workers, never in a process of the platform.

The function is a class with `process(self, items, context)`: `items` are the payloads of one window and key in
order of time (decoded from JSON where they are JSON), `context` a `WindowContext`. What it returns becomes one
message: bytes and text as they are, anything else as JSON, None as no message.
"""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

PICKLED = "function.cloudpickle"
"""The name of a pickled function's file; in place of a class name stands the path of such a file."""

RESULT_SCHEMA = "value BINARY, __key BINARY, __eventTime TIMESTAMP, __messageProperties MAP<STRING, STRING>"


@dataclass(frozen=True, slots=True)
class UserWindow:
    """Which class to call, and where its code lies."""

    class_name: str
    import_paths: tuple[str, ...]
    user_config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WindowContext:
    """What a window function may ask.

    Attributes:
        key: the key all items share; "" for items without one.
        start_ms, end_ms: the window in event time, milliseconds since 1970; the end is not part of it.
    """

    key: str
    start_ms: int
    end_ms: int
    user_config: Mapping[str, Any]

    def get_user_config_value(self, name: str) -> Any:
        """A value of the function's `userConfig`, or None."""
        return self.user_config.get(name)


def run_windows(function: UserWindow, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call the function for each closed window.

    Args:
        batches: columns key, start_ms, end_ms, items (list of payloads, in order).
    """
    import pyarrow as pa

    instance = load(function.class_name, function.import_paths)
    process = getattr(instance, "process", instance)
    for batch in batches:
        values, keys, times, properties = [], [], [], []
        for row in batch.to_pylist():
            context = WindowContext(row["key"] or "", row["start_ms"], row["end_ms"], function.user_config)
            result = process([decode(item) for item in row["items"]], context)
            if result is None:
                continue
            values.append(encode(result))
            keys.append(context.key.encode() or None)
            times.append((context.end_ms - 1) * 1000)
            properties.append(list(window_properties(context.start_ms, context.end_ms).items()))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(values, pa.binary()),
                pa.array(keys, pa.binary()),
                pa.array(times, pa.timestamp("us", tz="UTC")),
                pa.array(properties, pa.map_(pa.string(), pa.string())),
            ],
            names=["value", "__key", "__eventTime", "__messageProperties"],
        )


def extract_timestamp(class_name: str, import_paths: tuple[str, ...], payload: bytes) -> int | None:
    """Ask the user's extractor for a payload's time in milliseconds since 1970; None: it has none."""
    moment = load(class_name, import_paths).extract_timestamp(payload)
    return None if moment is None else int(moment)


def window_properties(start_ms: int, end_ms: int) -> dict[str, str]:
    """The properties that tell a result's window."""
    return {"window_start_ms": str(start_ms), "window_end_ms": str(end_ms)}


@lru_cache(maxsize=16)
def load(class_name: str, import_paths: tuple[str, ...]) -> Any:
    """Import the class and make one object of it; or unpickle the function.

    Raises:
        LookupError: there is no such class.
    """
    if class_name.endswith(f"/{PICKLED}"):
        return unpickle(class_name)
    for path in reversed(import_paths):
        if path not in sys.path:
            sys.path.insert(0, path)
    module_name, _, name = class_name.rpartition(".")
    module = importlib.import_module(module_name or name)
    if not module_name:
        return module
    try:
        return getattr(module, name)()
    except AttributeError:
        if hasattr(module, name):
            raise
        raise LookupError(f"module '{module_name}' has no '{name}'; className is '{class_name}'") from None


def unpickle(path: str) -> Any:
    """The object a user pickled with `magnetar.functions.deploy`; a class is called once."""
    with open(path, "rb") as file:
        found = pickle.load(file)
    return found() if isinstance(found, type) else found


def decode(payload: bytes) -> Any:
    """JSON where it is JSON, else the bytes."""
    try:
        return json.loads(payload)
    except ValueError:
        return payload


def encode(result: Any) -> bytes:
    """The payload of a result."""
    if isinstance(result, bytes | bytearray):
        return bytes(result)
    if isinstance(result, str):
        return result.encode()
    return json.dumps(result, separators=(",", ":"), sort_keys=True).encode()
