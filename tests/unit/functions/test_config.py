"""Configs: Pulsar's JSON in and out, wrong values named, rules between fields, and what an update may change."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.functions.config import FunctionConfig, Guarantee, SinkConfig, SourceConfig, merge_update
from magnetar.functions.errors import ConfigError

FUNCTION = {"className": "join.Join", "inputs": ["in"], "output": "out"}


def function(**changes: Any) -> FunctionConfig:
    config = FunctionConfig.from_dict({**FUNCTION, **changes})
    config.validate()
    return config


def test_a_config_comes_back_as_it_went_in() -> None:
    data = {
        **FUNCTION,
        "tenant": "t",
        "namespace": "n",
        "name": "f",
        "processingGuarantees": "EFFECTIVELY_ONCE",
        "inputSpecs": {"other": {"schemaType": "string", "regexPattern": False, "poolMessages": False}},
        "userConfig": {"limit": 7, "nested": {"a": [1, 2.5, None]}},
        "resources": {"cpu": 0.5, "ram": 100, "disk": 200},
        "producerConfig": {"compressionType": "ZSTD"},
        "windowConfig": {"windowLengthCount": 5},
        "customRuntimeOptions": '{"engine": "spark"}',
        "maxMessageRetries": 0,
        "deadLetterTopic": "dead",
        "terminateOutput": True,
    }
    back = FunctionConfig.from_dict(data).to_dict()
    assert data.items() <= back.items()
    assert FunctionConfig.from_dict(back) == FunctionConfig.from_dict(data)
    assert isinstance(back["userConfig"]["limit"], int)


def test_the_path_wins_over_the_body_and_the_name_is_inferred() -> None:
    config = FunctionConfig.from_dict(FUNCTION, tenant="a", namespace="b")
    assert config.fqfn == "a/b/Join"
    assert FunctionConfig.from_dict({**FUNCTION, "name": "x"}, name="y").name == "y"


def test_unknown_keys_are_let_through_and_other_spellings_understood() -> None:
    config = function(somethingNew=1, inputSpecs={"persistent://t/n/a.*": {"isRegexPattern": True}})
    assert config.resolved_inputs()["persistent://t/n/a.*"].regex_pattern
    assert function(parallelism="2", autoAck="true").parallelism == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parallelism": "four"}, "parallelism"),
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 1.5}, "parallelism"),
        ({"autoAck": "perhaps"}, "autoAck"),
        ({"inputs": {"a": 1}}, "inputs"),
        ({"inputs": [1]}, "inputs"),
        ({"output": 7}, "output"),
        ({"userConfig": [1]}, "userConfig"),
        ({"processingGuarantees": "EXACTLY_ONCE"}, "processingGuarantees"),
        ({"subscriptionPosition": "Middle"}, "subscriptionPosition"),
        ({"resources": {"cpu": 0}}, "resources.cpu"),
        ({"resources": {"ram": "lots"}}, "resources.ram"),
        ({"inputSpecs": {"in": {"receiverQueueSize": -1}}}, "inputSpecs[in].receiverQueueSize"),
        ({"windowConfig": {"windowLengthCount": "x"}}, "windowConfig.windowLengthCount"),
        ({"timeoutMs": 0}, "timeoutMs"),
        ({"parallelism": float("nan")}, "parallelism"),
        ({"parallelism": True}, "parallelism"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        FunctionConfig.from_dict({**FUNCTION, **changes})
    assert error.value.field == field


def test_only_an_object_is_a_config() -> None:
    wrong: Any
    for wrong in ([], "text", 1, None):
        with pytest.raises(ConfigError):
            FunctionConfig.parse("", wrong)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"className": "", "name": "f"}, "className"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["no/slash"]}, "inputs"),
        ({"inputs": ["http://a/b/c"]}, "inputs"),
        ({"topicsPattern": "persistent://a/b/(["}, "topicsPattern"),
        ({"output": "persistent://public/default/in"}, "output"),
        ({"output": "in-partition-0"}, "output"),
        ({"inputs": [], "topicsPattern": "persistent://public/default/o.*"}, "output"),
        ({"logTopic": "in"}, "logTopic"),
        ({"runtime": "JAVA"}, "runtime"),
        ({"runtime": "GO"}, "runtime"),
        ({"retainOrdering": True, "retainKeyOrdering": True}, "retainKeyOrdering"),
        ({"retainKeyOrdering": True, "processingGuarantees": "EFFECTIVELY_ONCE"}, "retainKeyOrdering"),
        ({"processingGuarantees": "ATMOST_ONCE", "autoAck": False}, "autoAck"),
        ({"processingGuarantees": "ATMOST_ONCE", "maxMessageRetries": 2}, "maxMessageRetries"),
        ({"deadLetterTopic": "dead"}, "maxMessageRetries"),
        ({"processingGuarantees": "EFFECTIVELY_ONCE", "maxMessageRetries": 1}, "deadLetterTopic"),
        ({"processingGuarantees": "EFFECTIVELY_ONCE", "inputs": ["non-persistent://a/b/c"]}, "inputs"),
        ({"deadLetterTopic": "in", "maxMessageRetries": 1}, "deadLetterTopic"),
        ({"timeoutMs": 1000, "processingGuarantees": "EFFECTIVELY_ONCE"}, "timeoutMs"),
        ({"terminateOutput": True, "processingGuarantees": "MANUAL"}, "terminateOutput"),
        ({"processingGuarantees": "EFFECTIVELY_ONCE", "output": "non-persistent://a/b/c"}, "output"),
        ({"windowConfig": {"windowLengthCount": 1}}, "windowConfig"),
        ({"windowConfig": {}, "runtime": "SPARK"}, "windowConfig"),
        (
            {"windowConfig": {"windowLengthCount": 1, "windowLengthDurationMs": 1}, "runtime": "SPARK"},
            "windowConfig",
        ),
        ({"runtime": "SPARK"}, "windowConfig"),
        ({"customSchemaInputs": {"a": "{not json"}}, "customSchemaInputs[a]"),
        ({"outputSchemaType": "json", "outputSerdeClassName": "a.B"}, "outputSerdeClassName"),
        ({"producerConfig": {"cryptoConfig": {"encryptionKeys": ["k"]}}}, "producerConfig.cryptoConfig"),
        (
            {"inputSpecs": {"in": {"cryptoConfig": {"cryptoKeyReaderClassName": "a.B"}}}},
            "inputSpecs[in].cryptoConfig",
        ),
        ({"name": "a/b"}, "name"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        function(**changes)
    assert error.value.field == field


def test_what_apache_refuses_to_python_functions_is_accepted() -> None:
    config = function(processingGuarantees="EFFECTIVELY_ONCE", maxMessageRetries=0, deadLetterTopic="dead")
    assert (config.subscription_type, config.retries) == ("failover", 0)
    assert function(maxMessageRetries=-1).retries is None
    spark = function(
        windowConfig={"windowLengthDurationMs": 1000}, customRuntimeOptions='{"engine": "spark"}'
    )
    assert spark.runs_on_spark


def test_subscriptions_follow_the_order_that_is_asked_for() -> None:
    assert function().subscription_type == "shared"
    assert function(retainOrdering=True).subscription_type == "failover"
    assert function(retainKeyOrdering=True).subscription_type == "key_shared"
    assert function(name="f").subscription == "public/default/f"
    assert function(subName="own").subscription == "own"


def test_inputs_of_all_fields_are_one_table() -> None:
    config = function(
        customSerdeInputs={"b": "serde.PickleSerDe"},
        customSchemaInputs={"c": '{"schemaType": "json"}', "d": "string"},
        inputSpecs={"in": {"schemaType": "string", "serdeClassName": "ignored.Serde"}},
    )
    inputs = config.resolved_inputs()
    assert list(inputs) == ["in", "b", "c", "d"]
    assert inputs["in"].schema_type == "string"
    assert inputs["in"].serde_class_name is None
    assert (inputs["b"].serde_class_name, inputs["c"].schema_type, inputs["d"].schema_type) == (
        "serde.PickleSerDe",
        "json",
        "string",
    )


def test_sources_and_sinks_have_their_rules_too() -> None:
    source = SourceConfig.from_dict(
        {"name": "s", "sourceType": "file", "topicName": "t", "configs": {"terminate": True}}
    )
    source.validate()
    assert (source.archive, source.terminates, source.output) == ("builtin://file", True, "t")
    sink = SinkConfig.from_dict(
        {"name": "s", "archive": "builtin://sql", "inputs": ["a"], "maxMessageRetries": 2}
    )
    sink.validate()
    assert (sink.retries, sink.subscription) == (2, "public/default/s")
    for config, field in (
        (SourceConfig.from_dict({"name": "s", "archive": "builtin://file"}), "topicName"),
        (SourceConfig.from_dict({"name": "s", "topicName": "t"}), "className"),
        (SinkConfig.from_dict({"name": "s", "archive": "builtin://sql"}), "inputs"),
        (
            SinkConfig.from_dict(
                {"name": "s", "archive": "builtin://sql", "inputs": ["a"], "deadLetterTopic": "d"}
            ),
            "maxMessageRetries",
        ),
        (SourceConfig.from_dict({"archive": "builtin://file", "topicName": "t"}), "name"),
    ):
        with pytest.raises(ConfigError) as error:
            config.validate()
        assert error.value.field == field


def test_an_update_changes_what_it_names_and_nothing_else() -> None:
    old = function(userConfig={"a": 1}, parallelism=2, logTopic="log")
    new = merge_update(old, {"userConfig": {"b": 2}, "resources": {"cpu": 2}, "inputs": ["in"]})
    assert new.user_config == {"b": 2}
    assert (new.resources.cpu, new.resources.ram) == (2.0, old.resources.ram)
    assert (new.parallelism, new.log_topic, new.inputs) == (2, "log", ("in",))
    assert merge_update(old, {"parallelism": 2, "inputs": ["in"], "logTopic": ""}) == old


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"processingGuarantees": "ATMOST_ONCE"}, "processingGuarantees"),
        ({"retainOrdering": True}, "retainOrdering"),
        ({"outputSchemaType": "json"}, "outputSchemaType"),
        ({"subName": "other"}, "subName"),
        ({"inputs": ["another"]}, "inputs"),
        ({"inputSpecs": {"in": {"regexPattern": True}}}, "inputSpecs"),
        ({"parallelism": "x"}, "parallelism"),
    ],
)
def test_an_update_cannot_change_everything(patch: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        merge_update(function(), patch)
    assert error.value.field == field


def test_how_an_input_is_read_may_change() -> None:
    new = merge_update(function(), {"inputSpecs": {"in": {"schemaType": "json"}}})
    assert new.resolved_inputs()["in"].schema_type == "json"
    assert new.processing_guarantees is Guarantee.ATLEAST_ONCE
