"""Run the fake on its own: prints its base URL on one line, serves until SIGINT or SIGTERM, then prints its complaints.

Exit code 1 when it saw violations. `GET /__fake__/stats` answers with counts while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

from tests.support.fake_api.scenarios import Options, names, scenario
from tests.support.fake_api.server import FakeAPI


def main() -> int:
    arguments = _parser().parse_args()
    options = Options(arguments.path, arguments.read_tool, arguments.path_argument, arguments.delay)
    script = scenario(arguments.scenario, options)
    api = FakeAPI(script, port=arguments.port, keep_bodies=False, allow_violations=True)
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    with api:
        print(api.base_url, flush=True)
        done.wait()
    print(json.dumps(api.stats(), indent=2), file=sys.stderr)
    return 1 if api.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fake_api", description="A fake of the Anthropic Messages API.")
    parser.add_argument("--scenario", default="text", help=f"one of: {', '.join(names())}")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--path", default=os.environ.get("FAKE_API_PATH", "README.md"), help="the file workers read")
    parser.add_argument("--read-tool", default="Read")
    parser.add_argument("--path-argument", default="file_path", help="name of the input that holds the path")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    return parser


if __name__ == "__main__":
    sys.exit(main())
