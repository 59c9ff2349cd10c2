"""What machines share: a budget in shares, an account's limits, small files; on both databases."""

from __future__ import annotations

from typing import Any

from tasks import fleet, ledger, nodes
from tasks.nodes import DEAD_AFTER
from tests.unit.tasks.support import Store, on_sqlite
from tests.unit.tasks.test_nodes import A


def take(store: Store, holder: str, tokens: int, **more: Any) -> fleet.Share:
    limits = {"wanted_usd": 0.0, "limit_usd": None, "limit_tokens": 100, "busy": False} | more
    return store.write(fleet.take, store.session_id, holder, wanted_tokens=tokens, **limits)


def book(store: Store, id: str, tokens: int) -> None:
    store.write(
        ledger.book, response_id=id, session_id=store.session_id, agent_id="a", task_id=None, model="m", purpose="turn",
        input_tokens=1, cache_write_5m_tokens=0, cache_write_1h_tokens=0, cache_read_tokens=0, output_tokens=tokens, cost_usd=None,
    )  # fmt: skip


def test_shares_and_what_is_spent_never_pass_the_limit(store: Store) -> None:
    store.write(nodes.join, A)
    assert take(store, fleet.OWNER, 30).tokens == 30
    assert take(store, A.holder, 60, busy=True).tokens == 60
    more = take(store, fleet.OWNER, 80)
    assert (more.tokens, more.others_busy) == (40, True)
    book(store, "r1", 35)
    assert take(store, fleet.OWNER, 40).tokens == 5, "35 of it are spent"
    store.write(fleet.set_share, store.session_id, A.holder, 0.0, 0, busy=False)
    last = take(store, fleet.OWNER, 1000)
    assert (last.tokens, last.spent_tokens, last.others_busy) == (65, 35, False)
    assert take(store, A.holder, 1).tokens == 0
    assert take(store, A.holder, 7, limit_tokens=None).tokens == 7


@on_sqlite  # whose clock a test can move
def test_a_dead_nodes_share_is_free_again(store: Store) -> None:
    store.write(nodes.join, A)
    assert take(store, A.holder, 90, busy=True).tokens == 90
    assert take(store, fleet.OWNER, 50).tokens == 10
    store.clock.now += DEAD_AFTER + 1
    share = take(store, fleet.OWNER, 200)
    assert (share.tokens, share.others_busy) == (100, False)


def test_a_block_holds_for_the_account_and_only_grows(store: Store) -> None:
    assert store.read(fleet.blocked_for, "one") == 0
    store.write(fleet.block, "one", 50)
    store.write(fleet.block, "one", 10)
    assert 40 < store.read(fleet.blocked_for, "one") <= 50
    assert store.read(fleet.blocked_for, "two") == 0


def test_a_slice_is_at_most_what_is_wanted_and_what_a_minute_has(store: Store) -> None:
    some = store.write(fleet.lease, "one", requests=6, tokens=5, of_requests=10, of_tokens=None)
    assert (some.requests, some.tokens) == (6, 5) and 0 < some.seconds <= 60
    all_of_it = store.write(fleet.lease, "two", requests=60, tokens=50, of_requests=10, of_tokens=20)
    assert (all_of_it.requests, all_of_it.tokens) == (10, 20)


@on_sqlite
def test_a_minute_is_given_out_in_slices_and_the_next_begins_anew(store: Store) -> None:
    def lease(requests: int) -> int:
        return store.write(fleet.lease, "one", requests=requests, tokens=0, of_requests=10, of_tokens=10).requests

    assert [lease(8), lease(8), lease(8)] == [8, 2, 0]
    store.clock.now += 60
    assert lease(8) == 8


def test_files_are_read_from_where_a_reader_stands(store: Store) -> None:
    of = store.session_id
    first = store.write(fleet.put_files, of, [("a", "d1", "QQ=="), ("b", "d2", "Qg==")])
    second = store.write(fleet.put_files, of, [("a", "", None)])
    assert [(f.path, f.content) for f in store.read(fleet.files_since, of, 0)] == [("b", "Qg=="), ("a", None)]
    assert [f.path for f in store.read(fleet.files_since, of, first)] == ["a"]
    assert store.read(fleet.files_since, of, second) == []
