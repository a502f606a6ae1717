"""Messages that old logs hold without an identity of their own.

Their bytes stay as they are and nothing writes them any more.  What a reader sees is the
message in today's shape, with the id ``legacy-message:<session id>:<seq>``; the rule for
replacements is in :mod:`sessionstore.history`, which knows the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sessionstore.lossless import Json

__all__ = ["RETIRED_MESSAGES", "legacy_message", "legacy_message_id"]

RETIRED_MESSAGES: Final = frozenset({"context/message", "prompt/blocked"})
"""Types that stood on the surface once: with a surface marker, their logs are unsupported."""


def legacy_message_id(session_id: str, seq: int) -> str:
    """The id that the message without identity at *seq* is seen with."""
    return f"legacy-message:{session_id}:{seq}"


def legacy_message(event_type: str, data: Json) -> dict[str, Json] | None:
    """Return the message that a pre-identity payload stands for, without its id; ``None`` for other payloads.

    A payload that is merely broken is not taken for an old one: the fields of an old message have to be there,
    and none of a new one.
    """
    if not isinstance(data, Mapping) or "message" in data or "content" not in data:
        return None
    match event_type:
        case "user/message" | "steering/message" if "source" in data and "id" not in data and "role" not in data:
            return {"role": "user", "source": data["source"], "content": data["content"]}
        case "assistant/message" if "provenance" in data:
            provenance = data["provenance"]
            known = provenance if isinstance(provenance, Mapping) else {}
            return {"role": "assistant", "source": {**known, "kind": "model"}, "content": data["content"]}
        case "tool/result" if "callId" in data:
            block: dict[str, Json] = {
                "type": "tool-result",
                "toolCallId": data["callId"],
                "content": data["content"],
            }
            if "isError" in data:
                block["isError"] = data["isError"]
            return {"role": "user", "source": {"kind": "tool", "callId": data["callId"]}, "content": [block]}
        case _:
            return None
