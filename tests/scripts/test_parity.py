"""docs/parity.md tells the truth of the installed torch: no ★ name is missing, and every difference has its reason."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aiocoll.distributed as dist

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "scripts"))
    import parity
    import parity_names
    import parity_reasons

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra 'dev'")

CHAPTERS = (*parity_names.EARLY, *parity_names.TODAY)
LISTED = [name for chapter in CHAPTERS for name in (*chapter.stars, *chapter.others)]
STARS_UNDER_ANOTHER_NAME = {
    "flight_recorder", "NanCheckHook", "FakeProcessGroup", "LocalTensorMode", "MultiThreadedProcessGroup",
}  # fmt: skip


def every_difference() -> Iterator[parity.Difference]:
    for name in LISTED:
        yield from parity.compared(name)


def test_the_page_is_about_the_torch_that_the_tests_install() -> None:
    assert torch.__version__.partition("+")[0] == "2.13.0"


def test_no_name_that_must_be_there_is_missing() -> None:
    missing = {
        name for chapter in CHAPTERS for name in chapter.stars
        if parity.found(dist, name) is None and not hasattr(dist, name)
    }  # fmt: skip
    assert missing == STARS_UNDER_ANOTHER_NAME


def test_every_name_that_torch_documents_is_listed() -> None:
    names = ("device_mesh", "distributed_c10d", "rendezvous")
    modules = [importlib.import_module(f"torch.distributed.{name}") for name in names]
    documented = {name for module in modules for name in module.__all__}
    listed = {name.split(".")[0] for name in LISTED}
    assert documented <= listed, documented - listed


def test_names_keywords_order_and_defaults_are_torchs_but_for_reasons() -> None:
    different = list(every_difference())
    assert [each for each in different if each.reason is None] == []
    used = {each.reason for each in different}
    unused = [key for key, reason in parity_reasons.REASONS.items() if reason not in used]
    assert unused == [], "reasons for what does not differ"
    assert len(parity_reasons.REASONS) <= 10


def test_most_signatures_were_really_compared() -> None:
    seen = [
        name for name in LISTED
        if parity.arguments_of(parity.found(dist, name)) is not None
        and parity.arguments_of(parity.of_torch(name)) is not None
    ]  # fmt: skip
    for name in ("all_reduce", "TCPStore", "Store.wait", "DeviceMesh.get_group", "Work.wait", "functional.all_reduce"):
        assert name in seen
    assert len(seen) > 90


def test_what_is_said_of_names_is_said_of_listed_ones() -> None:
    for said in (parity_names.BEHAVIOUR, parity_names.NOT_HERE, parity_names.WITH_ANOTHER_NAME):
        assert set(said) <= set(LISTED), set(said) - set(LISTED)
    for name in (*parity_names.NOT_HERE, *parity_names.WITH_ANOTHER_NAME):
        assert parity.found(dist, name) is None, f"{name} is there by now"


def test_the_page_is_up_to_date() -> None:
    page = parity.page()
    assert " missing" not in parity.summary(page)
    assert parity.PAGE.read_text() == page, "run scripts/parity.py"


def theirs(x: Any, op: str = "sum", *, group: Any = None) -> None:
    """A function of torch's, say."""


def missing(x: Any, *, group: Any = None) -> None: ...


def added(x: Any, op: str = "sum", more: int = 0, *, group: Any = None) -> None: ...


def moved(op: str = "sum", x: Any = None, *, group: Any = None) -> None: ...


def default(x: Any, op: str = "max", *, group: Any = None) -> None: ...


@pytest.mark.parametrize("ours", [missing, added, moved, default])
def test_each_kind_of_difference_is_found(ours: Any) -> None:
    mine, others = parity.arguments_of(ours), parity.arguments_of(theirs)
    assert mine is not None and others is not None
    assert ours.__name__ in {each.what for each in parity.differences("f", mine, others)}
    assert list(parity.differences("f", others, others)) == []


def test_signatures_of_what_is_written_in_c() -> None:
    store = parity.arguments_of(torch.distributed.TCPStore)
    assert store is not None and [each.name for each in store][:3] == ["host_name", "port", "world_size"]
    assert store[4].default == "datetime.timedelta(seconds=300)"
    unnamed = parity.arguments_of(torch.distributed.Store.set)
    assert unnamed is not None and [each.name for each in unnamed] == ["arg0", "arg1"]
    few = [parity.Argument("key", False, "")]
    assert [each.what for each in parity.differences("Store.set", few, unnamed)] == ["moved"]
