"""What a function is: a class with `process(input, context)`, or a module with `process(input)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from magnetar.functions.context import Context


class Function(ABC):
    """One stage of a stream: called for each message, in order, by one thread of the function's own process.

    Created once, without arguments, when its process starts: open files and models in `__init__`. It may block,
    but a call that takes longer than the hang time-out gets its process killed and the message tried again.
    """

    @abstractmethod
    def process(self, input: Any, context: Context) -> Any:
        """Handle one message.

        Args:
            input: the payload, through the input's schema or SerDe. By default text and numbers are recognised
                (`IdentitySerDe`); ask for schema `bytes` to get what was sent.
            context: what is known of the message and the function; the same object for every call.
        Returns:
            The message for the output topic, or None for none.
        Raises:
            Exception: anything. The message is tried again, or dead-lettered, as the config says; the exception
                and its traceback are shown in the status.
        """
