"""Every long text sent to a model, as Markdown files beside this one."""

from importlib.resources import files


def load(name: str) -> str:
    """The text of `name`.md, without the line end at its end."""
    return (files(__name__) / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")
