"""What the Messages API refuses, in the order it looks: headers, fields, tools, messages, pairing, limits.

`check` raises the `Refusal`; the caller records it. Texts follow the real ones where they are known, because clients
have to read some of them ("prompt is too long: N tokens > M maximum").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.fake_api.errors import Refusal
from tests.support.fake_api.facts import TOOL_NAME, MessageFacts, check_mark
from tests.support.fake_api.models import Model

VERSIONS = ("2026-10-21", "2023-06-01")
MAX_MESSAGES = 100_000
MAX_MARKS = 4
SAMPLING = ("temperature", "top_p", "top_k")
EFFORTS = ("low", "medium", "high", "xhigh", "max")

# Beta headers the API knows; any other value is refused.
BETAS = frozenset(
    """context-management-2025-06-27 compact-2026-01-12 compact-2026-09-04 message-threads-2026-08-12
    task-budgets-2026-03-13 thinking-binding-controls-2026-08-01 thinking-display-updates-2026-08-18
    thinking-token-count-2026-05-13 mid-conversation-tool-changes-2026-07-01
    mid-conversation-output-config-2026-07-01 mid-conversation-system-clear-at-2026-08-21 inline-tools-2026-09-15
    server-side-fallback-2026-06-01 server-side-fallback-2026-07-01 fallback-credit-2026-06-01
    fallback-credit-2026-07-01 advisor-tool-2026-03-01 mcp-client-2025-04-04 mcp-client-2025-11-20
    mcp-client-2026-09-15 files-api-2025-04-14 skills-2025-10-02 fast-mode-2026-02-01 output-300k-2026-03-24
    managed-agents-2026-04-01 agent-memory-2026-07-22 computer-use-2024-10-22 computer-use-2025-01-24
    computer-use-2025-11-24 prompt-caching-2024-07-31 extended-cache-ttl-2025-04-11 cache-diagnosis-2026-04-07
    token-counting-2024-11-01 token-efficient-tools-2025-02-19 message-batches-2024-09-24 pdfs-2024-09-25
    output-128k-2025-02-19 context-1m-2025-08-07 interleaved-thinking-2025-05-14 dev-full-thinking-2025-05-14
    model-context-window-exceeded-2025-08-26 structured-outputs-2025-11-13 code-execution-2025-05-22
    fine-grained-tool-streaming-2025-05-14""".split()
)

_STABLE = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control",
    "stop_sequences", "stream", "metadata", "service_tier", "speed", "container", "inference_geo", "diagnostics",
}  # fmt: skip
_COUNTED = {
    "model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "speed",
}  # fmt: skip
# top-level field -> prefixes of the beta headers of which one makes it known
_BETA_FIELDS = {
    "context_management": ("context-management-", "compact-2026-01-12"),
    "compaction": ("compact-2026-09-04",),
    "thread": ("message-threads-",),
    "mcp_servers": ("mcp-client-",),
    "fallbacks": ("server-side-fallback-",),
    "fallback_credit_token": ("fallback-credit-",),
    "billing_policy": ("fallback-credit-",),
}
_TOOL_KEYS = {
    "name", "description", "input_schema", "type", "strict", "eager_input_streaming", "defer_loading",
    "input_examples", "allowed_callers", "cache_control",
}  # fmt: skip
_VENDOR_TOOLS = {
    "bash_20250124", "text_editor_20250124", "text_editor_20250429", "text_editor_20250728", "memory_20250818",
    "code_execution_20250522", "code_execution_20250825", "code_execution_20260120", "code_execution_20260521",
    "web_search_20250305", "web_search_20260209", "web_search_20260318", "web_fetch_20250910", "web_fetch_20260209",
    "web_fetch_20260309", "web_fetch_20260318", "tool_search_tool_bm25_20251119", "tool_search_tool_regex_20251119",
    "browser_toolset_20260801", "computer_toolset_20260801",
}  # fmt: skip
_BETA_TOOLS = {"advisor_20260301": ("advisor-tool-",), "mcp_toolset": ("mcp-client-",)}
_CLIENT_SIDE = ("bash_", "text_editor_", "memory_", "advisor_", "custom")
_EXTRA = "Extra inputs are not permitted"


def has_beta(betas: frozenset[str], prefixes: tuple[str, ...]) -> bool:
    return any(b.startswith(p) for b in betas for p in prefixes)


@dataclass(frozen=True, slots=True)
class Call:
    """What validation looks at. `continues_pause` says the conversation's last answer was a `pause_turn`, with its
    content; `counting` is set for `count_tokens`."""

    body: Mapping[str, Any]
    facts: list[MessageFacts]
    model: Model
    betas: frozenset[str]
    counting: bool = False
    pause_content: list[dict[str, Any]] | None = None

    def has_beta(self, prefixes: tuple[str, ...]) -> bool:
        return has_beta(self.betas, prefixes)


def check_headers(headers: Mapping[str, str], expected_key: str | None) -> frozenset[str]:
    """Authentication, API version and betas. Gives the betas of the request."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Refusal("authentication: a Bearer token is required", status=401, violation=False)
    if expected_key is not None and key.strip() != expected_key:
        raise Refusal("invalid bearer token", status=401, violation=False)
    version = headers.get("anthropic-version")
    if not version:
        raise Refusal("anthropic-version: header is required")
    if version not in VERSIONS:
        raise Refusal(f'anthropic-version: "{version}" is not a valid version')
    betas = frozenset(b.strip() for b in headers.get("anthropic-beta", "").split(",") if b.strip())
    for beta in sorted(betas - BETAS):
        raise Refusal(f"Unexpected value(s) `{beta}` for the `anthropic-beta` header")
    return betas


def check_plain(body: Mapping[str, Any], betas: frozenset[str]) -> None:
    """What a compatible server refuses that knows messages and tools only: the vendor's fields, betas, marks, thinking."""
    for name in ("thinking", "output_config", "context_management", "compaction", "cache_control"):
        if name in body:
            raise Refusal(f"{name}: {_EXTRA}", violation=False)
    if betas:
        raise Refusal("anthropic-beta: this server has no betas", violation=False)
    marked = [block for block in (*(body.get("system") or ()), *body.get("tools", ())) if "cache_control" in block]
    blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
    if marked or any("cache_control" in block for block in blocks):
        raise Refusal(f"cache_control: {_EXTRA}", violation=False)
    if any(block["type"] in ("thinking", "redacted_thinking") for block in blocks):
        raise Refusal("messages: thinking blocks are not supported", violation=False)


def check_fields(body: Mapping[str, Any], betas: frozenset[str], version: str, *, counting: bool = False) -> None:
    """Top-level fields: known, present, of the right type. Runs before the model is looked up."""
    known = _COUNTED if counting else _STABLE
    for name in body:
        if name in known or (name in SAMPLING and version == "2023-06-01"):
            continue
        if name in SAMPLING:
            raise Refusal(f"{name}: sampling parameters are not supported by API version {version}")
        prefixes = _BETA_FIELDS.get(name, ())
        if not has_beta(betas, prefixes):
            raise Refusal(f"{name}: {_EXTRA}")
    for name in ("model", "messages") if counting else ("model", "max_tokens", "messages"):
        if body.get(name) is None:
            raise Refusal(f"{name}: Field required")
    if not isinstance(body["model"], str):
        raise Refusal("model: Input should be a valid string")
    if not isinstance(body["messages"], list):
        raise Refusal("messages: Input should be a valid array")
    _types(body)


def check(call: Call) -> None:
    """Everything else that can be said without counting tokens."""
    _max_tokens(call)
    if any(name in call.body for name in SAMPLING) and not call.model.sampling:
        raise Refusal(f"sampling parameters are not supported by {call.model.id}")
    _tool_choice(call)
    _output(call)
    _thinking(call)
    _beta_features(call)
    _shapes(call)
    _roles(call)
    _pairing(call.facts)
    _references(call)
    _last(call)
    _marks(call)
    _media(call)
    if call.counting:
        _countable(call)


def check_window(tokens: int, window: int) -> None:
    if tokens > window:
        raise Refusal(f"prompt is too long: {tokens} tokens > {window} maximum", violation=False)


def _types(body: Mapping[str, Any]) -> None:
    if not isinstance(body.get("stream", False), bool | None):
        raise Refusal("stream: Input should be a valid boolean")
    for name in ("metadata", "thinking", "output_config", "tool_choice", "cache_control", "context_management"):
        if not isinstance(body.get(name), dict | None):
            raise Refusal(f"{name}: Input should be an object")
    if not isinstance(body.get("tools"), list | None):
        raise Refusal("tools: Input should be a valid array")
    for name in (body.get("metadata") or {}).keys() - {"user_id"}:
        raise Refusal(f"metadata.{name}: {_EXTRA}")
    sequences = body.get("stop_sequences") or []
    if not isinstance(sequences, list) or not all(isinstance(s, str) for s in sequences):
        raise Refusal("stop_sequences: Input should be a valid array")
    if not all(s.strip() for s in sequences):
        raise Refusal("stop_sequences: each stop sequence must contain non-whitespace")
    if len(body["messages"]) > MAX_MESSAGES:
        raise Refusal(f"messages: at most {MAX_MESSAGES} messages are allowed")
    if not body["messages"]:
        raise Refusal("messages: at least one message is required")
    _system(body.get("system"))


def _system(system: Any) -> None:
    if not isinstance(system, str | list | None):
        raise Refusal("system: Input should be a valid array or string")
    for index, block in enumerate(system if isinstance(system, list) else ()):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise Refusal(f"system.{index}: Input should be a text block")
        if not block["text"]:
            raise Refusal("system: text content blocks must be non-empty")
        for key in block.keys() - {"type", "text", "cache_control", "citations"}:
            raise Refusal(f"system.{index}.{key}: {_EXTRA}")
        _mark(block.get("cache_control"), f"system.{index}.cache_control")


def _mark(mark: Any, path: str) -> None:
    if mark is None:
        return
    try:
        check_mark(mark, path)
    except ValueError as fault:
        raise Refusal(str(fault)) from None


def _max_tokens(call: Call) -> None:
    if call.counting:
        return
    wanted, cap = call.body["max_tokens"], call.model.cap
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise Refusal("max_tokens: Input should be a valid integer")
    if wanted < 0:
        raise Refusal("max_tokens: Input should be greater than or equal to 0")
    if wanted > cap:
        raise Refusal(f"max_tokens: {wanted} > {cap}, which is the maximum allowed number of output tokens for {call.model.id}")


def check_tools(tools: list[Any], betas: frozenset[str]) -> None:
    """The definitions of the tools; kept apart from `check`, for they seldom change."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise Refusal(f"tools.{index}: Input should be an object")
        _tool(tool, f"tools.{index}", betas)
        name = tool.get("name")
        if name in names:
            raise Refusal("tools: Tool names must be unique.")
        if name is not None:
            names.add(name)


def _tool(tool: Mapping[str, Any], path: str, betas: frozenset[str]) -> None:
    kind = tool.get("type") or "custom"
    _mark(tool.get("cache_control"), f"{path}.cache_control")
    if kind in _BETA_TOOLS and has_beta(betas, _BETA_TOOLS[kind]):
        return
    if kind != "custom":
        if kind not in _VENDOR_TOOLS:
            raise Refusal(f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected tags")
        return
    name = tool.get("name")
    if not isinstance(name, str) or not TOOL_NAME.match(name):
        raise Refusal(f"{path}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
    for key in tool.keys() - _TOOL_KEYS:
        raise Refusal(f"{path}.custom.{key}: {_EXTRA}")
    if not isinstance(tool.get("description", ""), str | None):
        raise Refusal(f"{path}.custom.description: Input should be a valid string")
    _schema(tool.get("input_schema"), f"{path}.custom.input_schema")


def _schema(schema: Any, path: str) -> None:
    if schema is None:
        raise Refusal(f"{path}: Field required")
    if not isinstance(schema, dict):
        raise Refusal(f"{path}: Input should be an object")
    if schema.get("type") != "object":
        raise Refusal(f"{path}.type: Input should be 'object'")
    if not isinstance(schema.get("properties"), dict | None):
        raise Refusal(f"{path}: JSON schema is invalid. It must match JSON Schema draft 2020-12")
    if not isinstance(schema.get("required"), list | None):
        raise Refusal(f"{path}: JSON schema is invalid. It must match JSON Schema draft 2020-12")


def _tool_choice(call: Call) -> None:
    choice = call.body.get("tool_choice")
    if choice is None:
        return
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise Refusal("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    allowed = {"type"} | ({"disable_parallel_tool_use"} if kind != "none" else set())
    for key in choice.keys() - allowed - ({"name"} if kind == "tool" else set()):
        raise Refusal(f"tool_choice.{kind}.{key}: {_EXTRA}")
    if not call.body.get("tools"):
        raise Refusal("tool_choice may only be specified while providing `tools`.")
    if kind in ("any", "tool") and not call.model.forced_tools:
        raise Refusal(f"tool_choice: forced tool use (`{kind}`) is not supported by {call.model.id}")
    if kind == "tool" and choice.get("name") not in {t.get("name") for t in call.body["tools"]}:
        raise Refusal(f"tool_choice.name: Tool '{choice.get('name')}' not found in provided tools")


def _output(call: Call) -> None:
    config = call.body.get("output_config") or {}
    for key in config.keys() - {"effort", "format", "task_budget"}:
        raise Refusal(f"output_config.{key}: {_EXTRA}")
    if config.get("effort") is not None and config["effort"] not in EFFORTS:
        raise Refusal(f"output_config.effort: Input should be one of {', '.join(EFFORTS)}")
    form = config.get("format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form):
        raise Refusal("output_config.format: Input should be a json_schema format")
    budget = config.get("task_budget")
    if budget is None:
        return
    if not call.has_beta(("task-budgets-",)):
        raise Refusal(f"output_config.task_budget: {_EXTRA}")
    if not isinstance(budget, dict) or not isinstance(budget.get("total"), int) or budget["total"] < 20_000:
        raise Refusal("output_config.task_budget.total: Input should be greater than or equal to 20000")


def _thinking(call: Call) -> None:
    config = call.body.get("thinking")
    if config is None:
        return
    kind, model = config.get("type"), call.model
    if kind not in ("adaptive", "enabled", "disabled", "between_tools"):
        raise Refusal("thinking.type: Input should be 'adaptive', 'between_tools', 'disabled' or 'enabled'")
    if kind not in model.thinking:
        raise Refusal(f"thinking.type: `{kind}` is not supported by {model.id}")
    keys = {"adaptive": {"display"}, "enabled": {"budget_tokens", "display"}}.get(kind, set())
    for key in config.keys() - keys - {"type", "block_binding"}:
        raise Refusal(f"thinking.{kind}.{key}: {_EXTRA}")
    if config.get("display") not in (None, "summarized", "omitted"):
        raise Refusal(f"thinking.{kind}.display: Input should be 'summarized' or 'omitted'")
    if kind == "enabled":
        _budget(config.get("budget_tokens"), call)
    effort = (call.body.get("output_config") or {}).get("effort")
    if kind == "disabled" and model.disabled_needs_low_effort and effort in ("xhigh", "max"):
        raise Refusal(f"thinking.type: `disabled` requires effort `high` or lower on {model.id}")
    _binding(config.get("block_binding"), call)


def _budget(budget: Any, call: Call) -> None:
    if not isinstance(budget, int) or budget < 1024:
        raise Refusal("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
    if not call.counting and budget >= call.body["max_tokens"]:
        raise Refusal("`max_tokens` must be greater than `thinking.budget_tokens`")


def _binding(binding: Any, call: Call) -> None:
    if binding is None:
        return
    if not call.has_beta(("thinking-binding-controls-",)):
        raise Refusal(f"thinking.block_binding: {_EXTRA}")
    if not isinstance(binding, dict) or binding.get("prefix_mismatch_behavior") not in (None, "error", "drop_block"):
        raise Refusal("thinking.block_binding.prefix_mismatch_behavior: Input should be 'error' or 'drop_block'")


def _beta_features(call: Call) -> None:
    body = call.body
    if body.get("speed") not in (None, "standard", "fast"):
        raise Refusal("speed: Input should be 'standard' or 'fast'")
    if body.get("service_tier") not in (None, "auto", "standard_only"):
        raise Refusal("service_tier: Input should be 'auto' or 'standard_only'")
    _edits(call)
    if body.get("thread") is not None:
        for name in ("cache_control", "context_management", "fallbacks"):
            if body.get(name) is not None:
                raise Refusal(f"thread: cannot be combined with {name}")
    if body.get("compaction") is not None:
        _summarize(call)


def _edits(call: Call) -> None:
    management = call.body.get("context_management")
    if management is None:
        return
    for index, edit in enumerate(management.get("edits") or ()):
        path = f"context_management.edits.{index}"
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind in ("clear_tool_uses_20250919", "clear_thinking_20251015"):
            needed: tuple[str, ...] = ("context-management-",)
        elif kind == "compact_20260112":
            needed = ("compact-2026-01-12",)
        else:
            raise Refusal(f"{path}: Input tag '{kind}' does not match any of the expected tags")
        if not call.has_beta(needed):
            raise Refusal(f"{path}: {_EXTRA}")
        if kind == "compact_20260112" and not call.model.compacts:
            raise Refusal(f"{path}: compaction is not supported by {call.model.id}")
        trigger = edit.get("trigger") or {}
        if kind == "compact_20260112" and trigger.get("value", 150_000) < 50_000:
            raise Refusal(f"{path}.trigger.value: Input should be greater than or equal to 50000")


def _summarize(call: Call) -> None:
    body, wanted = call.body, call.body["compaction"]
    if not isinstance(wanted, dict) or wanted.get("type") != "summarize":
        raise Refusal("compaction.type: Input should be 'summarize'")
    for key in wanted.keys() - {"type", "instructions"}:
        raise Refusal(f"compaction.{key}: {_EXTRA}")
    if not call.model.compacts:
        raise Refusal(f"compaction: not supported by {call.model.id}")
    for name in ("context_management", "stop_sequences"):
        if body.get(name):
            raise Refusal(f"compaction: cannot be combined with {name}")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise Refusal("compaction: cannot be combined with a forced tool_choice")
    if (body.get("output_config") or {}).get("format"):
        raise Refusal("compaction: cannot be combined with output_config.format")
    last = call.facts[-1]
    if last.role == "assistant" and last.tool_uses:
        raise Refusal("compaction: the conversation ends on an unanswered tool call", error_code="compaction_incomplete_turn")
    if len(call.facts) == 1 and last.compaction is not None:
        raise Refusal("compaction: there is nothing to summarize", error_code="compaction_nothing_to_summarize")


def _shapes(call: Call) -> None:
    for index, facts in enumerate(call.facts):
        if facts.error:
            path, text = facts.error
            raise Refusal(f"messages.{index}{path}: {text}")
        for path, prefixes in facts.betas:
            if not call.has_beta(prefixes):
                raise Refusal(f"messages.{index}{path}: {_EXTRA} without the beta header `{prefixes[0]}…`")
        if facts.compaction is not None and (facts.compaction != 0 or (index and call.has_beta(("compact-2026-09",)))):
            raise Refusal(
                f"messages.{index}.content.{facts.compaction}: a compaction block must come first",
                error_code="compaction_block_misplaced",
            )


def _roles(call: Call) -> None:
    first = call.facts[0]
    if first.role != "user" and first.compaction is None:
        raise Refusal("messages: first message must use the user role")
    before = ""
    for index, facts in enumerate(call.facts):
        if facts.role == "system":
            if not call.model.system_messages:
                raise Refusal(f"messages.{index}.role: role 'system' is not supported by {call.model.id}")
            if before not in ("user", "system"):
                raise Refusal(f"messages.{index}: a system message must follow a user message")
        before = facts.role


def _turns(all_facts: list[MessageFacts]) -> list[list[int]]:
    """Indices of messages, neighbours of one role together, system messages left out."""
    turns: list[list[int]] = []
    for index, facts in enumerate(all_facts):
        if facts.role == "system":
            continue
        if turns and all_facts[turns[-1][0]].role == facts.role:
            turns[-1].append(index)
        else:
            turns.append([index])
    return turns


def _references(call: Call) -> None:
    """A result may name deferred tools of this very request, and not all tools may be deferred."""
    tools = call.body.get("tools") or ()
    deferred = {tool.get("name") for tool in tools if tool.get("defer_loading")}
    if deferred and len(deferred) == len(tools):
        raise Refusal("tools: At least one tool must have defer_loading=false.")
    for index, facts in enumerate(call.facts):
        for block, name in facts.references:
            if name not in deferred:
                raise Refusal(f"messages.{index}.content.{block}: Tool reference '{name}' not found in available tools")


def _pairing(all_facts: list[MessageFacts]) -> None:
    """Each tool_use answered once, in the very next user turn, before anything else of it."""
    seen: set[str] = set()
    asked: list[str] = []
    asked_at = -1
    for turn in _turns(all_facts):
        role = all_facts[turn[0]].role
        if role == "user":
            _answers(all_facts, turn, asked, asked_at)
            asked = []
            continue
        for index in turn:
            for position, name in all_facts[index].tool_uses:
                if name in seen:
                    raise Refusal(f"messages.{index}.content.{position}: `tool_use` ids must be unique: {name}")
                seen.add(name)
                asked.append(name)
                asked_at = index
    if asked:
        raise _unanswered(asked_at, asked)


def _answers(all_facts: list[MessageFacts], turn: list[int], asked: list[str], asked_at: int) -> None:
    given: set[str] = set()
    late: set[str] = set()
    other = False
    for index in turn:
        facts = all_facts[index]
        for position, name in facts.results:
            path = f"messages.{index}.content.{position}"
            if name not in asked:
                raise Refusal(
                    f"{path}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each `tool_result` block "
                    "must have a corresponding `tool_use` block in the previous message."
                )
            if name in given:
                raise Refusal(
                    f"{path}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {name}"
                )
            given.add(name)
            if other or (facts.other is not None and position > facts.other):
                late.add(name)
        other = other or facts.other is not None
    missing = [name for name in asked if name not in given or name in late]
    if missing:
        raise _unanswered(asked_at, missing)


def _unanswered(index: int, ids: list[str]) -> Refusal:
    return Refusal(
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _last(call: Call) -> None:
    last = call.facts[-1]
    if last.role != "assistant" or call.body.get("compaction") is not None:
        return
    if len(call.facts) == 1 and last.compaction is not None:
        raise Refusal("messages: a compaction block alone leaves nothing to answer")
    text = last.blocks[-1].get("text") if last.blocks[-1]["type"] == "text" else None
    if text is not None and not text.strip():
        raise Refusal("messages: final assistant content must contain non-whitespace text")
    if call.pause_content is None:
        raise Refusal("This model does not support assistant message prefill. The conversation must end with a user message.")
    sent = [b for i in _turns(call.facts)[-1] for b in call.facts[i].blocks][-len(call.pause_content) :]
    if len(sent) != len(call.pause_content) or not all(map(_kept, call.pause_content, sent)):
        raise Refusal("messages: the assistant message of a `pause_turn` must be sent back unchanged")


def _kept(issued: Mapping[str, Any], sent: Mapping[str, Any]) -> bool:
    return all(sent.get(key) == value for key, value in issued.items())


def _marks(call: Call) -> None:
    body = call.body
    _mark(body.get("cache_control"), "cache_control")
    system = body.get("system")
    listed = [*(body.get("tools") or ()), *(system if isinstance(system, list) else ())]
    ttls = [b["cache_control"].get("ttl", "5m") for b in listed if b.get("cache_control")]
    ttls += [ttl for facts in call.facts for _, ttl, _ in facts.marks]
    if body.get("cache_control") is not None:
        ttls.append(body["cache_control"].get("ttl", "5m"))
    if len(ttls) > MAX_MARKS:
        raise Refusal(f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {len(ttls)}.")
    if "5m" in ttls and "1h" in ttls[ttls.index("5m") :]:
        raise Refusal("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")


def _media(call: Call) -> None:
    images = sum(facts.images for facts in call.facts)
    if images > call.model.images:
        raise Refusal(f"messages: too many images: {images} images > {call.model.images} maximum")
    side = 2000 if images > 20 else 8000
    oversized = []
    for index, facts in enumerate(call.facts):
        if facts.too_large:
            path, text = facts.too_large
            raise Refusal(f"messages.{index}{path}: {text}", violation=False)
        oversized += [f"messages.{index}.content.{block}" for block, longest in facts.sides if longest > side]
    if oversized:
        raise Refusal(
            f"{oversized[0]}: image dimensions exceed the maximum of {side} pixels",
            error_code="image_dimensions_too_large",
            details={"max_side_length_pixels": side, "paths": oversized},
            violation=False,
        )


def _countable(call: Call) -> None:
    for index, facts in enumerate(call.facts):
        if facts.remote_media is not None:
            raise Refusal(f"messages.{index}.content.{facts.remote_media}: url and file sources cannot be counted")
    for index, tool in enumerate(call.body.get("tools") or ()):
        if not (tool.get("type") or "custom").startswith(_CLIENT_SIDE):
            raise Refusal(f"tools.{index}: server tools cannot be counted")
