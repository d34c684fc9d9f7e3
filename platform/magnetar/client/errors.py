"""ClientError: all that can go wrong between a program and a broker.

ClientError
    InvalidServiceUrl(url)          not a pulsar:// URL
    ConnectFailed(address)          nobody answers there, or not as a broker does
    ConnectionLost                  the connection ended while an answer was awaited
    OperationTimedOut(what)         no answer in time
    BrokerRefused(code, message)    the broker answered with an error; `code` is the protocol's
    AlreadyClosed(what)             used after `close`
    ProducerQueueFull               more is pending than the limits allow: wait, then send
    SendTimedOut                    no receipt in time: the message may or may not be stored
    MessageTooLarge(size, limit)    and chunking is off
    InvalidUse                      a call that cannot make sense
    TransactionError
        TransactionsUnavailable     the cluster has no transactions
        TransactionFailed           a part of it failed, and so it is aborted
        TransactionConflict         the message is acknowledged already, or within another transaction
        TransactionEnded            nothing more can be done in it, or it has ended the other way
        TransactionNotFound         nothing is known of it any more
    The last three are BrokerRefused too, where a broker has said so.
"""

from __future__ import annotations

from magnetar.protocol.pulsar_pb2 import ServerError


class ClientError(Exception):
    """The root of this room's errors."""


class InvalidServiceUrl(ClientError, ValueError):
    """Not the URL of a broker's binary protocol."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"invalid service URL {url!r}: {reason}")
        self.url = url


class ConnectFailed(ClientError):
    """Nobody answers at an address, or not as a broker does."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address


class ConnectionLost(ClientError):
    """The connection ended while an answer was awaited."""


class OperationTimedOut(ClientError, TimeoutError):
    """No answer in time."""


class BrokerRefused(ClientError):
    """The broker answered with an error."""

    def __init__(self, code: ServerError.ValueType, message: str) -> None:
        super().__init__(f"{_name(code)}: {message}")
        self.code = code
        self.message = message

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed a little later, before anything was created."""
        return self.code in _RETRIABLE

    @property
    def permanent(self) -> bool:
        """Whether a producer or consumer that was connected before has to give up on it."""
        return self.code in _PERMANENT


class AlreadyClosed(ClientError):
    """Used after it was closed, by the program or by an error that left no way on."""


class ProducerQueueFull(ClientError):
    """More is pending than the limits allow. Await `send`, or `room` before `send_nowait`."""


class SendTimedOut(ClientError, TimeoutError):
    """No receipt in time. The message may or may not have been stored."""


class MessageTooLarge(ClientError):
    """A message exceeds what the broker accepts in one entry, and cannot be cut into chunks."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"message of {size} bytes exceeds the broker's limit of {limit} bytes")
        self.size = size
        self.limit = limit


class InvalidUse(ClientError, ValueError):
    """A call that cannot make sense, such as a cumulative acknowledgement on a shared subscription."""


class TransactionError(ClientError):
    """Something about a transaction."""


class TransactionsUnavailable(TransactionError):
    """The cluster has no transactions, or they are switched off there."""


class TransactionFailed(TransactionError):
    """A message or an acknowledgement in it failed: it is aborted instead of committed."""


class TransactionConflict(TransactionError, BrokerRefused):
    """The message is acknowledged already, or within another transaction."""


class TransactionEnded(TransactionError, BrokerRefused):
    """Nothing more can be done in it, or it has ended the other way."""

    @classmethod
    def locally(cls, message: str) -> TransactionEnded:
        """Known without asking."""
        return cls(ServerError.InvalidTxnStatus, message)


class TransactionNotFound(TransactionError, BrokerRefused):
    """Nothing is known of it any more."""


def transaction_error(error: BrokerRefused) -> BrokerRefused:
    """A refusal as the error for what it says of a transaction; itself, if it says nothing of that."""
    kind = _TRANSACTION_ERRORS.get(error.code)
    return error if kind is None else kind(error.code, error.message)


def _name(code: ServerError.ValueType) -> str:
    return ServerError.Name(code) if code in ServerError.values() else f"error {code}"


# Source: reactions of official clients to each code, by the Pulsar clients' ResultUtils.
_RETRIABLE = frozenset(
    {
        ServerError.UnknownError,
        ServerError.MetadataError,
        ServerError.PersistenceError,
        ServerError.ServiceNotReady,
        ServerError.TooManyRequests,
        ServerError.TransactionCoordinatorNotFound,
    }
)
_TRANSACTION_ERRORS: dict[int, type[TransactionConflict | TransactionEnded | TransactionNotFound]] = {
    ServerError.TransactionConflict: TransactionConflict,
    ServerError.InvalidTxnStatus: TransactionEnded,
    ServerError.TransactionNotFound: TransactionNotFound,
}
_PERMANENT = frozenset(
    {
        ServerError.AuthenticationError,
        ServerError.AuthorizationError,
        ServerError.TopicNotFound,
        ServerError.TopicTerminatedError,
        ServerError.InvalidTopicName,
        ServerError.IncompatibleSchema,
        ServerError.NotAllowedError,
        ServerError.ConsumerAssignError,
        ServerError.SubscriptionNotFound,
        ServerError.ProducerFenced,
    }
)
