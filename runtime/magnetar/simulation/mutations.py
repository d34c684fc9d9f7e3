"""Deliberate mistakes in the protocol, each a patch of a production module: a simulator that does not notice them proves
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    what: str
    caught_by: tuple[str, ...]
    patches: Callable[[], list[Patch]]


MUTATIONS: dict[str, Mutation] = {}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Have one mutation in force for a while; none if `name` is empty."""
    if not name:
        yield
        return
    before: list[Patch] = []
    try:
        for owner, attribute, replacement in MUTATIONS[name].patches():
            before.append((owner, attribute, owner.__dict__[attribute]))
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in reversed(before):
            setattr(owner, attribute, original)
