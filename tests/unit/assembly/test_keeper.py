"""The policy in force: taken whole or not at all, told to every ledger, followed at run time."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from kvgate.assembly.desk import Desk, differences
from kvgate.assembly.file import PolicySource, needs_restart, taken_over, tenants_changed
from kvgate.assembly.keeper import PolicyKeeper
from kvgate.config import load
from kvgate.config.layers import Value
from kvgate.config.settings import Settings
from kvgate.config.tenants import TenantBook, anonymous_book
from kvgate.errors import ChangeNotKept, ConfigError
from kvgate_policies.types import TenantPolicy, TenantRules
from unit.assembly.fakes import Hand, a_book, a_house, ledger_of, settings

BOOK = a_book("chat", "batch")


class Kept:
    def __init__(self, *pools: str, wanted: Settings | None = None) -> None:
        self.clock = Hand()
        self.settings = settings(*pools, book=BOOK)
        self.house = a_house(self.settings, self.clock)
        self.wanted: Any = wanted or self.settings
        self.keeper = PolicyKeeper(self.settings, self.house.pools, self.clock, PolicySource(self.read))
        self.desk = Desk(self.keeper, self.house.pools.names)

    def read(self) -> Settings:
        if isinstance(self.wanted, Exception):
            raise self.wanted
        assert isinstance(self.wanted, Settings)
        return self.wanted

    def weight(self, tenant: str = "chat", pool: str = "a") -> float:
        return self.keeper.live.current.policy(tenant, pool).rules.weight


async def test_the_ledgers_are_told_the_rules_once() -> None:
    kept = Kept("a", "b")
    for _ in range(3):
        await kept.keeper.follow()
    for index in (0, 1):
        assert ledger_of(kept.house, index).rules == [{"chat": TenantRules(), "batch": TenantRules()}]


async def test_a_ledger_that_is_away_is_told_when_it_is_back() -> None:
    kept = Kept("a")
    ledger_of(kept.house).away = True
    await kept.keeper.follow()
    assert ledger_of(kept.house).rules == []
    ledger_of(kept.house).away = False
    await kept.keeper.follow()
    assert len(ledger_of(kept.house).rules) == 1


async def test_a_change_in_all_pools_and_one_in_a_single_pool() -> None:
    kept = Kept("a", "b")
    await kept.keeper.follow()
    await kept.desk.change("chat", None, {"weight": 3}, 60.0, "me")
    await kept.desk.change("chat", "b", {"weight": 7}, 30.0, "me")
    assert (kept.weight(pool="a"), kept.weight(pool="b"), kept.weight("batch")) == (3, 7, 1)
    assert ledger_of(kept.house, 1).rules[-1]["chat"].weight == 7
    kept.clock.now_s += 31
    await kept.keeper.follow()
    assert (kept.weight(pool="a"), kept.weight(pool="b")) == (3, 3)
    assert await kept.desk.end("chat", None, "me") is True
    assert await kept.desk.end("chat", None, "me") is False
    assert kept.weight() == 1


async def test_a_change_holds_to_its_end_while_the_ledger_is_away() -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    await kept.desk.change("chat", None, {"weight": 3}, 60.0, "me")
    ledger_of(kept.house).away = True
    await kept.keeper.follow()
    assert kept.weight() == 3
    kept.clock.now_s += 61
    await kept.keeper.follow()
    assert kept.weight() == 1
    with pytest.raises(ChangeNotKept):
        await kept.desk.change("chat", None, {"weight": 5}, 60.0, "me")
    assert kept.weight() == 1


async def test_the_log_blames_nobody_for_what_the_file_changed_in_the_same_moment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    wanted = replace(BOOK, defaults={**BOOK.defaults, "queue_depth_max": Value(7, "FILE: defaults")})
    kept.keeper._book = wanted  # as a reload has it before it is applied
    with caplog.at_level(logging.INFO, "kvgate.audit"):
        await kept.desk.change("chat", None, {"weight": 3}, 60.0, "me")
        kept.keeper._book = replace(BOOK, defaults={**BOOK.defaults, "queue_depth_max": Value(9, "FILE: x")})
        await kept.desk.end("chat", None, "me")
    assert kept.keeper.live.current.policy("chat", "a").queue_depth_max == 9, "it was taken over all the same"
    changed, ended = (record.getMessage() for record in caplog.records)
    assert changed.endswith(": weight in a: 1.0 → 3.0")
    assert ended == "tenant chat changed by me (a change was ended): weight in a: 3.0 → 1.0"


async def test_the_log_blames_nobody_for_what_another_changed_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    await ledger_of(kept.house).put_override("tenant-here:chat", '{"guarantee": 0.6}', 60.0)
    with caplog.at_level(logging.INFO, "kvgate.audit"):
        await kept.desk.change("chat", None, {"weight": 3}, 60.0, "me")
    [record] = caplog.records
    assert record.getMessage().endswith(": weight in a: 1.0 → 3.0")


async def test_who_leaves_the_file_while_it_is_changed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    kept.keeper._book = a_book("batch")
    with caplog.at_level(logging.INFO, "kvgate.audit"):
        await kept.desk.change("chat", None, {"weight": 3}, 60.0, "me")
    assert "nothing that was not so before" in caplog.text


async def test_a_change_of_another_process_is_taken_over_and_an_unreadable_one_left_out(caplog) -> None:
    kept = Kept("a")
    ledger = ledger_of(kept.house)
    await ledger.put_override("tenant:chat", '{"weight": 9}', 60.0)
    await ledger.put_override("tenant:gone", '{"weight": 9}', 60.0)
    await ledger.put_override("tenant:batch", '{"colour": "red"}', 60.0)
    await ledger.put_override("something:else", "?", 60.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await kept.keeper.follow()
    assert (kept.weight("chat"), kept.weight("batch")) == (9, 1)
    assert len([r for r in caplog.records if "left out" in r.getMessage()]) == 1


async def test_a_limit_of_one_kind_takes_the_place_of_the_other() -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    await kept.desk.change("chat", None, {"limit": "50%", "weight": 2}, 60.0, "me")
    await kept.desk.change("chat", None, {"limit_tokens": "200k"}, 60.0, "me")
    [one] = kept.desk.standing()
    assert dict(one.override.changes) == {"weight": 2.0, "limit_tokens": 200_000}
    await kept.desk.change("chat", None, {"limit_tokens": None, "weight": None}, 60.0, "me")
    assert kept.desk.standing() == ()


@pytest.mark.parametrize("for_s", [0.0, -1.0, 8 * 86400.0])
async def test_no_change_is_for_ever(for_s: float) -> None:
    kept = Kept("a")
    with pytest.raises(ConfigError, match=r"for: .* is not allowed; allowed: above 0 and at most 168h"):
        await kept.desk.change("chat", None, {"weight": 2}, for_s, "me")
    with pytest.raises(KeyError):
        await kept.desk.change("nobody", None, {"weight": 2}, 60.0, "me")


async def test_a_change_is_checked_together_with_the_others() -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    await kept.desk.change("chat", None, {"guarantee": "60%"}, 60.0, "me")
    with pytest.raises(ConfigError, match="110% guaranteed"):
        await kept.desk.change("batch", None, {"guarantee": "50%"}, 60.0, "me")
    assert [one.tenant for one in kept.desk.standing()] == ["chat"]


async def test_a_change_begins_from_what_another_replica_changed_a_moment_ago() -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    ledger = ledger_of(kept.house)
    await ledger.put_override("tenant:chat", '{"weight": 6, "guarantee": 0.6}', 60.0)
    await kept.desk.change("chat", None, {"limit": "90%"}, 60.0, "me")
    [one] = kept.desk.standing()
    assert dict(one.override.changes) == {"weight": 6.0, "guarantee": 0.6, "limit": 0.9}
    with pytest.raises(ConfigError, match="110% guaranteed"):
        await kept.desk.change("batch", None, {"guarantee": "50%"}, 60.0, "me")
    await ledger.put_override("tenant:batch", '{"weight": 2}', 60.0)
    assert await kept.desk.end("batch", None, "me") is True


async def test_a_new_file_is_taken_over_and_changes_at_run_time_stay() -> None:
    kept = Kept("a", wanted=settings("a", book=a_book("chat", "batch", "guest")))
    await kept.keeper.follow()
    await kept.desk.change("chat", None, {"weight": 3}, 60.0, "me")
    await kept.keeper.reload()
    assert kept.keeper.live.current.names == ("chat", "batch", "guest")
    assert kept.weight() == 3
    assert set(ledger_of(kept.house).rules[-1]) == {"chat", "batch", "guest"}


@pytest.mark.parametrize("error", [ConfigError("file: line 1"), RecursionError("deep")])
async def test_a_bad_file_changes_nothing(error: Exception, caplog) -> None:
    kept = Kept("a")
    await kept.keeper.follow()
    before, kept.wanted = kept.keeper.live.current, error
    await kept.keeper.reload()
    assert kept.keeper.live.current is before
    assert str(error) in (kept.keeper.file.refused or "")
    kept.wanted = kept.settings
    await kept.keeper.reload()
    assert kept.keeper.file.refused is None


async def test_reloads_that_come_together_are_read_in_turn_and_no_more_than_needed() -> None:
    kept = Kept("a")
    read = 0

    def counting() -> Settings:
        nonlocal read
        read += 1
        return kept.settings

    kept.keeper._source = PolicySource(counting)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(kept.keeper.reload)
    assert read == 2


async def test_backends_come_and_go_with_the_file() -> None:
    kept = Kept("a", "b")
    specs = kept.settings.pools
    fewer = specs[0].model_copy(update={"backends": ("http://a-2:8000", "http://a-3:8000")})
    kept.wanted = kept.settings.model_copy(update={"pools": (fewer, specs[1])})
    await kept.keeper.reload()
    assert kept.house.pools.lines[0].engine_pool.backends() == ("http://a-2:8000", "http://a-3:8000")
    assert kept.house.pools.lines[1].engine_pool.backends() == specs[1].backends


def test_what_needs_a_restart() -> None:
    one = settings("a", "b")
    assert needs_restart(one, one) == []
    other = one.pools[1].model_copy(update={"max_num_seqs": 7, "backends": ("http://x",), "aliases": ("y",)})
    assert needs_restart(one, one.model_copy(update={"pools": (one.pools[0], other)})) == [
        "pools.b.max_num_seqs"
    ]
    assert needs_restart(one, one.model_copy(update={"port": 1, "book": BOOK})) == ["port"]
    assert needs_restart(one, settings("a")) == ["pools.b (removed)"]
    assert needs_restart(settings("a"), one) == ["pools.b (added)"]
    single = settings("a")
    assert needs_restart(single, single.model_copy(update={"max_num_seqs": 7})) == ["max_num_seqs"]
    renamed = single.model_copy(update={"bypass_max": 3, "ledger_lease_s": 9.0, "prefill_tokens_max": 7})
    assert needs_restart(single, renamed) == ["bypass", "ledger.lease", "prefill_tokens"], "as in the file"


def test_what_a_new_file_says_differently_of_tenants(tmp_path: Path) -> None:
    def book(text: str) -> TenantBook:
        path = tmp_path / "policy.yaml"
        path.write_text(f"version: 1\npools: {{p: {{backends: [http://a:8000]}}}}\n{text}")
        return load(path, {}, {}).book

    zero, one, two = ("{keys: [{sha256: " + digit * 64 + "}]" for digit in "abc")
    first = book(f"tenants: {{a: {zero}}}, b: {one}}}}}")
    assert tenants_changed(first, first) == []
    assert tenants_changed(first, book(f"tenants: {{a: {two}}}, b: {one}}}}}")) == ["keys of a"]
    then = book(
        f"defaults: {{weight: 2}}\ntenants: {{a: {zero}, weight: 3}}, c: {one}}}}}\nunknown_tenant: a"
    )
    assert tenants_changed(first, then) == ["added c", "removed b", "changed a", "defaults", "identity"]
    many = replace(first, names=tuple(f"t{number}" for number in range(12)))
    assert tenants_changed(many, replace(many, names=()))[0].endswith("t8, t9 and 2 more")


def test_what_a_successor_begins_with() -> None:
    one = settings("a", "b")
    new = one.pools[0].model_copy(update={"max_num_seqs": 7, "backends": ("http://x",), "aliases": ("y",)})
    got = taken_over(one, one.model_copy(update={"pools": (new, one.pools[1]), "book": BOOK, "port": 1}))
    assert (got.port, got.book) == (one.port, BOOK)
    assert got.pools[0] == one.pools[0].model_copy(update={"backends": ("http://x",), "aliases": ("y",)})
    assert (got.backends, got.aliases) == (("http://x",), ("y",))


def test_differences_name_what_holds_differently() -> None:
    after = replace(BOOK, defaults={})
    assert differences(BOOK, after, "chat", "a") == {}


def test_a_source_sees_that_its_file_changed(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    source = PolicySource(lambda: settings("a"), path)
    assert (source.stamp(), source.digest(), source.first) == (None, None, None)
    path.write_text("one")
    first, digest = source.stamp(), source.digest()
    path.write_text("another")
    assert source.stamp() != first
    assert source.digest() != digest
    assert source.files() == (path,)


async def test_a_pipe_in_the_place_of_the_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    os.mkfifo(path)
    kept = Kept("a")
    keeper = PolicyKeeper(kept.settings, kept.house.pools, kept.clock, PolicySource(kept.read, path))
    with anyio.fail_after(5):
        await keeper.reload()
    assert "a pipe or a device" in (keeper.file.refused or "")
    assert PolicySource(kept.read, path).files() == (path,)


def test_what_has_no_end_has_no_digest() -> None:
    assert PolicySource(lambda: settings("a"), Path("/dev/zero")).digest() is None


async def test_what_a_new_file_makes_doubtful_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    patient = replace(anonymous_book(TenantPolicy(queue_wait_s_max=3600.0)), names=("chat", "batch"))
    doubted = settings("a", book=patient)
    kept = Kept("a", wanted=doubted)
    for _ in range(2):
        await kept.keeper.reload()
    said = [
        one.getMessage() for one in caplog.records if "the queue wait of 3600 s is longer" in one.getMessage()
    ]
    assert len(said) == 1
    kept.wanted = kept.settings
    await kept.keeper.reload()
    kept.wanted = doubted
    await kept.keeper.reload()
    again = [one for one in caplog.records if "the queue wait of 3600 s is longer" in one.getMessage()]
    assert len(again) == 2
