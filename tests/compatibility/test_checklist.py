"""What commonly breaks real clients, line by line, and every command: each has a test that somebody can find.

A line names the module, from `tests/` on, and the test. The lines are those of the protocol's fact sheet, in its order.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from magnetar.broker.handlers.routes import ROUTES
from magnetar.protocol.pulsar_pb2 import BaseCommand

TESTS: Final = Path(__file__).parents[1]

_CONNECTIONS = "unit/broker/test_connections.py"
_PRODUCERS = "unit/broker/test_producers.py"
_CONSUMERS = "unit/broker/test_consumers.py"
_FRAMES = "compatibility/test_checklist_frames.py"
_HABITS = "compatibility/test_client_habits.py"
_CONSUMING = "compatibility/test_consuming.py"
_SEEKING = "compatibility/test_reading_and_seeking.py"
_PRODUCING = "compatibility/test_producing.py"
_FINDING = "compatibility/test_finding_topics.py"
_SCHEMAS = "unit/broker/test_schemas.py"
_TOPIC_LISTS = "unit/broker/test_topic_lists.py"
_HOSTILE = "property/broker/test_hostile_frames.py"
_TRANSACTIONS = "unit/broker/test_transactions.py"
_MODEL = "simulation/broker/test_subscription_model.py"
_DEDUPLICATION = "simulation/broker/test_deduplication_model.py"

CHECKLIST: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    # Handshake and connection.
    "CONNECTED names a server and comes first": (
        (_FRAMES, "test_connected_comes_first_and_names_version_and_server"),
    ),
    "the lower protocol version is echoed": (
        (_CONNECTIONS, "test_the_lower_protocol_version_is_agreed_upon"),
    ),
    "no AUTH_CHALLENGE before CONNECTED": (
        (_FRAMES, "test_connected_comes_first_and_names_version_and_server"),
    ),
    "nothing is pushed to C++ and Go that they do not know": (
        (_CONSUMERS, "test_the_end_of_a_topic_is_told_to_those_who_bear_it"),
    ),
    "PING is answered, and any byte is a sign of life": (
        (_FRAMES, "test_connected_comes_first_and_names_version_and_server"),
        (_CONNECTIONS, "test_who_answers_pings_stays"),
        (_CONNECTIONS, "test_a_silent_client_is_pinged_then_closed"),
    ),
    "frames are split and come together": (
        (_CONNECTIONS, "test_frames_may_come_byte_by_byte"),
        (_HABITS, "test_sends_come_by_the_thousand_in_one_write"),
    ),
    "totalSize does not count itself": (
        ("property/protocol/test_frames_survive_any_cut.py", "test_send_is_what_protobuf_makes_of_it"),
    ),
    "required fields are set": (
        ("unit/protocol/test_frame_errors.py", "test_every_required_field_is_set_in_what_we_say"),
    ),
    "-1 travels as 2^64-1": (
        ("unit/protocol/test_known_values.py", "test_the_ends_of_a_topic_travel_as_unsigned_numbers"),
    ),
    "one bad producer costs the others nothing": (
        (_HABITS, "test_one_refused_producer_costs_the_others_nothing"),
    ),
    # Look-up.
    "the advertised address answers, the TLS one is set": (
        (_FRAMES, "test_lookups_lead_to_a_broker_that_answers"),
    ),
    "not found is not ServiceNotReady": (
        (_CONNECTIONS, "test_lookup_in_an_unknown_namespace_is_topic_not_found"),
    ),
    "no error field on success": ((_FRAMES, "test_lookups_lead_to_a_broker_that_answers"),),
    "partitions is 0 for plain topics": (
        (_FRAMES, "test_a_plain_topic_has_no_partitions_and_says_so"),
        (_FINDING, "test_a_plain_topic_and_a_partitioned_one"),
    ),
    "a partition has no partitions": ((_FRAMES, "test_a_plain_topic_has_no_partitions_and_says_so"),),
    # Producers.
    "receipts in order, ids echoed": (
        (_PRODUCERS, "test_receipts_echo_the_ids_and_come_in_order"),
        (_HABITS, "test_receipts_of_one_producer_are_in_order_though_some_are_duplicates"),
    ),
    "last_sequence_id is -1 at first": (
        (_FRAMES, "test_a_new_producer_begins_before_zero_and_has_no_schema"),
        (_DEDUPLICATION, "test_random_lives"),
    ),
    "a name whose holder is dead passes on, the epoch is honoured": (
        (_PRODUCERS, "test_a_dead_holder_gives_way"),
        (_PRODUCERS, "test_the_same_client_comes_back_with_a_higher_epoch"),
        (_PRODUCERS, "test_a_producer_that_is_given_up_for_another_leaves_its_topic"),
    ),
    "producer_ready=false is followed by true": ((_PRODUCERS, "test_waiting_producers_take_turns"),),
    "the topic epoch means nothing to shared producers": (
        (_PRODUCERS, "test_a_shared_producer_may_name_any_topic_epoch"),
    ),
    "an empty initial subscription is none": ((_PRODUCERS, "test_an_empty_initial_subscription_is_none"),),
    "permanent conditions refuse the producer, not its messages": (
        (_FRAMES, "test_a_topic_that_ended_refuses_producers_instead_of_messages"),
    ),
    "a SEND after the broker closed its producer is only late": (
        (_PRODUCERS, "test_send_to_nobody_closes_but_a_late_send_is_ignored"),
    ),
    "no schema version where there is no schema": (
        (_SCHEMAS, "test_a_producer_without_schema_is_told_no_version"),
        (_FRAMES, "test_a_new_producer_begins_before_zero_and_has_no_schema"),
    ),
    "a batch of one counts as it says": (
        (_HABITS, "test_java_sends_a_batch_of_one_as_no_batch_and_others_as_a_batch"),
    ),
    # Consumers.
    "permits are kept to, count messages, and come back from below zero": (
        (_CONSUMERS, "test_nothing_comes_before_permits_and_no_more_than_they_allow"),
        (_CONSUMERS, "test_a_batch_costs_as_many_permits_as_it_has_messages"),
        (_MODEL, "test_random_lives"),
    ),
    "acknowledged members cost no permits": (
        (_HABITS, "test_a_batch_half_acknowledged_costs_half_its_permits"),
    ),
    "permits end with their consumer": ((_HABITS, "test_permits_do_not_outlive_a_consumer"),),
    "an ack set is a part, and is merged": (
        (_CONSUMERS, "test_parts_of_a_batch_are_acknowledged_bit_by_bit"),
        (_CONSUMING, "test_members_of_a_batch_are_acknowledged_alone"),
    ),
    "1 means unacknowledged": ((_FRAMES, "test_parts_of_a_batch_stay_acknowledged_over_an_unload"),),
    "an ACK that asks for a receipt gets one": (
        (_CONSUMERS, "test_receipts_come_after_the_cursor_is_written"),
        (_FRAMES, "test_parts_of_a_batch_stay_acknowledged_over_an_unload"),
    ),
    "redeliveries are counted, departures are not": (
        (_CONSUMERS, "test_redeliveries_are_counted_when_asked_for"),
        (_CONSUMING, "test_dead_letters_go_where_a_subscription_waits_for_them"),
    ),
    "redelivery by id rewinds where order is promised": (
        (_CONSUMERS, "test_redelivery_by_id_rewinds_where_order_is_promised"),
    ),
    "the consumer epoch is stamped": ((_CONSUMERS, "test_the_consumer_epoch_is_stamped"),),
    "SEEK closes, moves, succeeds; who subscribes meanwhile waits": (
        (_CONSUMERS, "test_seek_closes_consumers_then_moves_then_succeeds"),
        (_HABITS, "test_subscribing_while_the_cursor_moves_waits_instead_of_failing"),
        (_SEEKING, "test_a_consumer_seeks_again_and_again"),
    ),
    "the last message id is never an error": (
        (_FRAMES, "test_the_last_message_of_nothing_is_nothing"),
        (_CONSUMERS, "test_the_last_message_id"),
        (_SEEKING, "test_what_is_still_to_come"),
    ),
    "a reader's first entry is included": (
        (_CONSUMERS, "test_a_reader_begins_at_the_entry_it_names"),
        (_SEEKING, "test_readers_begin_after_a_message_even_within_a_batch"),
    ),
    "markers are delivered to nobody": (
        (_CONSUMERS, "test_markers_are_never_delivered_and_leave_no_backlog"),
    ),
    "checksums are kept, or made": (
        (_PRODUCERS, "test_the_bytes_stored_are_the_bytes_sent"),
        (_PRODUCERS, "test_a_message_without_checksum_is_given_one"),
    ),
    "who joins a failover subscription is told what it is": (
        (_CONSUMERS, "test_failover_tells_everyone_who_is_active"),
        (_FRAMES, "test_partitions_choose_different_consumers_of_the_best_priority"),
    ),
    "keys in base64 are decoded; no key has two consumers": (
        (_FRAMES, "test_keys_in_base64_are_hashed_by_what_they_mean"),
        (_CONSUMING, "test_keys_stay_together_and_in_order"),
        ("property/broker/test_key_shared_order.py", "*"),
    ),
    "chunks stay together": (
        (_CONSUMERS, "test_all_chunks_of_a_message_go_to_one_consumer"),
        (_PRODUCING, "test_large_messages_come_in_chunks_and_can_be_sought"),
    ),
    "unsubscribe needs to be alone": (
        (_CONSUMERS, "test_unsubscribe_needs_to_be_alone"),
        (_CONSUMING, "test_a_subscription_that_was_given_up_begins_anew"),
    ),
    "a dead exclusive consumer gives way": ((_CONSUMERS, "test_a_dead_exclusive_consumer_gives_way"),),
    # Patterns, schemas, HTTP.
    "partitions are listed in full, the hash is the clients'": (
        (_TOPIC_LISTS, "test_partitions_are_listed_and_system_topics_are_not"),
        (_TOPIC_LISTS, "test_the_hash_is_the_one_clients_compute"),
    ),
    "watching is offered and works": ((_TOPIC_LISTS, "test_a_watcher_hears_what_comes_and_goes"),),
    "HTTP look-up names all keys": ((_FRAMES, "test_lookup_over_http_names_all_that_clients_read"),),
    "no error code where there is none": (
        (_FRAMES, "test_consumer_stats_have_no_error_where_there_is_none"),
        (_FRAMES, "test_a_schema_is_told_without_an_error"),
    ),
    # What is promised beside the checklist.
    "unacknowledged messages have limits": (
        (_CONSUMERS, "test_unacknowledged_messages_are_limited_per_consumer"),
        ("unit/broker/test_unacked_share.py", "test_a_hoarding_subscription_does_not_stop_the_others"),
    ),
    "properties and the replicated flag are carried": (
        (_FRAMES, "test_what_a_consumer_says_of_itself_is_told"),
    ),
    "start_message_rollback_duration": ((_FRAMES, "test_a_subscription_may_begin_some_time_ago"),),
    "seek by time, and one partition alone": (
        (_CONSUMERS, "test_seek_by_time_and_into_a_batch"),
        (_FRAMES, "test_seeking_one_partition_leaves_the_others"),
    ),
}

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "CONNECT": (_CONNECTIONS, "test_a_second_connect_closes"),
    "SUBSCRIBE": (_CONSUMERS, "test_a_second_exclusive_consumer_is_busy"),
    "PRODUCER": (_PRODUCERS, "test_a_name_is_made_where_none_is_given"),
    "SEND": (_PRODUCERS, "test_receipts_echo_the_ids_and_come_in_order"),
    "ACK": (_CONSUMERS, "test_acknowledged_messages_do_not_come_again"),
    "FLOW": (_CONSUMERS, "test_nothing_comes_before_permits_and_no_more_than_they_allow"),
    "UNSUBSCRIBE": (_CONSUMERS, "test_unsubscribe_by_force_lets_others_go"),
    "CLOSE_PRODUCER": (_PRODUCERS, "test_close_waits_for_what_is_under_way"),
    "CLOSE_CONSUMER": (_CONSUMERS, "test_late_commands_to_a_closed_consumer_are_ignored"),
    "PING": (_FRAMES, "test_connected_comes_first_and_names_version_and_server"),
    "PONG": (_CONNECTIONS, "test_who_answers_pings_stays"),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": (_CONSUMERS, "test_redeliveries_are_counted_when_asked_for"),
    "PARTITIONED_METADATA": (_FRAMES, "test_a_plain_topic_has_no_partitions_and_says_so"),
    "LOOKUP": (_FRAMES, "test_lookups_lead_to_a_broker_that_answers"),
    "CONSUMER_STATS": (_FRAMES, "test_consumer_stats_have_no_error_where_there_is_none"),
    "SEEK": (_CONSUMERS, "test_seek_to_the_ends"),
    "GET_LAST_MESSAGE_ID": (_CONSUMERS, "test_the_last_message_id"),
    "GET_TOPICS_OF_NAMESPACE": (_TOPIC_LISTS, "test_topics_of_an_unknown_namespace"),
    "GET_SCHEMA": (_SCHEMAS, "test_schemas_are_fetched_by_version_and_shared_by_partitions"),
    "AUTH_RESPONSE": (_HOSTILE, "test_every_field_missing_wrong_and_huge"),
    "GET_OR_CREATE_SCHEMA": (_SCHEMAS, "test_get_or_create"),
    "WATCH_TOPIC_LIST": (_TOPIC_LISTS, "test_a_watcher_hears_what_comes_and_goes"),
    "WATCH_TOPIC_LIST_CLOSE": (_TOPIC_LISTS, "test_a_watcher_hears_what_comes_and_goes"),
    **dict.fromkeys(
        (
            "TC_CLIENT_CONNECT_REQUEST",
            "NEW_TXN",
            "ADD_PARTITION_TO_TXN",
            "ADD_SUBSCRIPTION_TO_TXN",
            "END_TXN",
            "END_TXN_ON_PARTITION",
            "END_TXN_ON_SUBSCRIPTION",
        ),
        (_TRANSACTIONS, "*"),
    ),
}
"""By the name of its type: the test that tries it first of all."""


@cache
def named_in(module: str) -> frozenset[str]:
    tree = ast.parse((TESTS / module).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def is_there(module: str, test: str) -> bool:
    return bool(named_in(module)) if test == "*" else test in named_in(module)


@pytest.mark.parametrize("line", CHECKLIST)
def test_each_line_has_its_tests(line: str) -> None:
    assert CHECKLIST[line]
    missing = [each for each in CHECKLIST[line] if not is_there(*each)]
    assert not missing


def test_each_command_has_its_test() -> None:
    answered = {BaseCommand.Type.Name(number) for number in ROUTES}  # type: ignore[arg-type]  # Keys are its numbers.
    assert set(COMMANDS) == answered
    missing = [each for each in COMMANDS.values() if not is_there(*each)]
    assert not missing
