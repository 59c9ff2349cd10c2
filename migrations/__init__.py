"""The schema's history. `env.py` imports `tasks.models` only; a revision imports nothing of ours.

Every revision has a test that upgrades a file with rows in it (`tests/migrations/`). Revisions are numbered `0001`,
`0002`, …: a program knows by the number that a file is newer than itself.
"""
