"""A real `coordinator serve`, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cli.program import Program


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Serving:
    process: subprocess.Popen[str]
    url: str
    token: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def __call__(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """One request; with a body as JSON. `headers` with `_` for `-`, which replace the usual ones; an empty one is left
        out."""
        usual = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        named = {name.replace("_", "-").title(): value for name, value in headers.items()}
        sent = {name: value for name, value in {**usual, **named}.items() if value}
        connection = self.connection()
        try:
            data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> Answer:
        return self(path, "POST", body)

    @contextmanager
    def events(self, query: str = "", **headers: str) -> Iterator[Iterator[tuple[str, int | None, Any]]]:
        """Server-sent events: their kind, id and data."""
        connection = self.connection()
        named = {name.replace("_", "-").title(): value for name, value in headers.items()}
        connection.request("GET", f"/api/events{query}", headers={"Authorization": f"Bearer {self.token}", **named})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield _messages(answer)
        finally:
            connection.close()


def _messages(lines: http.client.HTTPResponse) -> Iterator[tuple[str, int | None, Any]]:
    fields: dict[str, str] = {}
    for raw in lines:
        line = raw.decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])
            fields = {}


@contextmanager
def serving(program: Program, *arguments: str, **environment: str) -> Iterator[Serving]:
    process = program.start("serve", "--port", "0", "--json", *arguments, **environment)
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        said = json.loads(line)
        assert set(said) == {"url", "token"}
        yield Serving(process, said["url"], said["token"])
    finally:
        process.kill()
        process.communicate()


def browser_that_notes(program: Program) -> str:
    """A program that writes down the address it is to open, in the file `opened` of the program's home."""
    made = program.home / "browser"
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(f'#!/bin/sh\necho "$1" > {program.home}/writing && mv {program.home}/writing {program.home}/opened\n')
    made.chmod(0o755)
    return str(made)
