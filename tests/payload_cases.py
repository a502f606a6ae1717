"""Payloads of every core event type: strategies for random ones, and one plain example of each shape."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st

JsonDict: TypeAlias = dict[str, Any]

TEXT = st.text(max_size=8)
NAME = st.text(min_size=1, max_size=8)
NUMBER = st.integers(0, 10**6)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def shape(required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]) -> Any:
    """An object with all *required* and any of the *optional* fields."""
    return st.fixed_dictionaries(required, optional=optional)


def variants(field: str, kinds: dict[str, Any], *, closed: bool = False) -> st.SearchStrategy[JsonDict]:
    """A member of a tagged union, and of an open one also a kind that nobody knows."""

    def known(kind: str) -> st.SearchStrategy[JsonDict]:
        return st.builds(_tagged, st.just(field), st.just(kind), kinds[kind])

    odd = st.builds(_tagged, st.just(field), NAME.filter(lambda name: name not in kinds), ODD_FIELDS)
    return st.one_of(*map(known, kinds), *(() if closed else (odd,)))


def _tagged(field: str, kind: str, rest: JsonDict) -> JsonDict:
    return {**rest, field: kind}


def _tool_message(id_: str, call: str, content: list[JsonDict], error: JsonDict) -> JsonDict:
    block = {"type": "tool-result", "toolCallId": call, "content": content, **error}
    return {"source": {"kind": "tool", "callId": call}, "content": [block], "role": "user", "id": id_}


ODD_FIELDS: st.SearchStrategy[JsonDict] = st.dictionaries(TEXT, ANY_JSON)
NOTHING: st.SearchStrategy[JsonDict] = st.just({})
BLOCK: st.SearchStrategy[JsonDict] = st.deferred(
    lambda: variants(
        "type",
        {
            "text": shape({"text": TEXT}),
            "reasoning": shape({"text": TEXT}),
            "tool-call": shape({"id": TEXT, "name": TEXT, "arguments": TEXT}),
            "tool-result": shape({"toolCallId": TEXT, "content": st.lists(BLOCK, max_size=2)}, isError=st.booleans()),
            "image": shape(
                {
                    "attachment": shape(
                        {
                            "attachmentId": TEXT,
                            "mediaType": st.sampled_from(["image/png", "image/jpeg", "image/webp", "image/gif"]),
                            "bytes": NUMBER,
                            "width": NUMBER,
                            "height": NUMBER,
                        },
                        name=TEXT,
                        originalDimensions=shape({"width": NUMBER, "height": NUMBER}),
                    )
                }
            ),
        },
    )
)
MODEL_SOURCE = shape({"kind": st.just("model"), "provider": NAME, "model": NAME}, replayState=ANY_JSON)
SOURCE = MODEL_SOURCE | variants(
    "kind",
    {
        "user": shape({}, rpcId=TEXT),
        "plugin": shape({"plugin": TEXT}),
        "tool": shape({"callId": NAME}),
        "model": NOTHING,
    },
).filter(lambda source: source["kind"] != "model")
BLOCKS = st.lists(BLOCK, max_size=3)
USER_MESSAGE = shape({"id": NAME, "role": st.just("user"), "content": BLOCKS, "source": SOURCE})
ASSISTANT_MESSAGE = shape({"id": NAME, "role": st.just("assistant"), "content": BLOCKS, "source": MODEL_SOURCE})
TOOL_MESSAGE = st.builds(_tool_message, NAME, NAME, BLOCKS, shape({}, isError=st.booleans()))
USAGE = shape(
    {"inputTokens": NUMBER, "outputTokens": NUMBER},
    cacheReadTokens=NUMBER,
    cacheWriteTokens=NUMBER,
    reasoningTokens=NUMBER,
)
FAILURE = shape(
    {"message": TEXT, "code": TEXT},
    status=NUMBER,
    providerRetryAfterMs=NUMBER | st.floats(0.1, 9.9),
    requestId=TEXT,
)
FINISH = variants(
    "kind",
    {
        "stop": NOTHING,
        "tool-calls": NOTHING,
        "max-tokens": NOTHING,
        "aborted": shape({"failure": FAILURE}),
        "error": shape({"failure": FAILURE}),
    },
)
CHUNK = variants(
    "type",
    {
        "block-start": shape({"index": NUMBER, "blockType": TEXT}),
        "text-delta": shape({"index": NUMBER, "text": TEXT}),
        "reasoning-delta": shape({"index": NUMBER, "text": TEXT}),
        "tool-call-delta": shape({"index": NUMBER, "id": TEXT, "argumentsDelta": TEXT}, name=TEXT),
        "block-end": shape({"index": NUMBER, "block": BLOCK}),
        "usage": shape({"usage": USAGE}),
        "finish": shape({"reason": FINISH}, replayState=ANY_JSON),
    },
    closed=True,
)
TRIGGER = variants(
    "kind", {"message": shape({"source": SOURCE}), "retry": NOTHING, "injection": shape({"source": SOURCE})}
)
CAUSE = st.sampled_from(["user", "parent", "disposed", "legacy"]).map(lambda kind: {"kind": kind}) | st.just(
    {"kind": "hook", "reason": "policy"}
)
END_REASON = variants(
    "kind",
    {
        "completed": NOTHING,
        "aborted": shape({}, reason=CAUSE),
        "error": shape({"step": NUMBER, "failure": FAILURE})
        | shape({"step": NUMBER, "message": TEXT}, code=TEXT)
        | shape({"error": FAILURE}),
        "disposed": NOTHING,
        "blocked": NOTHING,
        "max-tokens": NOTHING,
        "interrupted": NOTHING,
    },
)
CONFIG = shape(
    {"provider": NAME, "model": NAME, "reasoningEffort": NAME, "maxTokens": NUMBER},
    temperature=ANY_JSON,
    stop=ANY_JSON,
)
HEADER = shape(
    {"config": CONFIG},
    adapterDefaults=shape({}, reasoningEffort=st.just(True), maxTokens=st.just(True)),
    system=ANY_JSON,
    tools=ANY_JSON | st.lists(shape({"name": TEXT, "description": TEXT, "parameters": st.just({})}), max_size=2),
    messagePrefix=ANY_JSON,
)
TURN, STEP = {"turn": NUMBER}, {"turn": NUMBER, "step": NUMBER}
STATUS = st.sampled_from(["pending", "in_progress", "completed"])

PAYLOAD_STRATEGIES: dict[str, st.SearchStrategy[JsonDict]] = {
    "turn/start": shape(TURN, trigger=TRIGGER),
    "turn/end": shape({**TURN, "reason": END_REASON}),
    "step/start": shape(STEP),
    "step/end": shape(STEP, extra=ANY_JSON),
    "user/message": USER_MESSAGE,
    "assistant/chunk": shape({**STEP, "chunk": CHUNK}),
    "assistant/message": shape({**STEP, "message": ASSISTANT_MESSAGE}, usage=USAGE, interrupted=st.just(True)),
    "tool/call": shape({**STEP, "callId": TEXT, "name": TEXT, "arguments": TEXT}),
    "tool/result": shape({**STEP, "message": TOOL_MESSAGE}, error=shape({"name": TEXT, "code": TEXT}), meta=ANY_JSON),
    "steering/message": shape({**TURN, "message": USER_MESSAGE}),
    "todo/write": shape({"todos": st.lists(shape({"content": TEXT, "status": STATUS}), max_size=3)}),
    "request/header": shape({"header": HEADER, "reason": st.sampled_from(["initial", "resume", "change"])}),
    "request/context": shape({"provider": TEXT, "model": TEXT}, contextWindow=NUMBER),
    "session/end-seed": shape({}, extra=ANY_JSON),
    "recovery/lost": shape({"reason": TEXT, "offset": NUMBER, "length": NUMBER}),
}

TYPED_PAYLOADS: st.SearchStrategy[tuple[str, JsonDict]] = st.one_of(
    [st.tuples(st.just(name), payload) for name, payload in PAYLOAD_STRATEGIES.items()]
)

USER: JsonDict = {"id": "m1", "role": "user", "content": [{"type": "text", "text": "hi"}], "source": {"kind": "user"}}
ASSISTANT: JsonDict = {
    "role": "assistant",
    "content": [{"type": "text", "text": "hello"}],
    "source": {"kind": "model", "provider": "p", "model": "m"},
    "id": "m2",
}
RESULT: JsonDict = {
    "source": {"kind": "tool", "callId": "c1"},
    "content": [{"type": "tool-result", "toolCallId": "c1", "content": [{"type": "text", "text": "ok"}]}],
    "role": "user",
    "id": "m3",
}
EXAMPLES: dict[str, JsonDict] = {
    "turn/start": {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}},
    "turn/end": {"turn": 1, "reason": {"kind": "completed"}},
    "step/start": {"turn": 1, "step": 1},
    "step/end": {"turn": 1, "step": 1},
    "user/message": USER,
    "assistant/chunk": {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "he"}},
    "assistant/message": {"turn": 1, "step": 1, "message": ASSISTANT, "usage": {"inputTokens": 1, "outputTokens": 2}},
    "tool/call": {"turn": 1, "step": 1, "callId": "c1", "name": "bash", "arguments": "{}"},
    "tool/result": {"turn": 1, "step": 1, "message": RESULT},
    "steering/message": {"turn": 1, "message": USER},
    "todo/write": {"todos": [{"content": "a", "status": "pending"}]},
    "request/header": {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"},
    "request/context": {"provider": "p", "model": "m", "contextWindow": 1000},
    "session/end-seed": {},
    "recovery/lost": {"reason": "r", "offset": 1, "length": 2},
}
