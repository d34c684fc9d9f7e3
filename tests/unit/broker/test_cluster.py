"""Several brokers over one metadata store: who serves what, when one of them goes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.cluster.report import BrokerReport, Handover, Load, least_loaded, successors
from magnetar.broker.errors import MetadataFailed
from magnetar.broker.namespaces.bundles import Bundle
from magnetar.broker.ownership import BrokerAddress, Ownership
from magnetar.metadata.errors import StoreUnavailable
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.metadata.store import MUST_NOT_EXIST
from magnetar.naming import NamespaceName, TopicName
from magnetar.protocol.pulsar_pb2 import CommandLookupTopicResponse
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.leased_store import LeasedStore
from tests.unit.broker.raw_client import RawClient, until

TOPIC = "persistent://public/default/shared-out"
NAME = TopicName.parse(TOPIC)
BUNDLE = Bundle(NamespaceName("public", "default"), 0, 0xFFFF_FFFF)


def report(name: str, *, draining: bool = False, bundles: int = 0, topics: int = 0) -> BrokerReport:
    return BrokerReport(
        BrokerAddress(name, f"pulsar://{name}:1", f"http://{name}:2", f"{name}-life"),
        Load(topics=topics),
        {f"t/n/0x{number:08x}_0x{number + 1:08x}": () for number in range(bundles)},
        draining=draining,
    )


def test_a_report_is_read_as_it_was_written() -> None:
    said = BrokerReport(
        BrokerAddress("a", "pulsar://a:1", "http://a:2", "x"),
        Load(0.5, 10.0, 2000.0, 3),
        {str(BUNDLE): (TOPIC,)},
        {str(BUNDLE): Handover("b", (TOPIC,), 7)},
        draining=True,
    )
    assert BrokerReport.decode(said.encode()) == said
    assert Bundle.parse(str(BUNDLE)) == BUNDLE
    with pytest.raises(MetadataFailed, match="newer"):
        BrokerReport.decode(b'{"version": 2}')
    with pytest.raises(MetadataFailed, match="cannot be read"):
        BrokerReport.decode(b"[]")


def test_a_report_of_very_many_topics_still_fits() -> None:
    topics = tuple(f"persistent://public/default/topic-{number:060d}" for number in range(20_000))
    value = BrokerReport(report("a").address, bundles={str(BUNDLE): topics}).encode()
    assert len(value) < 1_000_000
    assert 0 < len(BrokerReport.decode(value).bundles[str(BUNDLE)]) < len(topics)


def test_orphans_are_divided_by_load_and_everyone_divides_them_alike() -> None:
    busy, idle, leaving = report("a", bundles=4), report("b"), report("c", draining=True)
    orphans = {f"orphan-{number}": () for number in range(6)}
    one = successors(orphans, [busy, idle, leaving])
    other = successors(dict(reversed(orphans.items())), [leaving, idle, busy])
    assert one == other
    assert sorted(taker.broker_id for taker in one.values()) == ["a", "b", "b", "b", "b", "b"]
    assert [each.broker_id for each in least_loaded([busy, idle, leaving])] == ["b", "a"]
    assert successors(orphans, [leaving]) == {}


class Two:
    """Two brokers, each with its own session."""

    def __init__(self, one: Broker, other: Broker, stores: tuple[LeasedStore, LeasedStore]) -> None:
        self.one = one
        self.other = other
        self.stores = stores

    async def die(self) -> None:
        """The first one's process is gone: its sockets at once, its session only with `expire`."""
        one = self.one
        server = one._server
        assert server is not None
        server.close()
        one.ownership.closing = True
        assert one.neighbourhood._reporting is not None
        one.neighbourhood._reporting.cancel()
        for connection in list(one.connections):
            connection.abort("killed")

    def expire(self) -> None:
        self.stores[0].session._end_session()


@pytest.fixture
async def two(start_broker: StartBroker) -> Two:
    ensemble = MemoryEnsemble()
    stores = (LeasedStore(ensemble), LeasedStore(ensemble))
    settings = {"lookup_wait_s": 3.0, "load_report_interval_s": 0.02}
    one = await start_broker(store=stores[0], **settings)
    other = await start_broker(store=stores[1], **settings)
    await until(lambda: bool(one.neighbourhood.members.others) and bool(other.neighbourhood.members.others))
    return Two(one, other, stores)


async def owned_by(broker: Broker, connect: Connect) -> RawClient:
    """A client that produces and consumes at `broker`."""
    assert (await broker.lookup(NAME)).here
    client: RawClient = await connect(to=broker)
    await client.subscribe(TOPIC, permits=10)
    await client.produce(TOPIC)
    return client


async def told(two: Two) -> None:
    """The second broker knows which topics of the first have clients."""
    members = two.other.neighbourhood.members
    await until(lambda: any(TOPIC in tops for each in members.others for tops in each.bundles.values()))


async def test_a_lookup_of_a_dead_brokers_topic_waits_for_its_successor(two: Two, connect: Connect) -> None:
    await owned_by(two.one, connect)
    client: RawClient = await connect(to=two.other)
    client.say("lookupTopic", topic=TOPIC, request_id=1)
    answer = await client.expect("lookupTopicResponse")
    assert (answer.response, answer.brokerServiceUrl) == (
        CommandLookupTopicResponse.Redirect,
        two.one.service_url,
    )
    await two.die()
    await until(lambda: not two.one.connections)
    client.say("lookupTopic", topic=TOPIC, request_id=2)
    await client.hears_nothing("lookupTopicResponse")
    two.expire()
    answer = await client.expect("lookupTopicResponse")
    assert (answer.request_id, answer.response) == (2, CommandLookupTopicResponse.Connect)
    assert answer.brokerServiceUrl == two.other.service_url


async def test_a_dead_brokers_topics_are_opened_without_anyone_asking(two: Two, connect: Connect) -> None:
    await owned_by(two.one, connect)
    await told(two)
    await two.die()
    two.expire()
    await until(lambda: two.other.topics.find(NAME) is not None)
    assert two.other.ownership.holds(await two.other.topics.bundle(NAME))


async def test_a_bundle_that_nobody_serves_falls_to_the_least_loaded(two: Two, connect: Connect) -> None:
    for number in range(4):
        bundle = (await two.one.topics.bundles(NamespaceName("public", "default")))[number]
        if not bundle.holds(0) and bundle != await two.one.topics.bundle(NAME):
            await two.one.ownership.require(bundle)
    for broker in (two.one, two.other):  # What processor time a test takes must not decide.
        assert broker.neighbourhood._reporting is not None
        broker.neighbourhood._reporting.cancel()
        await asyncio.wait((broker.neighbourhood._reporting,))
        broker.neighbourhood._load = Load()
        await broker.neighbourhood.members.publish()
    await until(
        lambda: all(each.bundles and each.load == Load() for each in two.other.neighbourhood.members.others)
    )
    await until(lambda: all(each.load == Load() for each in two.one.neighbourhood.members.others))
    assert not (await two.one.lookup(NAME, take=False)).here
    assert (await two.other.lookup(NAME, take=False)).here
    assert not (await two.one.lookup(NAME)).here


async def test_a_broker_that_stops_sends_its_clients_to_the_next_owner(two: Two, connect: Connect) -> None:
    client = await owned_by(two.one, connect)
    await told(two)
    stopping = asyncio.get_running_loop().create_task(two.one.stop())
    closed = await client.expect("close_producer")
    assert closed.assignedBrokerServiceUrl == two.other.service_url
    assert (await client.expect("close_consumer")).assignedBrokerServiceUrl == two.other.service_url
    there: RawClient = await connect(to=two.other)
    assert await there.produce(TOPIC)
    await stopping
    assert two.other.ownership.holds(await two.other.topics.bundle(NAME))
    assert two.other.topics.find(NAME) is not None


async def test_a_bundle_can_be_given_to_a_certain_broker(two: Two, connect: Connect) -> None:
    await owned_by(two.one, connect)
    bundle = await two.one.topics.bundle(NAME)
    (to,) = two.one.neighbourhood.members.others
    await two.one.unload_bundle(bundle, to)
    await until(lambda: two.other.ownership.holds(bundle))
    await until(lambda: two.other.topics.find(NAME) is not None)
    found = await two.one.lookup(NAME)
    assert (found.here, found.broker_url) == (False, two.other.service_url)


async def test_a_bundle_can_go_back_and_forth(two: Two, connect: Connect) -> None:
    await owned_by(two.one, connect)
    bundle = await two.one.topics.bundle(NAME)
    here, there = two.one, two.other
    for _ in range(4):
        (to,) = here.neighbourhood.members.others
        await here.unload_bundle(bundle, to)
        await until(lambda there=there: there.ownership.holds(bundle))  # type: ignore[misc]
        here, there = there, here


async def test_a_broker_stops_in_order_though_the_store_is_away(
    two: Two, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await owned_by(two.one, connect)

    async def unavailable(*_: object, **__: object) -> int:
        raise StoreUnavailable("away")

    monkeypatch.setattr(two.stores[0], "put", unavailable, raising=False)
    monkeypatch.setattr(two.stores[0], "delete", unavailable, raising=False)
    await two.one.stop()
    assert two.one.topics.loaded() == []
    assert two.one.topics._shutting_down, "what is loaded from now on would stay"
    monkeypatch.undo()


async def test_what_was_given_to_an_earlier_life_is_not_waited_for(two: Two) -> None:
    """Else look-ups here would wait for a bundle that its owner keeps."""
    bundle = await two.one.topics.bundle(NAME)
    await two.one.ownership.require(bundle)
    handover = Handover(two.other.ownership.address.broker_id, (), 1)
    record = BrokerReport(report("late").address, handovers={str(bundle): handover})
    await two.stores[0].put("/loadbalance/brokers/late", record.encode())
    await until(lambda: two.other.neighbourhood.members.find("late") is not None)
    async with asyncio.timeout(1.0):
        assert not (await two.other.lookup(NAME)).here


async def test_a_topic_asked_for_while_its_bundle_is_given_away_is_not_loaded_again(
    two: Two, connect: Connect
) -> None:
    """It would be served here without the lock."""
    await owned_by(two.one, connect)
    bundle = await two.one.topics.bundle(NAME)
    two.one.ownership.begin_release(bundle)
    await two.one.topics.unload_bundle(bundle)
    asking = asyncio.get_running_loop().create_task(two.one.topics.get(NAME, create=False))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(asking)
    assert not asking.done()
    assert two.one.topics.find(NAME) is None
    epoch = two.one.ownership.owned[bundle]
    await two.one.ownership.release(bundle)
    await asking
    assert two.one.ownership.owned[bundle] > epoch


async def test_a_report_that_makes_no_sense_hinders_no_other(two: Two) -> None:
    path = "/loadbalance/brokers/odd"
    here = two.one.ownership.address
    nonsense = {"not a bundle": Handover(here.broker_id)}
    await two.stores[1].put(path, BrokerReport(report("odd").address, handovers=nonsense).encode())
    await until(lambda: two.one.neighbourhood.members.find("odd") is not None)
    await two.stores[1].put(path, b"nothing at all")
    await two.stores[1].delete(path)
    await until(lambda: two.one.neighbourhood.members.find("odd") is None)


async def test_after_its_session_has_expired_a_broker_serves_again(
    start_broker: StartBroker, connect: Connect
) -> None:
    store = LeasedStore()
    broker = await start_broker(store=store)
    client = await owned_by(broker, connect)
    bundle = await broker.topics.bundle(NAME)
    epoch = broker.ownership.owned[bundle]
    store.session.expire()
    await client.expect("close_producer")
    await client.expect("close_consumer")
    await client.produce(TOPIC, 2)
    assert broker.ownership.owned[bundle] > epoch
    reports = await store.children("/loadbalance/brokers")
    assert len(reports) == 1
    record = await store.get(f"/loadbalance/brokers/{reports[0]}")
    assert record is not None
    assert record.session == store.session_id


async def test_what_an_earlier_life_of_this_broker_owned_is_taken_at_once() -> None:
    """Killed and started again on its port: nobody else can listen there, so the old life is over."""
    ensemble = MemoryEnsemble()
    before, now = ensemble.connect(), ensemble.connect()
    old = BrokerAddress("a", "pulsar://a:1", "http://a:2", "first life")
    await before.put(f"/namespace/{BUNDLE}", old.encode(), expected_version=MUST_NOT_EXIST, ephemeral=True)
    ours = Ownership(now, BrokerAddress("a", "pulsar://a:1", "http://a:2", "second life"), lambda _: None)
    async with asyncio.timeout(1.0):
        assert (await ours.require(BUNDLE)).bundle == BUNDLE


async def test_a_lookup_ends_with_the_owner_the_store_knows_when_that_stays_silent() -> None:
    trusted: list[BrokerAddress] = []

    class Deaf:
        def candidates(self, bundle: Bundle) -> list[BrokerAddress]:
            return []

        async def answers(self, address: BrokerAddress) -> bool:
            return address in trusted

        def trust(self, address: BrokerAddress) -> None:
            trusted.append(address)

    ensemble = MemoryEnsemble()
    theirs = Ownership(ensemble.connect(), BrokerAddress("b", "pulsar://b:1", "", "y"), lambda _: None)
    await theirs.require(BUNDLE)
    ours = Ownership(
        ensemble.connect(),
        BrokerAddress("a", "pulsar://a:1", "", "x"),
        lambda _: None,
        neighbours=Deaf(),
        wait_s=0.2,
    )
    assert await ours.owner(BUNDLE) == theirs.address
    async with asyncio.timeout(0.15):  # It is trusted from now on: nobody waits again.
        assert await ours.owner(BUNDLE) == theirs.address
