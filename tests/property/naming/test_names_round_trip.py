"""Whatever parses comes back as it was; whatever does not is a NamingError."""

from __future__ import annotations

from urllib.parse import unquote_plus

from hypothesis import given
from hypothesis import strategies as st

from magnetar.naming import NamingError, TopicName

PLAIN = st.from_regex(r"[-=:.\w]*[\w]", fullmatch=True).filter(str.isascii)
LOCAL = st.text(min_size=1, max_size=30).filter(
    lambda text: bool(text.strip()) and not any(c == "/" or ord(c) < 32 or ord(c) == 127 for c in text)
)


@given(st.sampled_from(["persistent", "non-persistent"]), PLAIN, PLAIN, LOCAL, st.integers(0, 10**9))
def test_a_name_survives_its_text_and_its_partitions(
    domain: str, tenant: str, namespace: str, local: str, index: int
) -> None:
    name = TopicName.parse(f"{domain}://{tenant}/{namespace}/{local}")
    assert TopicName.parse(str(name)) == name
    assert (name.domain, name.tenant, name.namespace, name.local_name) == (domain, tenant, namespace, local)
    partition = name.partition_name(index)
    assert (partition.partition, partition.base) == (index, name)


@given(LOCAL.filter(lambda text: not any(0xD800 <= ord(c) <= 0xDFFF for c in text)))
def test_the_encoded_name_is_a_path_part_that_decodes(local: str) -> None:
    encoded = TopicName("persistent", "t", "n", local).encoded_local
    assert "/" not in encoded
    assert encoded.isascii()
    assert unquote_plus(encoded) == local


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_a_naming_error(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except NamingError:
        return
    assert TopicName.parse(str(name)) == name
