"""Requests to pipelines, in the store."""

from pathlib import Path

from headwater.store.pipelines.controls import Action, Controls, Request
from headwater.store.views import ViewStore


def test_a_pipeline_stays_paused_until_it_is_resumed(tmp_path: Path) -> None:
    Controls(ViewStore(tmp_path / "views.db")).set_paused("revenue", True)
    controls = Controls(ViewStore(tmp_path / "views.db"))
    assert controls.paused() == {"revenue"}
    controls.set_paused("revenue", False)
    assert controls.paused() == set()


def test_a_request_waits_until_it_is_carried_out(tmp_path: Path) -> None:
    controls = Controls(ViewStore(tmp_path / "views.db"))
    controls.request("revenue", Action.RESUME)
    assert controls.is_waiting("revenue")
    assert not controls.is_waiting("orders")
    controls.finish(Request("revenue", Action.RESUME))
    assert (controls.requests(), controls.refusal("revenue")) == ([], None)


def test_a_request_is_refused_with_the_reason_which_the_next_one_removes(tmp_path: Path) -> None:
    controls = Controls(ViewStore(tmp_path / "views.db"))
    controls.request("revenue", Action.RESET)
    controls.finish(Request("revenue", Action.RESET), "it is being rebuilt")
    assert controls.refusal("revenue") == "it is being rebuilt"
    controls.request("revenue", Action.PAUSE)
    assert controls.refusal("revenue") is None


def test_a_newer_request_is_not_removed_with_the_one_that_it_replaced(tmp_path: Path) -> None:
    controls = Controls(ViewStore(tmp_path / "views.db"))
    controls.request("revenue", Action.PAUSE)
    controls.request("revenue", Action.RESUME)
    controls.finish(Request("revenue", Action.PAUSE))
    assert controls.requests() == [Request("revenue", Action.RESUME)]
