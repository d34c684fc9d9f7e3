"""/admin/v3/transactions: coordinators, their transactions, and what topics and subscriptions hold of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.errors import Elsewhere, Refused
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import TopicNotFound
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.transactions.coordinator_state import slow
from magnetar.broker.transactions.coordinator_topic import (
    COORDINATOR_TOPIC,
    CoordinatorTopic,
    coordinator_log,
)
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.managed_ledger import Position
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.broker.subscription import Subscription
    from magnetar.broker.transactions.coordinator_state import Transaction
    from magnetar.broker.transactions.pending_ack_store import PendingAckStore

BASE: Final = "/admin/v3/transactions"
_TOPIC: Final = "{tenant}/{namespace}/{topic}"


def _require_enabled(call: Call) -> None:
    if not call.admin.broker.transactions.enabled:
        raise Refused(
            503,
            "This Broker is not configured with transactionCoordinatorEnabled=true.",
            "transactions_disabled",
        )


def _txn(call: Call) -> TxnId:
    return TxnId(call.path_number("most"), call.path_number("least"))


# Coordinators.


async def _count(call: Call) -> int:
    _require_enabled(call)
    return await call.admin.resources.partitions(COORDINATOR_TOPIC) or 0


async def _coordinator(call: Call, number: int) -> CoordinatorTopic:
    """One of them. Raises Elsewhere where another broker serves it."""
    if not 0 <= number < await _count(call):
        raise Refused(404, f"Transaction coordinator not found! id: {number}")
    topic = await call.admin.topic(COORDINATOR_TOPIC.partition_name(number))
    assert isinstance(topic, CoordinatorTopic)
    return topic


async def _asked(call: Call) -> list[CoordinatorTopic]:
    """The coordinator that `coordinatorId` names, or all that this broker serves."""
    if call.query.get("coordinatorId"):
        return [await _coordinator(call, call.number("coordinatorId", 0))]
    found: list[CoordinatorTopic] = []
    for number in range(await _count(call)):
        try:
            found.append(await _coordinator(call, number))
        except Elsewhere:
            continue  # It is asked for at its own broker, by its number.
    return found


async def coordinator_stats(call: Call) -> dict[str, Any]:
    """One coordinator's figures; without `coordinatorId` those of all that this broker serves, by number."""
    found = await _asked(call)
    if call.query.get("coordinatorId"):
        return found[0].coordinator_stats()
    return {str(each.partition): each.coordinator_stats() for each in found}


async def coordinators(call: Call) -> list[dict[str, Any]]:
    """Every coordinator, and which broker serves it."""
    return [
        {
            "id": number,
            "brokerServiceUrl": (
                await call.admin.broker.lookup(COORDINATOR_TOPIC.partition_name(number), take=False)
            ).broker_url,
        }
        for number in range(await _count(call))
    ]


async def scale(call: Call) -> None:
    """Have more coordinators: the number that the body says."""
    count = await _count(call)
    wanted = call.required("the number of coordinators")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted <= count:
        raise Refused(406, f"Number of transaction coordinators should be more than the current {count}")
    if not count:
        await call.admin.resources.create_partitioned(COORDINATOR_TOPIC, wanted, {})
    else:
        await call.admin.resources.update_partitions(COORDINATOR_TOPIC, wanted)


async def coordinator_internal_stats(call: Call) -> dict[str, Any]:
    """A coordinator's log."""
    topic = await _coordinator(call, call.path_number("coordinator"))
    name = coordinator_log(topic.partition).managed_ledger_name
    return {
        "transactionLogStats": {
            "managedLedgerName": name,
            "managedLedgerInternalStats": topic.ledger.internal_stats(),
        }
    }


# Transactions.


async def metadata(call: Call) -> dict[str, Any]:
    """What its coordinator knows of a transaction, and this broker's topics with it."""
    txn = _txn(call)
    topic = await _coordinator(call, txn.most)
    outcome = topic.state.outcome(txn)
    if outcome is not None:
        return {
            "txnId": str(txn),
            "openTimestamp": 0,
            "timeoutAt": 0,
            "status": outcome.value,
            "producedPartitions": {},
            "ackedPartitions": {},
        }
    return _metadata(call, topic.state.get(txn))


def _metadata(call: Call, each: Transaction) -> dict[str, Any]:
    acked: dict[str, dict[str, Any]] = {}
    for topic, name in each.subscriptions:
        subscription = _loaded(call, topic).get(name)
        store = None if subscription is None else subscription.pending_acks
        acked.setdefault(topic, {})[name] = (
            {"cumulativeAckPosition": None} if store is None else store.transaction_stats(each.txn)
        )
    return {
        "txnId": str(each.txn),
        "openTimestamp": each.opened_ms,
        "timeoutAt": each.timeout_ms,
        "status": each.status.value,
        "owner": each.owner,
        "producedPartitions": {topic: _in_buffer(call, topic, each.txn) for topic in each.partitions},
        "ackedPartitions": acked,
    }


def _here(call: Call, topic: str) -> PersistentTopic | None:
    """A topic if this broker has it in memory: another broker's says for itself what it knows."""
    found = next((each for each in call.admin.broker.topics.loaded() if str(each.name) == topic), None)
    return found if isinstance(found, PersistentTopic) else None


def _loaded(call: Call, topic: str) -> dict[str, Subscription]:
    found = _here(call, topic)
    return {} if found is None else found.subscriptions


def _in_buffer(call: Call, topic: str, txn: TxnId) -> dict[str, Any]:
    found = _here(call, topic)
    if found is None or found.transactions is None:
        return {"startPosition": None, "aborted": False}
    return found.transactions.transaction_stats(txn)


async def slow_transactions(call: Call) -> dict[str, Any]:
    """Those open for longer than so many milliseconds, by name."""
    longer_than_ms = call.path_number("timeout")
    now_ms = call.admin.broker.context.clock.time_ms()
    return {
        str(each.txn): _metadata(call, each)
        for topic in await _asked(call)
        for each in slow(list(topic.state), now_ms, longer_than_ms)
    }


async def abort(call: Call) -> None:
    """Abort a transaction, whoever began it."""
    txn = _txn(call)
    topic = await _coordinator(call, txn.most)
    await topic.end(txn, commit=False, checked=False)


# Topics and subscriptions.


async def _topic(call: Call) -> PersistentTopic:
    _require_enabled(call)
    topic = await call.loaded()
    if not isinstance(topic, PersistentTopic):
        raise TopicNotFound(f"topic {call.topic} keeps nothing")
    return topic


async def _pending_acks(call: Call) -> PendingAckStore | None:
    subscription = (await _topic(call)).subscriptions.get(call["subscription"])
    if subscription is None:
        raise Refused(404, f"Subscription {call['subscription']} not found")
    return subscription.pending_acks


async def buffer_stats(call: Call) -> dict[str, Any]:
    """What a topic knows of transactions."""
    topic = await _topic(call)
    if topic.transactions is None:
        return {
            "state": "NoSnapshot",
            "maxReadPosition": str(topic.max_read_position),
            "lastSnapshotTimestamps": 0,
            "lowWaterMarks": {},
            "ongoingTxnSize": 0,
            "recoverStartTime": 0,
            "recoverEndTime": 0,
            "totalAbortedTransactions": 0,
            "snapshotType": "Single",
        }
    return topic.transactions.stats()


async def in_buffer_stats(call: Call) -> dict[str, Any]:
    """What a topic knows of one transaction."""
    topic = await _topic(call)
    return _in_buffer(call, str(topic.name), _txn(call))


async def pending_ack_stats(call: Call) -> dict[str, Any]:
    """What a subscription holds for transactions."""
    store = await _pending_acks(call)
    if store is not None:
        return store.stats()
    return {
        "state": "None",
        "lowWaterMarks": {},
        "ongoingTxnSize": 0,
        "recoverStartTime": 0,
        "recoverEndTime": 0,
    }


async def in_pending_ack_stats(call: Call) -> dict[str, Any]:
    """What a subscription holds for one transaction."""
    store = await _pending_acks(call)
    return {"cumulativeAckPosition": None} if store is None else store.transaction_stats(_txn(call))


async def pending_ack_internal_stats(call: Call) -> dict[str, Any]:
    """The log of a subscription's provisional acknowledgements."""
    store = await _pending_acks(call)
    if store is None:
        raise Refused(404, f"Subscription {call['subscription']} has no provisional acknowledgements")
    return {
        "pendingAckLogStats": {
            "managedLedgerName": store.records.ledger.name,
            "managedLedgerInternalStats": store.records.ledger.internal_stats(),
        }
    }


async def position_in_pending_ack(call: Call) -> dict[str, str]:
    """Whether a transaction holds a message."""
    topic = await _topic(call)
    subscription = topic.subscriptions.get(call["subscription"])
    if subscription is None:
        raise Refused(404, f"Subscription {call['subscription']} not found")
    position = Position(call.path_number("ledger"), call.path_number("entry"))
    if position > topic.ledger.last_confirmed:
        return {"state": "InvalidPosition"}
    if subscription.cursor.is_acknowledged(position):
        return {"state": "MarkDelete"}
    store = subscription.pending_acks
    held = store is not None and store.state.left_of(position, None) is not None
    return {"state": "PendingAck" if held else "NotInPendingAck"}


_TOPIC_STATS: Final = (Guards.TOPIC, Action.READ_STATS)
_SUBSCRIPTION: Final = f"{_TOPIC}/{{subscription}}"
_BY_ID: Final = ("coordinatorId",)

ROUTES: Final = (
    Route("GET", f"{BASE}/coordinators", coordinators),
    Route("GET", f"{BASE}/coordinatorStats", coordinator_stats, query=_BY_ID),
    Route("GET", f"{BASE}/coordinatorInternalStats/{{coordinator}}", coordinator_internal_stats),
    Route("POST", f"{BASE}/transactionCoordinator/replicas", scale),
    Route("GET", f"{BASE}/transactionMetadata/{{most}}/{{least}}", metadata),
    Route("GET", f"{BASE}/slowTransactions/{{timeout}}", slow_transactions, query=_BY_ID),
    Route("POST", f"{BASE}/abortTransaction/{{most}}/{{least}}", abort),
    Route("GET", f"{BASE}/transactionBufferStats/{_TOPIC}", buffer_stats, *_TOPIC_STATS),
    Route(
        "GET", f"{BASE}/transactionInBufferStats/{_TOPIC}/{{most}}/{{least}}", in_buffer_stats, *_TOPIC_STATS
    ),
    Route("GET", f"{BASE}/pendingAckStats/{_SUBSCRIPTION}", pending_ack_stats, *_TOPIC_STATS),
    Route(
        "GET",
        f"{BASE}/transactionInPendingAckStats/{_SUBSCRIPTION}/{{most}}/{{least}}",
        in_pending_ack_stats,
        *_TOPIC_STATS,
    ),
    Route(
        "GET", f"{BASE}/pendingAckInternalStats/{_SUBSCRIPTION}", pending_ack_internal_stats, *_TOPIC_STATS
    ),
    Route(
        "GET",
        f"{BASE}/positionStatsInPendingAck/{_SUBSCRIPTION}/{{ledger}}/{{entry}}",
        position_in_pending_ack,
        *_TOPIC_STATS,
    ),
)
