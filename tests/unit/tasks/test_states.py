import pytest

from tasks.ids import ALPHABET, PREFIXES, TaskType, new_id, new_session_id
from tasks.states import LIVE, MOVES, TERMINAL, TaskStatus, sources


def test_the_table_of_moves_is_complete() -> None:
    assert set(MOVES) == set(TaskStatus)


def test_terminal_states_are_those_without_a_way_out() -> None:
    assert {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED} == TERMINAL
    assert {TaskStatus.PENDING, TaskStatus.RUNNING} == LIVE


def test_every_pair_of_states_is_either_a_move_or_refused() -> None:
    assert {f"{a}>{b}" for a in MOVES for b in MOVES[a]} == {
        "pending>running",
        "pending>failed",
        "pending>killed",
        "running>completed",
        "running>failed",
        "running>killed",
    }


def test_sources_are_the_moves_read_backwards() -> None:
    assert {s: set(sources(s)) for s in TaskStatus} == {s: {a for a in TaskStatus if s in MOVES[a]} for s in TaskStatus}


@pytest.mark.parametrize("type", list(TaskType))
def test_an_id_is_a_prefix_and_eight_characters(type: TaskType) -> None:
    ids = {new_id(type) for _ in range(200)}
    assert len(ids) == 200
    assert all(len(id) == 9 and id[0] == PREFIXES[type] and set(id[1:]) <= set(ALPHABET) for id in ids)


def test_every_type_has_its_own_prefix_and_none_is_a_sessions() -> None:
    assert set(PREFIXES) == set(TaskType)
    assert len({*PREFIXES.values(), new_session_id()[0]}) == len(PREFIXES) + 1


def test_every_character_of_the_alphabet_is_drawn() -> None:
    assert set("".join(new_session_id()[1:] for _ in range(500))) == set(ALPHABET)
