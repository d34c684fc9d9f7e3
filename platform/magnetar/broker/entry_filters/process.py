"""The filters' process: `python -m magnetar.broker.entry_filters.process DIRECTORY`.

Questions come by standard input, answers go by standard output, and what filters print goes to standard error.
It ends when its input does.

A filter is a file `NAME.py` with a function `filter_entry(message)`, or `filter_entries(messages)` for a whole batch at
once; it says "ACCEPT", "REJECT" or "RESCHEDULE". Source of the three words: Pulsar EntryFilter.FilterResult.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from magnetar.broker.entry_filters import frames
from magnetar.broker.entry_filters.filtered_message import FilteredMessage

BatchFilter = Callable[[Sequence[FilteredMessage]], Sequence[str]]

_VERDICTS: Final = {"ACCEPT": frames.ACCEPT, "REJECT": frames.REJECT, "RESCHEDULE": frames.RESCHEDULE}


class Filters:
    """The filters of a directory, each loaded when it is first asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loaded: dict[str, BatchFilter] = {}

    def judge(self, names: Sequence[str], messages: Sequence[FilteredMessage]) -> str:
        """A verdict for each message: that of the first filter that does not accept it."""
        verdicts = [frames.ACCEPT] * len(messages)
        open_still = list(range(len(messages)))
        for name in names:
            if not open_still:
                break
            said = self._filter(name)([messages[at] for at in open_still])
            if len(said) != len(open_still):
                raise ValueError(
                    f"entry filter {name} answered {len(said)} times for {len(open_still)} messages"
                )
            for at, word in zip(open_still, said, strict=True):
                if word not in _VERDICTS:
                    raise ValueError(f"entry filter {name} said {word!r}: say ACCEPT, REJECT or RESCHEDULE")
                verdicts[at] = _VERDICTS[word]
            open_still = [at for at in open_still if verdicts[at] == frames.ACCEPT]
        return "".join(verdicts)

    def _filter(self, name: str) -> BatchFilter:
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = self._load(name)
        return found

    def _load(self, name: str) -> BatchFilter:
        path = self._directory / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"magnetar_entry_filter_{name}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise FileNotFoundError(f"there is no entry filter {path}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        whole: Any = getattr(module, "filter_entries", None)
        single: Any = getattr(module, "filter_entry", None)
        if whole is None and single is None:
            raise AttributeError(f"entry filter {path} has neither filter_entry nor filter_entries")
        batched: BatchFilter = whole or (lambda messages: [single(message) for message in messages])
        return batched


def answer(filters: Filters, body: bytes) -> bytes:
    """The answer to one question. Whatever a filter raises is told, and ends nothing."""
    try:
        head, pieces = frames.decode(body)
        messages = [
            FilteredMessage(
                piece,
                (ledger_id, entry_id),
                topic=head["topic"],
                subscription=head["subscription"],
                subscription_properties=head["properties"],
            )
            for piece, (ledger_id, entry_id) in zip(pieces, head["positions"], strict=True)
        ]
        return frames.encode({"verdicts": filters.judge(head["filters"], messages)})
    except Exception as error:
        return frames.encode({"error": f"{type(error).__name__}: {error}"})


def serve(filters: Filters, questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until nobody asks any more."""
    while len(length := questions.read(frames.LENGTH_BYTES)) == frames.LENGTH_BYTES:
        body = questions.read(int.from_bytes(length, "big"))
        answers.write(answer(filters, body))
        answers.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The broker decides when it ends.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(Filters(Path(sys.argv[1])), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
