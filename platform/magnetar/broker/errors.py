"""BrokerError: all that a broker refuses, and the one table of its protocol codes and HTTP statuses.

BrokerError
    MetadataFailed              the metadata store, or what a request names on this connection, is not there
    PersistenceFailed           a write failed or cannot be told to have succeeded: reconnect, send again
    Unauthenticated / Unauthorized
    ServiceNotReady             not here, not yet, or not any more: look up again and retry
    ListenerNotFound            the broker has no address of that name
    NamespaceNotFound, TopicNotFound, SubscriptionNotFound, ConsumerNotFound, SchemaNotFound, MessageNotFound
    TopicExists, SubscriptionExists
    TopicTerminated             no more messages are taken
    CompactionRunning           the topic is being compacted already
    TopicBusy, SubscriptionBusy somebody is connected, and the request did not say to force it
    ProducerBusy, ConsumerBusy  the name or the place is taken
    ProducerFenced              exclusive access is refused or lost
    BacklogHeld, BacklogExceeded   the topic's backlog is over its quota: retry later, or not
    ConsumerNotAssignable       key-shared ranges are missing or overlap
    InvalidTopic, InvalidSubscription, InvalidPosition
    IncompatibleSchema, InvalidSchema
    NotAllowed                  will never be allowed as asked
    ChecksumFailed              the message arrived damaged
    TooManyRequests
    TransactionCoordinatorNotFound  the coordinator is another broker's, or is not ready: look it up again
    TransactionNotFound, InvalidTransactionStatus, TransactionConflict
"""

from __future__ import annotations

from typing import Final

from magnetar.naming import NamingError
from magnetar.protocol.pulsar_pb2 import ServerError


class BrokerError(Exception):
    """The root of this room's errors. Its message is sent to the client and should say what to do."""

    @property
    def code(self) -> ServerError.ValueType:
        """The protocol's `ServerError`."""
        return _codes(type(self))[0]

    @property
    def http_status(self) -> int:
        """What a REST route answers."""
        return _codes(type(self))[1]


class MetadataFailed(BrokerError):
    """The metadata store failed, or a producer or consumer id means nothing on this connection."""


class PersistenceFailed(BrokerError):
    """A write failed, or nobody can tell yet whether it succeeded."""


class Unauthenticated(BrokerError):
    """Credentials are missing or wrong."""


class Unauthorized(BrokerError):
    """The role may not do this."""


class ServiceNotReady(BrokerError):
    """Not owned here, loading, unloading, or being created by an earlier request."""


class ListenerNotFound(BrokerError):
    """The client wants an address under a name this broker does not advertise."""


class NamespaceNotFound(BrokerError):
    """The tenant or the namespace does not exist."""


class TopicNotFound(BrokerError):
    """The topic does not exist and may not be created by this request."""


class SubscriptionNotFound(BrokerError):
    """The subscription does not exist and may not be created by this request."""


class ConsumerNotFound(BrokerError):
    """No such consumer on this connection."""


class SchemaNotFound(BrokerError):
    """The topic has no schema, or none of that version."""


class MessageNotFound(BrokerError):
    """No entry at that position."""


class TopicExists(BrokerError):
    """A topic of that name is there already."""


class SubscriptionExists(BrokerError):
    """A subscription of that name is there already."""


class TopicTerminated(BrokerError):
    """The topic has ended; it takes no more messages."""


class TopicBusy(BrokerError):
    """The topic has producers or subscriptions."""


class CompactionRunning(BrokerError):
    """The topic is being compacted already."""


class SubscriptionBusy(BrokerError):
    """The subscription has consumers."""


class ProducerBusy(BrokerError):
    """Another producer has the name, or shuts others out."""


class ConsumerBusy(BrokerError):
    """Another consumer, or another kind of consumers, has the subscription."""


class ProducerFenced(BrokerError):
    """Exclusive access is refused, or has passed to another producer."""


class BacklogHeld(BrokerError):
    """The topic's backlog is over its quota; producers are to wait until it is not."""


class BacklogExceeded(BrokerError):
    """The topic's backlog is over its quota; producers are to be told."""


class ConsumerNotAssignable(BrokerError):
    """The key ranges of a sticky consumer are missing, malformed or taken."""


class InvalidTopic(BrokerError):
    """The name cannot be a topic's."""


class InvalidSubscription(BrokerError):
    """The name cannot be a subscription's, or is reserved."""


class InvalidPosition(BrokerError):
    """No cursor can stand there."""


class IncompatibleSchema(BrokerError):
    """The topic's schemas and this one cannot be read by each other's users."""


class InvalidSchema(BrokerError):
    """The schema's definition cannot be read."""


class NotAllowed(BrokerError):
    """Asking again will not help: the request contradicts the protocol, a policy or a setting."""


class ChecksumFailed(BrokerError):
    """The message's bytes are not those its producer sent."""


class TooManyRequests(BrokerError):
    """A limit of this broker is reached for now."""


class TransactionCoordinatorNotFound(BrokerError):
    """The coordinator is served elsewhere, or not yet here."""


class TransactionNotFound(BrokerError):
    """Nothing is known of the transaction, or not any more."""


class InvalidTransactionStatus(BrokerError):
    """The transaction is not, or no longer, in the state that this needs."""


class TransactionConflict(BrokerError):
    """The message is acknowledged already, or within another transaction."""


_TABLE: Final[dict[type[BrokerError], tuple[ServerError.ValueType, int]]] = {
    BrokerError: (ServerError.UnknownError, 500),
    MetadataFailed: (ServerError.MetadataError, 500),
    PersistenceFailed: (ServerError.PersistenceError, 500),
    Unauthenticated: (ServerError.AuthenticationError, 401),
    Unauthorized: (ServerError.AuthorizationError, 403),
    ServiceNotReady: (ServerError.ServiceNotReady, 503),
    ListenerNotFound: (ServerError.ServiceNotReady, 404),
    NamespaceNotFound: (ServerError.TopicNotFound, 404),
    TopicNotFound: (ServerError.TopicNotFound, 404),
    SubscriptionNotFound: (ServerError.SubscriptionNotFound, 404),
    ConsumerNotFound: (ServerError.ConsumerNotFound, 404),
    SchemaNotFound: (ServerError.TopicNotFound, 404),
    MessageNotFound: (ServerError.UnknownError, 404),
    TopicExists: (ServerError.NotAllowedError, 409),
    SubscriptionExists: (ServerError.NotAllowedError, 409),
    TopicTerminated: (ServerError.TopicTerminatedError, 405),
    TopicBusy: (ServerError.NotAllowedError, 412),
    CompactionRunning: (ServerError.NotAllowedError, 409),
    SubscriptionBusy: (ServerError.MetadataError, 412),
    ProducerBusy: (ServerError.ProducerBusy, 409),
    ConsumerBusy: (ServerError.ConsumerBusy, 409),
    ProducerFenced: (ServerError.ProducerFenced, 409),
    BacklogHeld: (ServerError.ProducerBlockedQuotaExceededError, 412),
    BacklogExceeded: (ServerError.ProducerBlockedQuotaExceededException, 412),
    ConsumerNotAssignable: (ServerError.ConsumerAssignError, 412),
    InvalidTopic: (ServerError.InvalidTopicName, 412),
    InvalidSubscription: (ServerError.ProducerBusy, 412),
    InvalidPosition: (ServerError.MetadataError, 412),
    IncompatibleSchema: (ServerError.IncompatibleSchema, 409),
    InvalidSchema: (ServerError.IncompatibleSchema, 422),
    NotAllowed: (ServerError.NotAllowedError, 405),
    ChecksumFailed: (ServerError.ChecksumError, 400),
    TooManyRequests: (ServerError.TooManyRequests, 429),
    TransactionCoordinatorNotFound: (ServerError.TransactionCoordinatorNotFound, 503),
    TransactionNotFound: (ServerError.TransactionNotFound, 404),
    InvalidTransactionStatus: (ServerError.InvalidTxnStatus, 409),
    TransactionConflict: (ServerError.TransactionConflict, 409),
}
"""Code on the wire and status over HTTP. Sources: Pulsar BrokerServiceException, PulsarWebResource."""


def _codes(kind: type[BrokerError]) -> tuple[ServerError.ValueType, int]:
    for ancestor in kind.__mro__:
        if ancestor in _TABLE:
            return _TABLE[ancestor]
    raise AssertionError(f"{kind.__name__} is no BrokerError")


def as_broker_error(error: BaseException) -> BrokerError:
    """The refusal to answer with when a room below raised `error`."""
    # Imported here: a broker that never fails needs none of these.
    from magnetar.managed_ledger.errors import (
        ManagedLedgerError,
        ManagedLedgerTerminated,
        NoSuchManagedLedger,
    )
    from magnetar.metadata.errors import MetadataError
    from magnetar.policies import errors as policies
    from magnetar.security.errors import Forbidden

    match error:
        case BrokerError():
            return error
        case NamingError():
            return InvalidTopic(str(error))
        case Forbidden():
            return Unauthorized(str(error))
        case NoSuchManagedLedger():
            return TopicNotFound(str(error))
        case ManagedLedgerTerminated():
            return TopicTerminated(str(error))
        case ManagedLedgerError():
            return PersistenceFailed(f"storage failed: {error}")
        case policies.NotFound():
            return NamespaceNotFound(str(error))
        case policies.PoliciesError():
            return NotAllowed(str(error))
        case MetadataError():
            return MetadataFailed(f"the metadata store failed: {error}; retry")
        case _:
            return BrokerError(f"unexpected {type(error).__name__}: {error}")
