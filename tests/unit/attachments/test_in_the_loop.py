"""The real loop with attachments, over HTTP: news stands behind the results, is stored, and breaks no prefix."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.agent import Probe, collect, engine
from tests.support.fake_api import FakeAPI, text, tool_use
from worker_agent.attachments import Attachments
from worker_agent.memory import MemoryIndex
from worker_agent.skills import SkillIndex
from worker_agent.tools.base import ReadFile
from worker_agent.tools.builtin.read import Read
from worker_agent.tools.builtin.skill import Skill


def test_news_reaches_the_model_with_the_results_and_the_prefix_stays(tmp_path: Path) -> None:
    skill = tmp_path / "pkg/.claude/skills/paint/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\ndescription: Paints.\n---\nPaint it $ARGUMENTS.")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/heron.md").write_text("# Herons\nnest near windmills")
    file = tmp_path / "pkg/a.txt"
    file.write_text("one\n")

    async def main() -> None:
        read_files: dict[Path, ReadFile] = {}
        notes, skills = MemoryIndex(tmp_path / "notes"), SkillIndex(tmp_path, trusted=True)
        source = Attachments(cwd=tmp_path, read_files=read_files, memory=notes, skills=skills)

        async def elsewhere(n: int) -> None:
            if n == 2:
                file.write_text("two, and longer\n")
            # A real tool takes its time: long enough here for the prefetches of this turn.
            while pending := [t for t in asyncio.all_tasks() if "in_thread" in repr(t) or "MemoryIndex" in repr(t)]:
                await asyncio.wait(pending)

        script = [
            tool_use("Read", {"file_path": str(file)}),
            tool_use("Probe", {"n": 1}),
            tool_use("Probe", {"n": 2}),
            tool_use("Skill", {"skill": "paint", "args": "blue"}),
            text("Done."),
        ]
        with FakeAPI(script) as api:  # which refuses a request whose prefix changed
            subject = engine(
                api, tmp_path, tools=[Read(), Skill(skills), Probe(then=elsewhere)], attachments=source,
                context_fields={"read_files": read_files},
            )  # fmt: skip
            run = await collect(subject, "Where do herons nest?")
            await subject.context.close()
            await subject.agent.client.close()
            await source.close()
            notes.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert run.result.text == "Done."
        stored = [m.data["source"] for m in subject.messages if m.kind == "attachment"]
        assert sorted(stored) == ["files", "memory", "skills"] and stored[-1] == "files"
        last = api.requests[-1].messages
        texts = [block["text"] for m in last for block in m["content"] if block["type"] == "text"]
        news = [text for text in texts if "<system-reminder>" in text]
        assert len(news) == 3 and "-one\n+two, and longer" in news[-1]
        results = [m["content"] for m in last if m["content"][0]["type"] == "tool_result"]
        kinds = [[block["type"] for block in blocks] for blocks in results[2:]]
        assert kinds == [["tool_result", "text"], ["tool_result"]]
        assert "Paint it blue." in str(results[-1])

    asyncio.run(main())
