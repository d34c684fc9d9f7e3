"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from magnetar.testing.etcd import EtcdServer
from magnetar.testing.zookeeper import ZooKeeperServer

# How long drawing an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="module", autouse=True)
def _no_descriptors_left() -> Iterator[None]:
    """The official client keeps the descriptors of its event loops until it is collected."""
    yield
    if "_pulsar" in sys.modules:
        gc.collect()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper for the whole run. Do not stop it: a test that wants to makes its own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def fresh_zookeeper_url(zookeeper_server: ZooKeeperServer) -> Callable[[], str]:
    """Makes metadata URLs, each with an empty chroot of its own on the shared server."""
    numbers = itertools.count()
    return lambda: f"zk:{zookeeper_server.address}/test-{next(numbers)}"


@pytest.fixture
def zookeeper_url(fresh_zookeeper_url: Callable[[], str]) -> str:
    """One such URL."""
    return fresh_zookeeper_url()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A real etcd for the whole run. Do not stop it: a test that wants to makes its own."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def fresh_etcd_url(etcd_server: EtcdServer) -> Callable[[], str]:
    """Makes metadata URLs, each with an empty chroot of its own on the shared server."""
    numbers = itertools.count()
    return lambda: f"etcd:{etcd_server.address}/test-{next(numbers)}"


@pytest.fixture
def etcd_url(fresh_etcd_url: Callable[[], str]) -> str:
    """One such URL."""
    return fresh_etcd_url()
