import os
import subprocess

import pytest

from tasks import leases, registry, sessions
from tasks.errors import Fenced, NotFound, Owned
from tasks.leases import is_gone, this_host, this_owner
from tasks.records import Owner
from tests.unit.tasks.support import Store, on_sqlite, run_out, start_python
from worker_agent.structs import replace

FAR = Owner(7, 1.0, "another-host")


def test_a_session_has_one_owner_at_a_time_and_the_refusal_names_it(store: Store) -> None:
    with pytest.raises(Owned, match=f"process {os.getpid()} on ") as refused:
        store.write(leases.acquire, store.session_id, FAR, store.clock())
    assert refused.value.owner == store.owner


def test_every_new_owner_has_a_higher_fence_and_the_old_one_cannot_write(store: Store) -> None:
    run_out(store)
    fence = store.write(leases.acquire, store.session_id, FAR, store.clock() + leases.TTL)
    assert fence > store.fence
    store.read(leases.check, store.session_id, fence)
    for call in (leases.check, lambda c, s, f: leases.renew(c, s, f, store.clock())):
        with pytest.raises(Fenced):
            store.write(call, store.session_id, store.fence)
    assert not store.write(leases.release, store.session_id, store.fence)


@on_sqlite  # whose clock a test can move
def test_a_renewed_lease_is_not_up_for_taking(store: Store) -> None:
    store.write(leases.renew, store.session_id, store.fence, store.clock.now + 9)
    with pytest.raises(Owned):
        store.write(leases.acquire, store.session_id, FAR, store.clock.now + 18)
    store.write(leases.acquire, store.session_id, FAR, store.clock.now + 19.5)


def test_a_released_session_is_free_and_cannot_be_renewed(store: Store) -> None:
    assert store.write(leases.release, store.session_id, store.fence)
    assert store.read(sessions.get, store.session_id).owner is None
    with pytest.raises(Fenced):
        store.write(leases.renew, store.session_id, store.fence, store.clock())
    assert store.write(leases.acquire, store.session_id, FAR, store.clock()) == store.fence + 1


def test_a_dead_owner_is_followed_at_once(store: Store) -> None:
    process = start_python("import sys; from tasks.leases import this_owner; print(this_owner(), flush=True); sys.stdin.read()")
    assert process.stdout is not None
    dead = eval(process.stdout.readline(), {"Owner": Owner})
    store.write(leases.release, store.session_id, store.fence)
    store.write(leases.acquire, store.session_id, dead, store.clock())
    with pytest.raises(Owned):
        store.write(leases.acquire, store.session_id, store.owner, store.clock())
    process.kill()
    process.communicate()
    assert store.write(leases.acquire, store.session_id, store.owner, store.clock()) == store.fence + 2


def test_an_unknown_session_is_named(store: Store) -> None:
    with pytest.raises(NotFound, match="no session s0"):
        store.write(leases.acquire, "s0", FAR, 0.0)
    with pytest.raises(Fenced, match="is gone"):
        store.write(leases.check, "s0", 1)


def test_pending_tasks_come_along_with_a_new_owner(store: Store) -> None:
    task = store.task()
    run_out(store)
    fence = store.write(leases.acquire, store.session_id, FAR, store.clock() + 60)
    assert store.read(registry.get, task.id).fence == fence


@pytest.mark.parametrize(("owner", "lease_left", "gone"), [
    (None, 5.0, True),
    (this_owner(), 5.0, False),
    (this_owner(), -5.0, False),  # suspended, or slow: it lives
    (replace(this_owner(), started_at=this_owner().started_at + 1), -5.0, False),  # a shifted boot time
    (replace(this_owner(), started_at=1.0), -5.0, True),  # its pid belongs to another process
    (replace(this_owner(), started_at=1.0), 5.0, False),  # the clock was set: it goes on renewing
    (Owner(2**22 + 1, 1.0, this_host()), 5.0, True),  # no such process
    (FAR, 5.0, False),
    (FAR, -5.0, True),
    (replace(this_owner(), host="another-host"), -5.0, True),  # the same pid here proves nothing
])  # fmt: skip
def test_death_is_proven_by_pid_and_start_time_here_and_by_heartbeat_elsewhere(
    owner: Owner | None, lease_left: float, gone: bool
) -> None:
    assert is_gone(owner, 1000.0 + lease_left, 1000.0, this_host()) is gone


def test_a_zombie_is_dead() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert leases.start_time(process.pid) is None


def test_a_session_is_removed_with_all_that_belongs_to_it_but_not_from_under_its_owner(store: Store) -> None:
    task = store.task()
    with pytest.raises(Owned):
        store.write(sessions.remove, store.session_id)
    store.write(leases.release, store.session_id, store.fence)
    store.write(sessions.remove, store.session_id)
    assert store.read(registry.find, task.id) is None
    left = store.db.query("SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM agents)")
    assert left[1] == [(0,)]
