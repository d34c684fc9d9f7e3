"""/admin/v2/persistent/…/skipByMessageIds: single messages that a subscription is to get no more.

The ids come in any of the forms that Pulsar takes (PIP-423): a list, or an object with `type` and `messageIds`, of
objects, of texts `ledger:entry[:batchIndex]`, or of ids as clients write them, in Base64; or a map from ledger to entry.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from magnetar.admin.routes.targets import SUBSCRIPTION, subscription
from magnetar.admin.routing import Guards, Route
from magnetar.broker.skipping import Skipped, skip_messages
from magnetar.managed_ledger import Position
from magnetar.policies.errors import BadValue
from magnetar.protocol.ids import to_signed
from magnetar.protocol.pulsar_pb2 import MessageIdData
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call


async def skip_by_ids(call: Call) -> None:
    """Acknowledge single messages, those to come later included."""
    said = call.required("message ids")
    await skip_messages(await subscription(call), message_ids(said))


def message_ids(said: Any) -> list[Skipped]:
    """The messages meant. Raises BadValue."""
    if isinstance(said, dict) and "messageIds" in said:
        said = said["messageIds"]
    if isinstance(said, dict):
        return [_of_numbers(ledger_id, entry_id) for ledger_id, entry_id in said.items()]
    if not isinstance(said, list):
        raise BadValue("Invalid message ids: a list of message ids is wanted")
    return [_one(each) for each in said]


def _one(said: Any) -> Skipped:
    if isinstance(said, dict):
        batch_index = said.get("batchIndex")
        return _of_numbers(
            said.get("ledgerId"), said.get("entryId"), -1 if batch_index is None else batch_index
        )
    if not isinstance(said, str):
        raise BadValue(f"Invalid message id: {said!r}"[:200])
    if ":" in said:
        return _of_numbers(*said.split(":"))
    try:
        data = MessageIdData.FromString(base64.b64decode(said, validate=True))
    except (binascii.Error, DecodeError) as error:
        raise BadValue(f"Invalid message id: {said[:100]!r}: {error}") from None
    return Skipped(Position(to_signed(data.ledgerId), to_signed(data.entryId)), data.batch_index)


def _of_numbers(ledger_id: Any = None, entry_id: Any = None, batch_index: Any = -1, *more: Any) -> Skipped:
    try:
        if more:
            raise ValueError("it has too many parts")
        numbers = int(ledger_id), int(entry_id), int(batch_index)
    except (TypeError, ValueError) as error:
        raise BadValue(f"Invalid message id: ledger, entry and batch index are numbers: {error}") from None
    if numbers[0] < 0 or numbers[1] < 0:
        raise BadValue(f"Invalid message id: {numbers[0]}:{numbers[1]} is no message")
    return Skipped(Position(numbers[0], numbers[1]), numbers[2])


ROUTES: Final = (
    Route("POST", f"{SUBSCRIPTION}/skipByMessageIds", skip_by_ids, Guards.TOPIC, Action.CONSUME),
)
