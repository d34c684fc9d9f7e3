"""A record tree against the plainest model of one, in memory and in RocksDB, by drawn operations."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.metadata.errors import AlreadyExists, BadVersion, InvalidPath, MetadataError, NotEmpty, NotFound
from magnetar.metadata.node_codec import child_prefix, decode_node, encode_node, node_key
from magnetar.metadata.opening import open_store
from magnetar.metadata.paths import check_path, join, parent, with_ancestors
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.tree import Node

PATHS = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/1", "/a-", "/a/x/1/deep"])
VERSIONS = st.one_of(st.none(), st.integers(-1, 3))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PATHS, VERSIONS, st.binary(max_size=4)),
        st.tuples(st.just("delete"), PATHS, st.one_of(st.none(), st.integers(0, 3))),
        st.tuples(st.just("delete_recursive"), PATHS),
        st.tuples(st.just("sequential"), PATHS),
    ),
    max_size=30,
)


@dataclass
class Model:
    """Paths and what is there; nothing clever."""

    nodes: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)

    def children(self, path: str) -> list[str]:
        return sorted(p.rpartition("/")[2] for p in self.nodes if parent(p) == path)

    def make(self, path: str, value: bytes) -> None:
        for step in reversed(list(with_ancestors(path))):
            if step not in ("/", path):
                self.nodes.setdefault(step, (b"", 0))
        self.nodes[path] = (value, 0)

    def apply(self, operation: tuple) -> object:  # type: ignore[type-arg]
        match operation:
            case ("put", path, expected, value):
                found = self.nodes.get(path)
                if found is None:
                    if expected not in (None, -1):
                        return BadVersion
                    self.make(path, value)
                    return 0
                if expected == -1:
                    return AlreadyExists
                if expected is not None and expected != found[1]:
                    return BadVersion
                self.nodes[path] = (value, found[1] + 1)
                return found[1] + 1
            case ("delete", path, expected):
                found = self.nodes.get(path)
                if found is None:
                    return NotFound
                if expected is not None and expected != found[1]:
                    return BadVersion
                if self.children(path):
                    return NotEmpty
                self.forget(path)
                return None
            case ("delete_recursive", path):
                for doomed in [p for p in self.nodes if p == path or p.startswith(f"{path}/")]:
                    self.forget(doomed)
                return None
            case ("sequential", path):
                number = self.sequences.get(parent(path), 0)
                name = f"{path}{number:010d}"
                self.make(name, b"")
                self.sequences[parent(path)] = number + 1
                return name
        raise AssertionError(operation)

    def forget(self, path: str) -> None:
        del self.nodes[path]
        self.sequences.pop(path, None)


async def carry_out(store: MetadataStore, operation: tuple) -> object:  # type: ignore[type-arg]
    try:
        match operation:
            case ("put", path, expected, value):
                return await store.put(path, value, expected_version=expected)
            case ("delete", path, expected):
                await store.delete(path, expected_version=expected)
            case ("delete_recursive", path):
                await store.delete_recursive(path)
            case ("sequential", path):
                return await store.create_sequential(path, b"")
    except MetadataError as error:
        return type(error)
    return None


async def compare(url: str, operations: list[tuple]) -> None:  # type: ignore[type-arg]
    store, model = await open_store(url), Model()
    for operation in operations:
        assert await carry_out(store, operation) == model.apply(operation), operation
    if url.startswith("rocksdb:"):
        await store.close()
        store = await open_store(url)
    for path, (value, version) in model.nodes.items():
        record = await store.get(path)
        assert record is not None
        assert (record.value, record.version) == (value, version)
        assert await store.children(path) == model.children(path)
    assert await store.children("/") == model.children("/")
    await store.close()


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_memory_is_the_model(operations: list[tuple]) -> None:  # type: ignore[type-arg]
    asyncio.run(compare("memory:", operations))


@settings(max_examples=25, deadline=None)
@given(OPERATIONS)
def test_rocksdb_is_the_model(operations: list[tuple]) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(compare(f"rocksdb:{Path(directory) / 'metadata'}", operations))


NAMES = st.text(min_size=1, max_size=12).filter(lambda name: "/" not in name)


def is_path(path: str) -> bool:
    try:
        check_path(path)
    except InvalidPath:
        return False
    return True


@given(
    st.builds(
        Node,
        value=st.binary(max_size=50),
        version=st.integers(0, 2**63),
        session=st.text("abcdef0123456789-", max_size=40),
        created_ms=st.integers(0, 2**62),
        modified_ms=st.integers(0, 2**62),
        next_sequence=st.integers(0, 2**63),
    )
)
def test_a_node_is_decoded_as_it_was_encoded(node: Node) -> None:
    assert decode_node("/x", encode_node(node)) == node


@given(st.lists(NAMES, min_size=1, max_size=4), NAMES)
def test_children_of_a_path_and_no_others_share_its_prefix(names: list[str], sibling: str) -> None:
    path = "/" + "/".join(names)
    if not is_path(join(path, sibling)):
        return
    assert node_key(join(path, sibling)).startswith(child_prefix(path))
    assert not node_key(path).startswith(child_prefix(path))
    assert not node_key(join(join(path, sibling), "x")).startswith(child_prefix(path))
    assert not node_key(join(path + "x", sibling)).startswith(child_prefix(path))
    assert parent(join(path, sibling)) == path
