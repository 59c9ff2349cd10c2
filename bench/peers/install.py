"""An environment for each peer under `.bench/`, made once: `python bench/peers/install.py`. One that cannot be made is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".bench"
PACKAGES = {
    "langgraph": ["langgraph", "langchain-anthropic"],
    "pydantic_ai": ["pydantic-ai-slim[anthropic]"],
    "agno": ["agno", "anthropic"],
    "openai_agents": ["openai-agents[litellm]"],
}


def main() -> None:
    for name, packages in PACKAGES.items():
        place = ROOT / name
        if (place / ".done").exists():
            continue
        print(f"installing {name} into {place}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        if subprocess.run([place / "bin" / "pip", "install", "-q", *packages]).returncode == 0:
            (place / ".done").touch()


if __name__ == "__main__":
    main()
