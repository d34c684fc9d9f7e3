"""A message's way through a persistent topic: checked, judged by deduplication, stored, answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.deduplication import Sequences, Verdict
from magnetar.broker.errors import (
    BrokerError,
    ChecksumFailed,
    InvalidTransactionStatus,
    NotAllowed,
    PersistenceFailed,
    TopicTerminated,
)
from magnetar.broker.filters import messages_in
from magnetar.broker.latency import LatencyBuckets
from magnetar.broker.producer import Publish
from magnetar.broker.sequence_ids import told_range, untold_sequences
from magnetar.broker.transactions.markers import txn_of
from magnetar.broker.transactions.txn_id import named
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.errors import EntryTooLarge, ManagedLedgerFenced, ManagedLedgerTerminated
from magnetar.protocol.batch import cut_batch
from magnetar.protocol.checksum import crc32c
from magnetar.protocol.errors import BatchUnopenable, ChecksumMismatch
from magnetar.protocol.message import (
    MESSAGE_MAGIC,
    SplitMessage,
    build_message_parts,
    read_metadata,
    split_message,
    take_message,
)

if TYPE_CHECKING:
    from magnetar.broker.dedup_cursor import DeduplicationCursor
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.broker.producer import Producer
    from magnetar.managed_ledger import ManagedLedger, Position
    from magnetar.protocol.pulsar_pb2 import CommandSend

log = get_logger("magnetar.broker")

_MEMBER_BYTES_MIN: Final = 4
"""What a message takes in a batch at least: the size of its metadata."""


class PublishPath:
    """Takes the messages of one topic, in the order they come, and answers each producer in its order."""

    def __init__(
        self, topic: PersistentTopic, ledger: ManagedLedger, deduplication: DeduplicationCursor
    ) -> None:
        self._topic = topic
        self._ledger = ledger
        self._deduplication = deduplication
        self._clock = topic.clock
        self.write_latency = LatencyBuckets()
        self.under_way = 0
        """Messages given to storage and not yet answered by it."""
        self._not_stored = 0
        """Messages that failed in a row: the first of them is logged, and how many there were."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._held: list[tuple[list[bytes], Publish]] | None = None
        """What waits, in order, until the topic has a transaction buffer; None: nothing does."""

    def take(self, producer: Producer, command: CommandSend, payload: memoryview) -> None:
        """
        Raises:
            FrameError: the bytes are no message; close the connection.
        """
        if producer.halted:
            return
        damage: ChecksumMismatch | None = None
        try:
            head, covered = take_message(payload)
        except ChecksumMismatch as mismatch:
            damage, head, covered = mismatch, b"", b""
        message = None if damage is not None else split_message(covered, verify=False)
        publish = Publish(
            producer,
            command.sequence_id,
            command.highest_sequence_id,
            1,
            len(payload),
            self._clock.monotonic(),
        )
        producer.pending.append(publish)
        producer.peer.publish_started(publish.size)
        try:
            if message is None:
                producer.halted = True
                raise ChecksumFailed(str(damage))
            parts = self._accept(publish, command, message, head, covered)
        except BrokerError as error:
            publish.error = error
            producer.answer(publish)
            return
        if parts is None:
            producer.answer(publish)
            return
        self.under_way += 1
        self._idle.clear()
        if self._held is not None:
            self._held.append((parts, publish))
        elif publish.txn is not None and self._topic.transactions is None:
            self._held = [(parts, publish)]
            self._topic.context.tasks.start(
                self._release_held(), f"make the transaction buffer of {self._topic.name}"
            )
        else:
            self._ledger.append(parts, publish.messages, publish.stored)

    async def _release_held(self) -> None:
        """The first message of a transaction waits until there is what will hide it; what follows waits behind it."""
        failure: Exception | None = None
        try:
            await self._topic.with_transactions()
        except Exception as error:
            failure = error
        held, self._held = self._held or [], None
        for parts, publish in held:
            if failure is not None and publish.txn is not None:
                publish.stored(None, -1, failure)
            else:
                self._ledger.append(parts, publish.messages, publish.stored)

    def _accept(
        self, publish: Publish, command: CommandSend, message: SplitMessage, head: bytes, covered: bytes
    ) -> list[bytes] | None:
        """Check a message. Returns the bytes to store, or None if they are stored already."""
        self._topic.check_publishable()
        self._topic.check_message(command, message)
        publish.messages = messages_in(message.metadata)
        _check_count(message, publish.messages)
        if not head:  # Some consumers require a checksum, though producers may leave it out.
            head = MESSAGE_MAGIC + crc32c(covered).to_bytes(4, "big")
        parts = [head, covered]
        if message.metadata.txnid_least_bits or command.txnid_least_bits:
            parts = self._enter_transaction(publish, command, message, parts)
        is_marker = command.marker or message.metadata.HasField("marker_type")
        if self._deduplication.tracking and not is_marker:
            return self._deduplicate(publish, command, message, parts)
        return parts

    def _enter_transaction(
        self, publish: Publish, command: CommandSend, message: SplitMessage, parts: list[bytes]
    ) -> list[bytes]:
        """A message of a transaction. What is stored must tell that: clients in Go say it in the command alone."""
        metadata = message.metadata
        told = named(command.txnid_most_bits, command.txnid_least_bits)
        carried = txn_of(metadata)
        txn = told if carried is None else named(*carried)
        if carried is None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = told
            head, payload = build_message_parts(metadata.SerializeToString(), message.payload)
            parts = [bytes(head), bytes(payload)]
        elif command.txnid_least_bits and txn != told:
            raise NotAllowed(f"the command names transaction {told}, the message's metadata {txn}")
        if not self._topic.settings.transaction_coordinator_enabled:
            raise NotAllowed("transactions are not enabled on this broker: send without one")
        if self._topic.transactions is not None:
            try:
                self._topic.transactions.check_open(txn)
            except InvalidTransactionStatus as error:
                # By this code clients fail the message alone; the transaction is lost anyway.
                raise NotAllowed(str(error)) from None
        publish.txn = txn
        return parts

    def _deduplicate(
        self, publish: Publish, command: CommandSend, message: SplitMessage, parts: list[bytes]
    ) -> list[bytes] | None:
        marks = self._deduplication.marks
        name = publish.producer.name
        metadata = message.metadata
        chunks = metadata.num_chunks_from_msg
        if chunks > 1 and metadata.chunk_id < chunks - 1:
            verdict = marks.judge_chunk(name, command.sequence_id)
            if verdict is Verdict.NEW or not self._deduplication.enabled:
                publish.push = marks.push_chunk(name, publish.began)
                return parts  # Its message counts as stored when the last chunk is.
            sequences = Sequences(command.sequence_id, command.sequence_id)
        else:
            sequences = _sequences(command, message, publish.messages)
            verdict = marks.judge(name, sequences) if self._deduplication.enabled else Verdict.NEW
        match verdict:
            case Verdict.DUPLICATE:
                self._deduplication.duplicates += 1
                return None
            case Verdict.UNKNOWN:
                raise PersistenceFailed(
                    "an earlier write of the same message is under way: reconnect, send again"
                )
            case Verdict.UNTELLABLE:
                raise NotAllowed(
                    f"batch from sequence id {command.sequence_id} on may repeat stored messages, and as it is "
                    f"encrypted or corrupt nobody here can tell which: send them one by one, or batched as before"
                )
            case Verdict.STRADDLES:
                parts = [self._cut(publish, marks.last_sequence_id(name), parts)]
        publish.push = marks.push(name, sequences, publish.began)
        return parts

    def _cut(self, publish: Publish, mark: int, parts: Sequence[bytes]) -> bytes:
        """Leave of a batch what is not stored yet. Its receipt is the same: all of it is stored then."""
        try:
            entry = cut_batch(b"".join(parts), lambda _, sequence_id: sequence_id > mark)
        except BatchUnopenable as error:
            raise NotAllowed(
                f"batch repeats messages up to sequence id {mark}, and cannot be cut to its new ones: {error}; "
                f"send them one by one, or batched as before"
            ) from None
        publish.messages = messages_in(read_metadata(entry))
        self._deduplication.cuts += 1
        return entry

    def ended(self, publish: Publish, position: Position | None, error: Exception | None) -> None:
        """A write has ended, in the order of writes."""
        self.under_way -= 1
        if self.under_way == 0:
            self._idle.set()
        if position is None:
            assert error is not None
            self._failed(publish, error)
        else:
            self._stored(publish, position)
        publish.producer.answer(publish)

    def _stored(self, publish: Publish, position: Position) -> None:
        topic, deduplication = self._topic, self._deduplication
        if self._not_stored:
            log.info("messages.stored_again", topic=str(topic.name), not_stored=self._not_stored)
            self._not_stored = 0
        publish.position = (position.ledger_id, position.entry_id)
        self.write_latency.add(self._clock.monotonic() - publish.began)
        topic.last_publish_ms = self._clock.time_ms()
        topic.flow_in.add(publish.messages, publish.size)
        publish.producer.flow.add(publish.messages, publish.size)
        if publish.txn is not None:
            assert topic.transactions is not None
            topic.transactions.stored(publish.txn, position)
        if publish.push is not None:
            deduplication.marks.stored(publish.push)
        if deduplication.enabled:
            deduplication.stored(position)

    def _failed(self, publish: Publish, error: Exception) -> None:
        if not self._not_stored:  # What fails after it fails for the same reason: one line is enough.
            log.warning("message.not_stored", topic=str(self._topic.name), reason=str(error))
        self._not_stored += 1
        if publish.push is not None:
            self._deduplication.marks.failed(publish.push)
        if isinstance(error, ManagedLedgerTerminated):
            publish.error = TopicTerminated(
                f"topic {self._topic.name} is terminated: it takes no more messages"
            )
            return
        publish.error = PersistenceFailed(f"message could not be stored: {error}")
        outcome_known = isinstance(error, EntryTooLarge | ManagedLedgerFenced)
        if (publish.push is not None or publish.txn is not None) and not outcome_known:
            self._topic.marks_in_doubt()

    async def drained(self, deadline_s: float) -> None:
        """Wait until what was taken is stored and answered, but not for ever."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("topic.not_drained", topic=str(self._topic.name), writes_under_way=self.under_way)


def _sequences(command: CommandSend, message: SplitMessage, messages: int) -> Sequences:
    """The sequence ids of an entry: told by the command, read from the batch, or one."""
    told = told_range(command.sequence_id, command.highest_sequence_id)
    if told is not None:
        return told
    if messages > 1:
        return untold_sequences(message)
    return Sequences(command.sequence_id, command.sequence_id)


def _check_count(message: SplitMessage, messages: int) -> None:
    """The count becomes part of the topic's message index, so that it must at least be possible."""
    room = max(len(message.payload), message.metadata.uncompressed_size)
    if messages > 1 and messages * _MEMBER_BYTES_MIN > room:
        raise NotAllowed(f"batch announces {messages} messages in {room} bytes: that cannot be")
