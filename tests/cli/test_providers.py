"""Clouds that serve the vendor's models, through the real command as far as a fake of their addresses goes."""

from __future__ import annotations

import importlib.util

import pytest

from coordinator.views.exit_codes import ExitCode
from tests.cli.program import Program
from tests.integration.scripts import coordinator, fleet
from tests.support.fake_api import FakeAPI, http_error

KEY = "sk-0123456789abcdef"


def of(cloud: str, api: FakeAPI) -> dict[str, str]:
    if cloud == "foundry":
        return {
            "CLAUDE_CODE_USE_FOUNDRY": "1",
            "ANTHROPIC_FOUNDRY_API_KEY": KEY,
            "ANTHROPIC_FOUNDRY_BASE_URL": f"{api.base_url}/anthropic/",
        }
    return {
        "CLAUDE_CODE_USE_VERTEX": "1",
        "CLOUD_ML_REGION": "europe-west1",
        "ANTHROPIC_VERTEX_PROJECT_ID": "a-project",
        "ANTHROPIC_VERTEX_BASE_URL": f"{api.base_url}/v1",
        "ANTHROPIC_CUSTOM_HEADERS": f"Authorization: Bearer {KEY}",  # else Google's own library fetches a token
    }


@pytest.mark.parametrize(
    ("cloud", "path"),
    [
        ("foundry", "/anthropic/v1/messages"),
        (
            "vertex",
            "/v1/projects/a-project/locations/europe-west1/publishers/anthropic/models/claude-opus-5-5:streamRawPredict",
        ),
    ],
)
def test_a_run_goes_through_a_cloud(cloud: str, path: str, program: Program) -> None:
    with FakeAPI(fleet(coordinator("one", final="all done")), cloud=True, expected_key=KEY) as api:
        ran = program.here("run", "goal", "--model", "opus", COORDINATOR_LOOP_TOOL_USE_SUMMARIES="0", **of(cloud, api))
    assert (ran.code, ran.out) == (ExitCode.DONE, "all done\n"), ran.err
    assert {request.path for request in api.requests} == {path} and len(api.requests) == 4
    assert all("thinking" in request.body for request in api.requests)


def test_an_error_of_a_cloud_is_one_line_and_its_code(program: Program) -> None:
    with FakeAPI(http_error(401), cloud=True, allow_violations=True) as api:
        ran = program.here("run", "goal", **of("foundry", api))
    assert ran.code == ExitCode.NOT_AUTHENTICATED and "Traceback" not in ran.err


def test_what_is_missing_is_named_before_anything_begins(program: Program) -> None:
    rows = [
        ({"CLAUDE_CODE_USE_FOUNDRY": "1"}, "CLAUDE_CODE_USE_FOUNDRY is set, but ANTHROPIC_FOUNDRY_API_KEY is not"),
        ({"CLAUDE_CODE_USE_VERTEX": "true"}, "CLAUDE_CODE_USE_VERTEX is set, but CLOUD_ML_REGION is not"),
        ({"CLAUDE_CODE_USE_BEDROCK": "1"}, "CLAUDE_CODE_USE_BEDROCK is set, but AWS_REGION or AWS_DEFAULT_REGION is not"),
    ]
    if importlib.util.find_spec("boto3") is None:
        there = {"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": "eu-west-1"}
        rows.append((there, "CLAUDE_CODE_USE_BEDROCK needs the extra [bedrock]: pip install 'coordinator[bedrock]'"))
    for environment, line in rows:
        ran = program.here("run", "goal", **environment)
        assert (ran.code, ran.out) == (ExitCode.USAGE, "") and ran.err.splitlines()[-1] == f"coordinator: {line}"


def test_a_switch_that_says_no_asks_for_no_cloud(program: Program) -> None:
    with FakeAPI("hello") as api:
        ran = program.here(
            "run", "goal", CLAUDE_CODE_USE_BEDROCK="0", ANTHROPIC_BASE_URL=api.base_url, ANTHROPIC_API_KEY=KEY
        )  # fmt: skip
    assert (ran.code, ran.out) == (ExitCode.DONE, "hello\n"), ran.err
