"""What a refusal tells machines: documented, and the same for the same refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from magnetar.admin.codes import BY_STATUS, broker_codes, of_status
from magnetar.admin.errors import Refused, refusal
from magnetar.broker.errors import BrokerError, SubscriptionBusy, TopicNotFound
from magnetar.managed_ledger.errors import NoSuchManagedLedger
from magnetar.naming import InvalidTopicName, TopicName
from magnetar.policies.errors import Conflict

DOCUMENT = Path(__file__).parents[3] / "docs" / "admin.md"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TopicNotFound("no such topic"), (404, "topic_not_found")),
        (SubscriptionBusy("consumers"), (412, "subscription_busy")),
        (NoSuchManagedLedger("t"), (404, "topic_not_found")),
        (Conflict("there is one"), (409, "conflict")),
        (Refused(412, "no group"), (412, "precondition_failed")),
        (Refused(503, "off", "transactions_disabled"), (503, "transactions_disabled")),
        (BrokerError("oh"), (500, "broker_error")),
        (ValueError("unexpected"), (500, "internal")),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else None,
)
def test_every_refusal_has_a_code(error: Exception, told: tuple[int, str]) -> None:
    status, reason, code = refusal(error)
    assert (status, code) == told
    assert reason


def test_bad_names_are_told_apart() -> None:
    with pytest.raises(InvalidTopicName) as caught:
        TopicName.parse("://")
    assert refusal(caught.value).code == "invalid_topic_name"


def test_a_status_nobody_thought_of_has_a_code_too() -> None:
    assert of_status(418) == "bad_request"
    assert of_status(599) == "internal"


def test_all_codes_are_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", DOCUMENT.read_text().partition("## Codes")[2]))
    assert not {*BY_STATUS.values(), *broker_codes()} - documented
