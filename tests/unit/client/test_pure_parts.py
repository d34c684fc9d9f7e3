"""The client's decisions, without any broker: groups of acknowledgements, starts, back-off, addresses."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.acknowledgements import AcknowledgementGroup
from magnetar.client.backoff import Backoff
from magnetar.client.errors import InvalidServiceUrl
from magnetar.client.nacks import NegativeAcknowledgements
from magnetar.client.service_url import BrokerAddress, parse_service_url
from magnetar.client.start import StartFilter
from magnetar.protocol import ack_sets
from magnetar.protocol.ids import EARLIEST, LATEST, MessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata

METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=100)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), max_size=40))
def test_bits_told_in_any_groups_add_up_to_what_was_acknowledged(
    steps: list[tuple[int, int, bool]],
) -> None:
    """A model broker merges what it is told by AND; nothing is ever told that was not acknowledged."""
    group = AcknowledgementGroup()
    broker: dict[int, list[int]] = {}
    wanted: dict[int, set[int]] = {}
    for entry, member, tell in steps:
        group.add_member(MessageId(1, entry, -1, member, 5))
        wanted.setdefault(entry, set()).add(member)
        if tell:
            merge(broker, group)
    merge(broker, group)
    assert len(group) == 0
    for entry, members in wanted.items():
        assert ack_sets.indexes(broker[entry]) == sorted(set(range(5)) - members)


def merge(broker: dict[int, list[int]], group: AcknowledgementGroup) -> None:
    for message_id, ack_set in group.take().individual:
        known = broker.get(message_id.entry_id, ack_sets.all_unacked(5))
        broker[message_id.entry_id] = ack_sets.and_(known, ack_set)


def test_what_could_not_be_told_is_told_later() -> None:
    group = AcknowledgementGroup()
    group.add_entries([MessageId(1, 1)])
    group.add_member(MessageId(1, 2, -1, 0, 2))
    group.add_cumulative(MessageId(1, 0))
    untold = group.take()
    assert not group
    group.put_back(untold)
    again = group.take()
    assert again.individual == [(MessageId(1, 1), ()), (MessageId(1, 2), [0b10])]
    assert again.cumulative == (MessageId(1, 0), ())


def test_a_cumulative_acknowledgement_covers_what_lies_behind_it() -> None:
    group = AcknowledgementGroup()
    group.add_entries([MessageId(1, 1), MessageId(1, 5)])
    group.add_member(MessageId(1, 2, -1, 0, 2))
    group.add_cumulative(MessageId(1, 3, -1, 0, 3))
    assert group.holds((1, 2))
    assert not group.holds((1, 3))  # Two of its messages are not acknowledged.
    untold = group.take()
    assert untold.individual == [(MessageId(1, 5), ())]
    assert untold.cumulative == (MessageId(1, 3), [0b110])
    group.clear()
    assert not group.holds((1, 2))


def test_a_cumulative_acknowledgement_may_have_to_be_told_twice() -> None:
    """It was told, and lost with its connection: what comes again is acknowledged again, or for ever comes."""
    group = AcknowledgementGroup()
    group.add_cumulative(MessageId(1, 9))
    assert group.take().cumulative == (MessageId(1, 9), ())
    group.add_cumulative(MessageId(1, 3))
    assert not group.take()
    group.on_detached()
    group.add_cumulative(MessageId(1, 3))
    assert group.take().cumulative == (MessageId(1, 3), ())


def test_a_whole_entry_reaches_further_than_its_first_messages() -> None:
    """Whoever takes one message of a batch and then the rest of it acknowledges the batch by its entry."""
    group = AcknowledgementGroup()
    group.add_cumulative(MessageId(1, 3, -1, 0, 4))
    group.add_cumulative(MessageId(1, 3))
    assert group.take().cumulative == (MessageId(1, 3), ())
    group.add_cumulative(MessageId(1, 4))
    group.add_cumulative(MessageId(1, 4, -1, 1, 4))  # Behind: part of what is acknowledged as a whole.
    assert group.take().cumulative == (MessageId(1, 4), ())


def test_what_is_put_back_after_a_loss_still_reaches_as_far() -> None:
    group = AcknowledgementGroup()
    group.add_cumulative(MessageId(1, 9))
    untold = group.take()
    group.on_detached()
    group.put_back(untold)
    group.add_cumulative(MessageId(1, 3))
    assert group.take().cumulative == (MessageId(1, 9), ())
    group.add_cumulative(MessageId(1, 10))
    untold = group.take()
    group.on_detached()
    group.add_cumulative(MessageId(1, 5))
    group.put_back(untold)
    assert group.take().cumulative == (MessageId(1, 10), ())


def test_negative_acknowledgements_fall_due_in_order() -> None:
    again = NegativeAcknowledgements(10.0)
    again.add(MessageId(1, 1, -1, 3), now=0.0)
    again.add(MessageId(1, 2), now=1.0)
    again.add(MessageId(1, 1), now=5.0)  # Asked for twice: the first time counts.
    assert again.next_due == 10.0
    assert again.take_due(9.9) == []
    assert again.take_due(10.0) == [MessageId(1, 1)]
    again.discard((1, 2))
    assert again.next_due is None


def test_back_off_doubles_and_begins_at_once() -> None:
    backoff = Backoff(Random(1), initial_s=0.1, maximum_s=1.0)
    delays = [backoff.next_delay() for _ in range(7)]
    assert delays[0] == 0
    for delay, full in zip(delays[1:], [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=True):
        assert 0.8 * full <= delay <= full
    backoff.reset()
    assert backoff.next_delay() == 0


def test_addresses() -> None:
    assert parse_service_url("pulsar://a,b:1,[::1]:2,[::2]/") == [
        BrokerAddress("a", 6650),
        BrokerAddress("b", 1),
        BrokerAddress("::1", 2),
        BrokerAddress("::2", 6650),
    ]
    assert str(BrokerAddress.parse("pulsar+ssl://h")) == "pulsar+ssl://h:6651"
    assert str(BrokerAddress("::1", 2)) == "pulsar://[::1]:2"
    for url in (
        "",
        "h:1",
        "http://h",
        "pulsar://",
        "pulsar://h:x",
        "pulsar://h:0",
        "pulsar://::1:2",
        "pulsar://[::1",
    ):
        with pytest.raises(InvalidServiceUrl):
            parse_service_url(url)
    with pytest.raises(InvalidServiceUrl, match="one address"):
        BrokerAddress.parse("pulsar://a,b")


def test_a_start_tells_whether_there_is_more() -> None:
    last = MessageId(1, 5, -1, 2, 3)
    assert not StartFilter(EARLIEST).is_behind(MessageId(-1, -1), None)
    assert not StartFilter(EARLIEST).is_behind(MessageId(1, -1), None)
    assert StartFilter(EARLIEST).is_behind(last, None)
    assert not StartFilter(LATEST).is_behind(last, None)
    assert not StartFilter(MessageId(1, 5)).is_behind(last, None)
    assert StartFilter(MessageId(1, 5), inclusive=True).is_behind(last, None)
    assert StartFilter(MessageId(1, 5, -1, 1)).is_behind(last, None)
    assert not StartFilter(MessageId(1, 5, -1, 2)).is_behind(last, None)
    at_a_time = StartFilter(EARLIEST, reader=True)
    at_a_time.moved_to(123, inclusive=False)
    assert at_a_time.is_behind(last, MessageId(1, 4))
    assert not at_a_time.is_behind(last, MessageId(1, 5))


def test_a_reader_sent_to_a_time_skips_what_is_older_only_at_first() -> None:
    """A broker that forgot where it had been sent begins anew; later clocks may run behind."""
    start = StartFilter(LATEST, reader=True)
    start.moved_to(100, inclusive=False)
    assert start.from_message == EARLIEST
    older = MessageMetadata(producer_name="p", sequence_id=0, publish_time=99)
    assert start.skip(MessageId(1, 0), older, None) is None
    assert start.skip(MessageId(1, 1), older, 100) == 0
    start.consumed(MessageId(1, 1))
    assert start.skip(MessageId(1, 2), older, None) == 0
    assert start.skip(MessageId(1, 1), METADATA, None) is None
