"""Functions, sources and sinks on a real broker: what they promise besides their guarantees."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from magnetar.instance import instance_control_pb2 as control

pytestmark = pytest.mark.integration


def status_of(port: int, method: str = "GetFunctionStatus", answer: Any = control.FunctionStatus) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/proto.InstanceControl/{method}",
            request_serializer=Empty.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(Empty(), timeout=10)


def test_everything_a_context_offers(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    source = """
from pulsar import Function, SerDe

class Talk(Function):
    def process(self, input, context):
        context.get_logger().info("saw %s", input)
        context.record_metric("seen", 2)
        context.publish("talk-side", "side " + input, properties={"a": "b"}, message_conf={"partition_key": "pk"})
        return json(context, input)

def json(context, input):
    import json
    return json.dumps({
        "id": str(context.get_message_id()),
        "key": context.get_message_key(),
        "properties": context.get_message_properties(),
        "topic": context.get_current_message_topic_name(),
        "config": context.get_user_config_value("greeting"),
        "map": context.get_user_config_map(),
        "secret": context.get_secret("password"),
        "name": context.get_function_name(),
        "instance": context.get_instance_id(),
        "inputs": context.get_input_topics(),
        "output": context.get_output_topic(),
    })
"""
    for topic in ("talk-in", "talk-out", "talk-side", "talk-log"):
        platform.make_topic(topic)
    config = {
        "name": "talk",
        "className": "talk.Talk",
        "inputs": ["talk-in"],
        "output": "talk-out",
        "logTopic": "talk-log",
        "subscriptionPosition": "Earliest",
        "userConfig": {"greeting": 7},
        "secrets": {"password": "hidden"},
    }
    platform.publish("talk-in", [b"hello"], batch=1, key="k")
    host = run_host("function", config, source)
    port = int(host.said("ready")["control"]["0"])
    until(lambda: len(platform.read("talk-out")) == 1, "there is a result")
    (result,) = platform.read("talk-out")
    told = json.loads(result.data())
    assert told["key"] == "k"
    assert told["config"] == 7
    assert told["map"] == {"greeting": 7}
    assert told["secret"] == "hidden"
    assert told["topic"] == "persistent://public/default/talk-in"
    assert told["inputs"] == ["talk-in"]
    assert told["output"] == "persistent://public/default/talk-out"
    assert result.partition_key() == "k"
    (side,) = platform.read("talk-side")
    assert (side.data(), side.partition_key(), side.properties()) == (b"side hello", "pk", {"a": "b"})
    until(lambda: platform.read("talk-log"), "there is a log line")
    (line,) = platform.read("talk-log")
    assert line.data() == b"saw hello"
    assert line.properties() == {"loglevel": "INFO", "fqn": "public/default/talk", "instance": "0"}
    status = status_of(port)
    assert status.running
    assert (status.numReceived, status.numSuccessfullyProcessed, status.workerId) == (1, 1, "test")
    metrics = status_of(port, "GetMetrics", control.MetricsData)
    assert dict(metrics.userMetrics) == {"user_metric_seen_sum": 2.0, "user_metric_seen_count": 1.0}
    assert metrics.receivedTotal_1min == 1
    assert status_of(port, "HealthCheck", control.HealthCheckResult).success


def test_a_failing_message_is_tried_again_and_then_dead_lettered_while_others_pass(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    source = "attempts = {}\n\ndef process(input):\n    attempts[input] = attempts.get(input, 0) + 1\n"
    source += "    if input == 'never': raise ValueError('no')\n"
    source += "    if input == 'later' and attempts[input] < 3: raise OSError('not yet')\n"
    source += "    return f'{input} {attempts[input]}'\n"
    platform.make_topic("again-in")
    platform.make_topic("again-out")
    config = {
        "name": "again",
        "className": "again",
        "inputs": ["again-in"],
        "output": "again-out",
        "subscriptionPosition": "Earliest",
        "maxMessageRetries": 3,
    }
    platform.publish("again-in", [b"never", b"later", b"fine", b"good"])
    host = run_host("function", config, source)
    port = int(host.said("ready")["control"]["0"])
    until(lambda: platform.backlog("again-in", "public/default/again") == 0, "everything is acknowledged")
    assert sorted(m.data() for m in platform.read("again-out")) == [b"fine 1", b"good 1", b"later 3"]
    (letter,) = platform.read("again-in-again-DLQ")
    assert letter.data() == b"never"
    status = status_of(port)
    assert status.numUserExceptions == 4 + 2
    assert status.numDeadLettered == 1
    assert "ValueError: no" in status.latestUserExceptions[-1].exceptionString


def test_an_ordered_function_keeps_order_while_it_tries_again(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    source = "tried = set()\n\ndef process(input):\n    if input % 10 == 4 and input not in tried:\n"
    source += "        tried.add(input)\n        raise OSError('not yet')\n    return input\n"
    platform.make_topic("order-in")
    platform.make_topic("order-out", deduplicated=True)
    config = {
        "name": "order",
        "className": "order",
        "inputs": ["order-in"],
        "output": "order-out",
        "subscriptionPosition": "Earliest",
        "processingGuarantees": "EFFECTIVELY_ONCE",
    }
    platform.publish("order-in", [b"%d" % n for n in range(60)], batch=7)
    run_host("function", config, source).said("ready")
    until(lambda: platform.backlog("order-in", "public/default/order") == 0, "everything is acknowledged")
    assert [int(m.data()) for m in platform.read("order-out")] == list(range(60))


def test_a_message_that_kills_its_process_is_found_and_dead_lettered(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    source = (
        "import ctypes\n\ndef process(input):\n    if input == 13: ctypes.string_at(0)\n    return input\n"
    )
    platform.make_topic("deadly-in")
    platform.make_topic("deadly-out", deduplicated=True)
    platform.make_topic("deadly-dead", deduplicated=True)
    config = {
        "name": "deadly",
        "className": "deadly",
        "inputs": ["deadly-in"],
        "output": "deadly-out",
        "deadLetterTopic": "deadly-dead",
        "maxMessageRetries": 0,
        "subscriptionPosition": "Earliest",
        "processingGuarantees": "EFFECTIVELY_ONCE",
    }
    platform.publish("deadly-in", [b"%d" % n for n in range(30)], batch=20)
    run_host("function", config, source).said("ready")
    until(lambda: platform.backlog("deadly-in", "public/default/deadly") == 0, "everything is acknowledged")
    assert [int(m.data()) for m in platform.read("deadly-out")] == [n for n in range(30) if n != 13]
    (letter,) = platform.read("deadly-dead")
    assert letter.data() == b"13"
    assert "SIGSEGV" in letter.properties()["exception"]


def test_publishing_aside_is_refused_where_it_could_not_be_once(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    source = "def process(input, context):\n    context.publish('anywhere', input)\n"
    platform.make_topic("aside-in")
    platform.make_topic("aside-out", deduplicated=True)
    config = {
        "name": "aside",
        "className": "aside",
        "inputs": ["aside-in"],
        "output": "aside-out",
        "subscriptionPosition": "Earliest",
        "processingGuarantees": "EFFECTIVELY_ONCE",
    }
    platform.publish("aside-in", [b"x"])
    port = int(run_host("function", config, source).said("ready")["control"]["0"])
    status = until(lambda: (s := status_of(port)).numUserExceptions and s, "the exception shows")
    assert "context.publish has no place" in status.latestUserExceptions[0].exceptionString


def test_partitions_in_and_out(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    """Keys go where official clients send them, and stay in order."""
    platform.make_topic("parts-in", partitions=3)
    platform.make_topic("parts-out", partitions=2, deduplicated=False)
    platform.call("POST", "persistent/public/default/parts-out/deduplicationEnabled", True)
    config = {
        "name": "parts",
        "className": "parts",
        "inputs": ["parts-in"],
        "output": "parts-out",
        "subscriptionPosition": "Earliest",
        "processingGuarantees": "EFFECTIVELY_ONCE",
    }
    for key in ("a", "b", "c", "d"):
        platform.publish("parts-in", [b"%s %d" % (key.encode(), n) for n in range(50)], batch=9, key=key)
    run_host("function", config, "def process(input):\n    return input\n", instances=(0, 1)).said("ready")
    for partition in range(3):
        until(
            lambda partition=partition: (
                platform.backlog(f"parts-in-partition-{partition}", "public/default/parts") == 0
            ),
            "everything is acknowledged",
        )
    seen: dict[str, list[int]] = {}
    for partition in range(2):
        for message in platform.read(f"parts-out-partition-{partition}"):
            key, number = message.data().decode().split()
            assert message.partition_key() == key
            seen.setdefault(f"{key} in {partition}", []).append(int(number))
    assert len(seen) == 4
    assert all(numbers == list(range(50)) for numbers in seen.values())


def test_from_file_to_table_and_the_end_runs_through(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    rows = 500
    (tmp_path / "rows.csv").write_text("id,name\n" + "".join(f"{n},name {n}\n" for n in range(rows)))
    platform.make_topic("rows", deduplicated=True)
    platform.make_topic("upper", deduplicated=True)
    source = {
        "name": "read",
        "archive": "builtin://file",
        "topicName": "rows",
        "processingGuarantees": "EFFECTIVELY_ONCE",
        "configs": {"path": str(tmp_path / "rows.csv"), "format": "csv", "key": "id", "terminate": True},
    }
    host = run_host("source", source)
    port = int(host.said("ready")["control"]["0"])
    host.said("ended")
    status = status_of(port)
    assert (status.ended, status.numSuccessfullyProcessed) == (True, rows)
    function = {
        "name": "upper",
        "className": "upper",
        "inputs": ["rows"],
        "output": "upper",
        "subscriptionPosition": "Earliest",
        "processingGuarantees": "EFFECTIVELY_ONCE",
        "terminateOutput": True,
    }
    code = "import json\n\ndef process(input):\n    row = json.loads(input)\n"
    code += "    return json.dumps({**row, 'name': row['name'].upper()})\n"
    run_host("function", function, code).said("ended")
    sink = {
        "name": "store",
        "archive": "builtin://sql",
        "inputs": ["upper"],
        "sourceSubscriptionPosition": "Earliest",
        "configs": {"url": f"sqlite:///{tmp_path}/db.sqlite", "table": "names", "key": "id"},
    }
    host = run_host("sink", sink)
    port = int(host.said("ready")["control"]["0"])
    host.said("ended")
    assert status_of(port).numSuccessfullyProcessed == rows
    connection = sqlite3.connect(tmp_path / "db.sqlite")
    stored = connection.execute("SELECT COUNT(*), COUNT(DISTINCT id), MIN(name) FROM names").fetchone()
    connection.close()
    assert stored == (rows, rows, "NAME 0")


def test_a_source_killed_at_any_point_neither_loses_nor_repeats(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    rows = 30_000
    (tmp_path / "many.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(rows)))
    platform.make_topic("many", deduplicated=True)
    source = {
        "name": "many",
        "archive": "builtin://file",
        "topicName": "many",
        "configs": {"path": str(tmp_path / "many.csv"), "format": "csv"},
    }
    for crash_point in ("instance.before_publish:3", "instance.after_publish:2", "instance.before_publish:1"):
        assert run_host("source", source, crash_point=crash_point).died() == -9
    run_host("source", source).said("ended")
    assert [int(json.loads(m.data())["id"]) for m in platform.read("many")] == list(range(rows))


@pytest.mark.parametrize(
    ("config", "source", "reason"),
    [
        (
            {"className": "gone.Missing"},
            "class Present:\n    def process(self, i, c): ...\n",
            "has no class 'Missing'",
        ),
        (
            {"className": "broken"},
            "import no_such_module\n\ndef process(input): ...\n",
            "No module named 'no_such_module'",
        ),
        (
            {"className": "x", "parallelism": "many"},
            "def process(input): ...\n",
            "parallelism: must be a whole number",
        ),
        ({"className": "x", "inputs": []}, "def process(input): ...\n", "at least one input topic"),
        (
            {"className": "x", "outputSchemaType": "avro"},
            "def process(input): ...\n",
            "schema 'avro' is not supported",
        ),
    ],
)
def test_what_cannot_work_says_so_and_exits_for_good(
    config: dict[str, Any], source: str, reason: str, run_host: Callable[..., Any], tmp_path: Path
) -> None:
    host = run_host("function", {"name": "x", "inputs": ["x-in"], "output": "x-out", **config}, source)
    assert host.died() == 78
    last_line = (tmp_path / "host.log").read_text().strip().splitlines()[-1]
    assert reason in last_line


def test_effectively_once_insists_on_deduplication(
    platform: Any, run_host: Callable[..., Any], until: Callable[..., Any], tmp_path: Path
) -> None:
    platform.make_topic("plain-in")
    platform.make_topic("plain-out")
    config = {
        "name": "plain",
        "className": "plain",
        "inputs": ["plain-in"],
        "output": "plain-out",
        "processingGuarantees": "EFFECTIVELY_ONCE",
    }
    run_host("function", config, "def process(input):\n    return input\n")
    told = "deduplication of 'plain-out' is"
    until(lambda: told in (tmp_path / "host.log").read_text(), "the reason is in the log")


@pytest.mark.parametrize("fate", ["os._exit(0)", "os.closerange(3, 200)", "time.sleep(1000)"])
def test_only_the_message_the_process_dies_of_is_dead_lettered(
    fate: str, platform: Any, run_host: Callable[..., Any], until: Callable[..., Any]
) -> None:
    """Not those before it, whose results were waiting to be sent together, nor those behind."""
    name = f"fatal-{fate[3:8].strip('_.')}"
    for topic in (f"{name}-in", f"{name}-out", f"{name}-dead"):
        platform.make_topic(topic)
    config = {
        "name": name,
        "className": "code",
        "inputs": [f"{name}-in"],
        "output": f"{name}-out",
        "subscriptionPosition": "Earliest",
        "maxMessageRetries": 0,
        "deadLetterTopic": f"{name}-dead",
        "customRuntimeOptions": json.dumps({"hangTimeoutMs": 500}),
    }
    source = (
        f"import os, time\n\ndef process(input):\n    if input == 'die':\n        {fate}\n    return input\n"
    )
    platform.publish(f"{name}-in", [b"a", b"b", b"die", b"c"], batch=1)
    run_host("function", config, source)
    until(lambda: len(platform.read(f"{name}-out")) >= 3, "the others pass")
    assert sorted({message.data() for message in platform.read(f"{name}-out")}) == [b"a", b"b", b"c"]
    until(lambda: platform.read(f"{name}-dead"), "the deadly one is given up")
    assert [message.data() for message in platform.read(f"{name}-dead")] == [b"die"]
