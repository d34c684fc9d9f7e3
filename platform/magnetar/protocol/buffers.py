"""What may hold bytes. A `Buffer` is read here and never written to."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
