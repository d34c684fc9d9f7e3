"""One platform for the tours: each uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.testing.processes import MagnetarProcess


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MagnetarProcess]:
    with MagnetarProcess.standalone(tmp_path_factory.mktemp("clients")) as process:
        yield process
