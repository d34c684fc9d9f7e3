"""What a function can ask of the place it runs in. Names and meanings are those of Pulsar's Python SDK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from logging import Logger
from typing import Any


class Context(ABC):
    """Lent to `Function.process`. What it says of a message holds until `process` returns."""

    # Of the current message

    @abstractmethod
    def get_message_id(self) -> Any:
        """Its id; `serialize()` gives the bytes official clients understand."""

    @abstractmethod
    def get_message_key(self) -> str:
        """Its key; empty if it has none."""

    @abstractmethod
    def get_message_eventtime(self) -> int:
        """Milliseconds since 1970 that its producer gave it; 0 if none."""

    @abstractmethod
    def get_message_properties(self) -> dict[str, str]:
        """Its properties."""

    @abstractmethod
    def get_message_sequence_id(self) -> int:
        """The sequence id its producer gave it. (Apache packs ledger and entry here, the same for a whole batch.)"""

    @abstractmethod
    def get_current_message_topic_name(self) -> str:
        """The topic it came from, with `-partition-N` where that is one."""

    @abstractmethod
    def get_message_partition_index(self) -> int:
        """The partition it came from; -1 if its topic has none."""

    @abstractmethod
    def get_partition_key(self) -> str:
        """The same as `get_message_key`."""

    @abstractmethod
    def get_ordering_key(self) -> bytes | None:
        """Its ordering key; None if it has none."""

    # Of the function

    @abstractmethod
    def get_function_name(self) -> str: ...

    @abstractmethod
    def get_function_tenant(self) -> str: ...

    @abstractmethod
    def get_function_namespace(self) -> str: ...

    @abstractmethod
    def get_function_id(self) -> str:
        """`tenant/namespace/name`, and the same after every restart."""

    @abstractmethod
    def get_function_version(self) -> str:
        """Counts how often the function was re-created."""

    @abstractmethod
    def get_instance_id(self) -> str: ...

    @abstractmethod
    def get_logger(self) -> Logger:
        """A logger whose lines reach the function's log and its log topic."""

    @abstractmethod
    def get_user_config_value(self, key: str) -> Any:
        """The value of `key` in the config's `userConfig`; None if there is none."""

    @abstractmethod
    def get_user_config_map(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def get_secret(self, secret_name: str) -> Any:
        """The secret of that name; None if the config has none."""

    @abstractmethod
    def record_metric(self, metric_name: str, metric_value: float) -> None:
        """Add a value to a metric of the function's own, shown in its statistics and in /metrics."""

    @abstractmethod
    def get_input_topics(self) -> Sequence[str]: ...

    @abstractmethod
    def get_output_topic(self) -> str: ...

    @abstractmethod
    def get_output_serde_class_name(self) -> str: ...

    # Acting

    @abstractmethod
    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: Mapping[str, str] | None = None,
        compression_type: Any = None,
        callback: Callable[[Any, Any], None] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish to any topic; the current input is acknowledged only after this too is stored.

        Raises:
            PublishRefused: the function is effectively once; only what it returns can be.
        """

    @abstractmethod
    def ack(self, msgid: Any, topic: str) -> None:
        """Acknowledge a message, in a function whose guarantee is MANUAL."""

    # State

    @abstractmethod
    def incr_counter(self, key: str, amount: int) -> None: ...

    @abstractmethod
    def get_counter(self, key: str) -> int: ...

    @abstractmethod
    def del_counter(self, key: str) -> None: ...

    @abstractmethod
    def put_state(self, key: str, value: Any) -> None: ...

    @abstractmethod
    def get_state(self, key: str) -> Any: ...
