"""What the commands ask of the REST API, told by a server that writes requests down."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.application import GROUPS
from magnetar.cli.main import main
from magnetar.protocol.batch import BatchBuilder


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    body: bytes
    content_type: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Platform:
    """A server that answers as it is told, and remembers what it was asked."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)

    def will_answer(self, path: str, status: int, body: Any = None, **headers: str) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = (status, {"Content-Type": "application/json", **named}, content)

    def will_answer_bytes(self, path: str, content: bytes, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = (200, {"Content-Type": "application/octet-stream", **named}, content)

    def run(self, *words: str) -> int:
        return main([*words, "--admin-url", self.url])


@pytest.fixture
def platform() -> Iterator[Platform]:
    told = Platform()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told.asked.append(Asked(self.command, self.path, body, self.headers.get("Content-Type", "")))
            default = (
                (200, {"Content-Type": "application/json"}, b"[]")
                if self.command == "GET"
                else (204, {}, b"")
            )
            status, headers, content = told.answers.get(self.path.partition("?")[0], default)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


POLICY = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        ("tenants create acme -r admin,ops -c east", "PUT", "/admin/v2/tenants/acme", {"adminRoles": ["admin", "ops"], "allowedClusters": ["east"]}),
        ("tenants delete acme --force", "DELETE", "/admin/v2/tenants/acme?force=true", None),
        ("namespaces create public/x --bundles 8", "PUT", "/admin/v2/namespaces/public/x", {"bundles": {"numBundles": 8}}),
        ("namespaces set-retention public/default -t 3h -s 10G", "POST", f"{POLICY}/retention", {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10240}),
        ("namespaces set-retention public/default --time -1 --size -1", "POST", f"{POLICY}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        ("namespaces set-message-ttl public/default -ttl 2m", "POST", f"{POLICY}/messageTTL", 120),
        ("namespaces set-deduplication public/default --enable", "POST", f"{POLICY}/deduplication", True),
        ("namespaces set-deduplication public/default -d", "POST", f"{POLICY}/deduplication", False),
        ("namespaces remove-persistence public/default", "DELETE", f"{POLICY}/persistence", None),
        ("namespaces set-persistence public/default -e 3 -w 3 -a 2 -r 0", "POST", f"{POLICY}/persistence", {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": 0.0}),
        ("namespaces set-backlog-quota public/default -l 2G -p consumer_backlog_eviction", "POST", f"{POLICY}/backlogQuota?backlogQuotaType=destination_storage", {"limitSize": 2**31, "limitTime": -1, "policy": "consumer_backlog_eviction"}),
        ("namespaces set-clusters public/default -c east,west", "POST", f"{POLICY}/replication", ["east", "west"]),
        ("namespaces grant-permission public/default --role r --actions produce,consume", "POST", f"{POLICY}/permissions/r", ["produce", "consume"]),
        ("namespaces unload public/default -b 0x0_0x8", "PUT", f"{POLICY}/0x0_0x8/unload", None),
        ("topics create t", "PUT", TOPIC, None),
        ("topics create persistent://public/default/a%b", "PUT", "/admin/v2/persistent/public/default/a%25b", None),
        ("topics create-partitioned-topic t -p 4", "PUT", f"{TOPIC}/partitions", 4),
        ("topics create-partitioned-topic t --partitions 4 -m k=v", "PUT", f"{TOPIC}/partitions", {"partitions": 4, "properties": {"k": "v"}}),
        ("topics delete non-persistent://public/default/t -f", "DELETE", "/admin/v2/non-persistent/public/default/t?force=true", None),
        ("topics create-subscription t -s sub -m earliest", "PUT", f"{TOPIC}/subscription/sub", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}),
        ("topics skip t -s sub -n 5", "POST", f"{TOPIC}/subscription/sub/skip/5", None),
        ("topics clear-backlog t -s a/b", "POST", f"{TOPIC}/subscription/a%2Fb/skip_all", None),
        ("topics expire-messages t -s sub -t 10m", "POST", f"{TOPIC}/subscription/sub/expireMessages/600", None),
        ("topics reset-cursor t -s sub -m 3:7", "POST", f"{TOPIC}/subscription/sub/resetcursor", {"ledgerId": 3, "entryId": 7, "partitionIndex": -1, "isExcluded": False}),
        ("topics set-message-ttl t --ttl 60", "POST", f"{TOPIC}/messageTTL?messageTTL=60", None),
        ("topicPolicies set-deduplication t -e", "POST", f"{TOPIC}/deduplicationEnabled", True),
        ("topics set-publish-rate t -m 10", "POST", f"{TOPIC}/publishRate", {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}),
        ("topics get-backlog-size t -m 3:7", "PUT", f"{TOPIC}/backlogSize", {"ledgerId": 3, "entryId": 7, "partitionIndex": -1}),
        ("topics create-missed-partitions t", "POST", f"{TOPIC}/createMissedPartitions", None),
        ("topics terminate t", "POST", f"{TOPIC}/terminate", None),
        ("topics unload t", "PUT", f"{TOPIC}/unload", None),
        ("topics compact t", "PUT", f"{TOPIC}/compaction", None),
        ("clusters create east --url http://e:8080 --broker-url pulsar://e:6650", "PUT", "/admin/v2/clusters/east", {"serviceUrl": "http://e:8080", "brokerServiceUrl": "pulsar://e:6650"}),
        ("brokers update-dynamic-config -c k -v a/b", "POST", "/admin/v2/brokers/configuration/k/a%2Fb", None),
        ("ns-isolation-policy set c p --namespaces a/.*,b/.* --primary x.* --auto-failover-policy-params min_limit=1,usage_threshold=80", "POST", "/admin/v2/clusters/c/namespaceIsolationPolicies/p", {"namespaces": ["a/.*", "b/.*"], "primary": ["x.*"], "secondary": [], "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}}),
        ("ns-isolation-policy delete c p", "DELETE", "/admin/v2/clusters/c/namespaceIsolationPolicies/p", None),
        ("resourcegroups create g --msg-publish-rate 5 --byte-dispatch-rate 7", "PUT", "/admin/v2/resourcegroups/g", {"publishRateInMsgs": 5, "dispatchRateInBytes": 7}),
        ("resourcegroups delete g", "DELETE", "/admin/v2/resourcegroups/g", None),
        ("functions-worker rebalance", "PUT", "/admin/v2/worker/rebalance", None),
        ("functions stop --name f", "POST", "/admin/v3/functions/public/default/f/stop", None),
        ("functions restart --fqfn t/n/f --instance-id 2", "POST", "/admin/v3/functions/t/n/f/2/restart", None),
        ("sinks delete --tenant t --namespace n --name s", "DELETE", "/admin/v3/sinks/t/n/s", None),
    ],
)  # fmt: skip
def test_a_command_is_one_request(platform: Platform, words: str, method: str, path: str, body: Any) -> None:
    assert platform.run(*words.split()) == 0
    (asked,) = platform.asked
    assert (asked.method, asked.path) == (method, path)
    assert (asked.json if asked.body else None) == body


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("tenants list", "/admin/v2/tenants"),
        ("namespaces policies public/default", POLICY),
        ("topics stats t", f"{TOPIC}/stats"),
        ("topics partitioned-stats t --per-partition", f"{TOPIC}/partitioned-stats?perPartition=true"),
        ("topics get-retention t -ap", f"{TOPIC}/retention?applied=true"),
        ("topics list-partitioned-topics public/default", "/admin/v2/persistent/public/default/partitioned"),
        ("topics get-message-id t -d 1970-01-01T00:00:05Z", f"{TOPIC}/messageid/5000"),
        ("schemas get t", "/admin/v2/schemas/public/default/t/schema"),
        ("transactions coordinator-stats -c 3", "/admin/v3/transactions/coordinatorStats?coordinatorId=3"),
        ("transactions transaction-metadata -m 3 -l 4", "/admin/v3/transactions/transactionMetadata/3/4"),
        ("transactions slow-transactions -t 1m", "/admin/v3/transactions/slowTransactions/60000"),
        (
            "transactions pending-ack-stats -t t -s a/b",
            "/admin/v3/transactions/pendingAckStats/public/default/t/a%2Fb",
        ),
        ("functions status --name f", "/admin/v3/functions/public/default/f/status"),
        ("functions stats --name f --instance-id 0", "/admin/v3/functions/public/default/f/0/stats"),
        ("sources available-sources", "/admin/v3/sources/builtinsources"),
        ("brokers leader-broker", "/admin/v2/brokers/leaderBroker"),
        ("broker-stats monitoring-metrics", "/admin/v2/broker-stats/metrics"),
        ("broker-stats topics", "/admin/v2/broker-stats/topics"),
        ("broker-stats load-report", "/admin/v2/broker-stats/load-report"),
        ("broker-stats allocator-stats ml-cache", "/admin/v2/broker-stats/allocator-stats/ml-cache"),
        ("broker-stats mbeans", "/admin/v2/broker-stats/mbeans"),
        ("functions-worker get-cluster", "/admin/v2/worker/cluster"),
        ("functions-worker get-cluster-leader", "/admin/v2/worker/cluster/leader"),
        ("functions-worker get-function-assignments", "/admin/v2/worker/assignments"),
        ("functions-worker function-stats", "/admin/v2/worker-stats/functionsmetrics"),
        ("functions-worker monitoring-metrics", "/admin/v2/worker-stats/metrics"),
        ("ns-isolation-policy brokers c", "/admin/v2/clusters/c/namespaceIsolationPolicies/brokers"),
        ("ns-isolation-policy get c p", "/admin/v2/clusters/c/namespaceIsolationPolicies/p"),
        ("resourcegroups list", "/admin/v2/resourcegroups"),
        ("resourcegroups get g", "/admin/v2/resourcegroups/g"),
    ],
)
def test_a_question_is_one_get(platform: Platform, words: str, path: str) -> None:
    assert platform.run(*words.split()) == 0
    assert [(asked.method, asked.path) for asked in platform.asked] == [("GET", path)]


def test_names_come_one_a_line_and_objects_as_json(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.will_answer("/admin/v2/tenants", 200, ["a", "b"])
    platform.will_answer("/admin/v2/tenants/a", 200, {"adminRoles": []})
    platform.run("tenants", "list")
    platform.run("tenants", "get", "a")
    assert capsys.readouterr().out == 'a\nb\n{\n  "adminRoles": []\n}\n'


def test_the_platforms_reason_is_the_error(platform: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    platform.will_answer("/admin/v2/tenants/x", 404, {"reason": "Tenant does not exist"})
    assert platform.run("tenants", "get", "x") == 1
    captured = capsys.readouterr()
    assert captured.err == "magnetar: Tenant does not exist (404)\n"
    assert captured.out == ""


def test_a_redirect_is_followed_with_its_body(platform: Platform) -> None:
    platform.will_answer(f"{TOPIC}/partitions", 307, None, Location=f"{platform.url}/elsewhere")
    assert platform.run("topics", "create-partitioned-topic", "t", "-p", "3") == 0
    assert [(asked.method, asked.json) for asked in platform.asked] == [("PUT", 3), ("PUT", 3)]
    assert platform.asked[1].path == "/elsewhere"


def test_a_platform_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tenants", "list", "--admin-url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("namespaces set-retention public/default -t soon -s 1", "'soon' is not a time"),
        ("namespaces set-deduplication public/default", "say either --enable or --disable"),
        ("namespaces policies nonsense", "nonsense"),
        ("topics reset-cursor t -s s", "say either --time or --message-id"),
        ("topics create-subscription t -s s -m x", "not a message id"),
        ("topics get-message-id t -d noon", "--datetime: 'noon' is not a moment"),
        ("consume t -s s -m sometimes", "--subscription-mode: expected Durable or NonDurable"),
        ("functions stop", "Say --name"),
        ("functions create --py missing.py --classname a.B", "there is no file missing.py"),
        ("functions create --inputs a", "Say --name"),
        ("functions create --name f --user-config [1]", "expected key=value"),
        ("functions create --name f --parallelism many", "--parallelism: expected a whole number"),
        ("functions get --fqfn a/b", "expected tenant/namespace/name"),
    ],
)
def test_what_makes_no_sense_never_leaves_the_machine(
    platform: Platform, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert platform.run(*words.split()) == 1
    assert message in capsys.readouterr().err
    assert platform.asked == []


def test_a_function_is_registered_with_its_package(platform: Platform, tmp_path: Path) -> None:
    package = tmp_path / "shout.py"
    package.write_text("def process(input): return input.upper()\n")
    words = ["functions", "create", "--py", str(package), "--classname", "shout.Shout", "--inputs", "a,b"]
    words += [
        "--output",
        "c",
        "--user-config",
        '{"loud": true}',
        "--processing-guarantees",
        "EFFECTIVELY_ONCE",
    ]
    words += ["--parallelism", "2", "--cpu", "0.5", "--window-length-count", "3", "--auto-ack", "true"]
    assert platform.run(*words) == 0
    (asked,) = platform.asked
    assert (asked.method, asked.path) == ("POST", "/admin/v3/functions/public/default/Shout")
    assert asked.content_type.startswith("multipart/form-data; boundary=")
    assert config_in(asked, "functionConfig") == {
        "tenant": "public",
        "namespace": "default",
        "name": "Shout",
        "className": "shout.Shout",
        "parallelism": 2,
        "processingGuarantees": "EFFECTIVELY_ONCE",
        "resources": {"cpu": 0.5},
        "inputs": ["a", "b"],
        "autoAck": True,
        "output": "c",
        "userConfig": {"loud": True},
        "windowConfig": {"windowLengthCount": 3},
        "py": "shout.py",
    }
    assert b'name="data"; filename="shout.py"' in asked.body
    assert package.read_bytes() in asked.body


def test_a_config_file_is_read_and_options_win_over_it(platform: Platform, tmp_path: Path) -> None:
    file = tmp_path / "sink.yaml"
    file.write_text(
        "tenant: acme\nnamespace: prod\nname: store\narchive: builtin://sql\ninputs: [a]\n"
        "configs:\n  url: sqlite:///x\n"
    )
    assert platform.run("sinks", "update", "--sink-config-file", str(file), "--inputs", "b") == 0
    (asked,) = platform.asked
    assert (asked.method, asked.path) == ("PUT", "/admin/v3/sinks/acme/prod/store")
    config = config_in(asked, "sinkConfig")
    assert (config["inputs"], config["configs"]) == (["b"], {"url": "sqlite:///x"})
    assert b'name="url"\r\nContent-Type: text/plain\r\n\r\nbuiltin://sql\r\n' in asked.body
    assert b'name="data"' not in asked.body


def config_in(asked: Asked, part: str) -> Any:
    _, _, rest = asked.body.partition(f'name="{part}"\r\nContent-Type: application/json\r\n\r\n'.encode())
    return json.loads(rest.partition(b"\r\n--")[0])


def batch_of(*payloads: bytes) -> bytes:
    batch = BatchBuilder()
    for sequence_id, payload in enumerate(payloads, 7):
        batch.add(payload, sequence_id)
    return batch.payload()


def test_peeking_shows_the_messages_of_a_batch_and_as_many_as_are_asked_for(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three in the first entry, one in the second, no third."""
    at = f"{TOPIC}/subscription/s/position"
    platform.will_answer_bytes(
        f"{at}/1", batch_of(b"a", b"b", b"c"), X_Pulsar_Message_ID="3:0", X_Pulsar_num_batch_message="3"
    )
    platform.will_answer_bytes(f"{at}/2", b"d", X_Pulsar_Message_ID="3:1")
    platform.will_answer(f"{at}/3", 404, {"reason": "none"})
    assert platform.run("topics", "peek-messages", "t", "-s", "s", "-n", "2") == 0
    assert capsys.readouterr().out == (
        "Batch Message ID: 3:0:0\nsequence-id: 7\na\n\nBatch Message ID: 3:0:1\nsequence-id: 8\nb\n\n"
    )
    assert platform.run("topics", "peek-messages", "t", "-s", "s", "-n", "9") == 0
    assert capsys.readouterr().out.endswith("sequence-id: 9\nc\n\nMessage ID: 3:1\nd\n\n")


def test_a_batch_that_cannot_be_opened_is_shown_as_it_lies_there(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    platform.will_answer_bytes(
        f"{TOPIC}/ledger/3/entry/0", b"secret", X_Pulsar_Message_ID="3:0", X_Pulsar_num_batch_message="2"
    )
    assert platform.run("topics", "get-message-by-id", "t", "-l", "3", "-e", "0") == 0
    assert capsys.readouterr().out == "Message ID: 3:0\nsecret\n\n"


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_explains_itself(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group, "--help"]) == 0
    assert "Commands" in capsys.readouterr().out


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for word in (*GROUPS, "produce", "consume", "standalone", "broker", "bookie", "version"):
        assert word in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("magnetar 0.")
