"""A window's checkpoint and the name of its producers live and die together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from magnetar.spark.window_place import checkpoint_of, producer_prefix

NAME = "public/default/sums"


def test_a_job_keeps_its_producers_name_over_restarts_before_and_after_its_checkpoint_is_begun(
    tmp_path: Path,
) -> None:
    first = producer_prefix(tmp_path, NAME, 7)
    assert first.startswith(f"{NAME}-7-")
    assert producer_prefix(tmp_path, NAME, 7) == first
    checkpoint_of(tmp_path, 7).mkdir()
    assert producer_prefix(tmp_path, NAME, 7) == first


def test_a_job_that_begins_without_its_checkpoint_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    before = producer_prefix(there, NAME, 7)
    checkpoint_of(there, 7).mkdir()
    assert producer_prefix(here, NAME, 7) != before

    shutil.rmtree(there)
    there.mkdir()
    assert producer_prefix(there, NAME, 7) != before


def test_a_checkpoint_begun_before_names_were_written_down_keeps_its_name(tmp_path: Path) -> None:
    checkpoint_of(tmp_path, 7).mkdir()
    assert producer_prefix(tmp_path, NAME, 7) == f"{NAME}-7"


def test_a_name_in_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "producers-7.json").write_text(json.dumps({"version": 2, "prefix": "x"}))
    with pytest.raises(ValueError, match="version 2"):
        producer_prefix(tmp_path, NAME, 7)
