"""Secrets and tool results stay out of what is exported on request; the log is never changed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore import Event
from sessionstore.transcript import build_transcript
from sessionstore.transcript.redact import HIDDEN, public_events, redact, redact_text
from sessionstore.transcript.secrets import PATTERNS, patterns
from tests.cli.logs import Log, demo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Result

# Made up, in the public form of each.
SECRETS = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow" + "A" * 60 + "\n-----END RSA PRIVATE KEY-----",
    "Anthropic or OpenAI key": "sk-ant-api03-" + "a1B2" * 12,
    "AWS access key id": "AKIA" + "ABCDEFGH12345678",
    "Google API key": "AIza" + "a" * 35,
    "Google OAuth token": "ya29." + "a" * 40,
    "GitHub token": "ghp_" + "a" * 36,
    "GitLab token": "glpat-" + "a" * 20,
    "Hugging Face token": "hf_" + "a" * 34,
    "npm token": "npm_" + "a" * 36,
    "PyPI token": "pypi-" + "a" * 60,
    "SendGrid key": "SG." + "a" * 22 + "." + "b" * 43,
    "Slack token": "xoxb-" + "1234567890-abcdef",
    "Slack webhook": "https://hooks.slack.com/services/T000/B000/XXXX",
    "Stripe key": "sk_live_" + "a" * 24,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
    "password in a URL": "postgres://user:hunter2hunter2@db.example/app",
    "authorization header": "Authorization: Basic dXNlcjpwYXNzd29yZA==",
    "bearer token": "curl with Bearer abcdefghijklmnopqrstuvwxyz",
    "value of a telling name": 'DB_PASSWORD="correct-horse-battery"',
}


def events_of(log: Log) -> list[Event]:
    """The events of a log."""
    return [Event.from_json(json.dumps(event)) for event in log.events]


@pytest.mark.parametrize("kind", [name for name, _ in PATTERNS])
def test_each_kind_of_secret_is_found_in_running_text(kind: str) -> None:
    """The secret goes, what stands around it stays, and a mark says what it was."""
    secret = SECRETS[kind]
    clean = redact_text(f"before {secret} after")
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "[redacted: " in clean
    core = secret.split("-----")[2] if kind == "private key" else secret.split("/services")[-1].split(" ")[-1][-8:]
    if kind != "password in a URL":
        assert core not in clean
    else:
        assert "hunter2" not in clean


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 128000, inputTokens: 3",
        "the password is stored elsewhere",
        "password = None",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "0198c0de-1234-7abc-8def-0123456789ab",
        "https://docs.python.org/3/library/secrets.html",
        "export API_KEY=$KEY_FROM_VAULT",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Hashes, ids, counts, links and talk about secrets are no secrets."""
    assert redact_text(text) == text


@given(st.text(max_size=300))
def test_redacting_again_changes_nothing(text: str) -> None:
    """A mark is not taken for a secret."""
    once = redact_text(text + " password=hunter2hunter2 " + text)
    assert redact_text(once) == once


@pytest.mark.slow
def test_long_text_without_a_blank_is_redacted_in_linear_time() -> None:
    """Quadratic work on half a megabyte would run into the timeout of the test run."""
    for unit in ("a-b_c.", "x", "eyJa.", "sk=:", "=\"' ", "://a:b"):
        redact_text((unit * 500_000)[:500_000])


def test_the_patterns_of_the_plugins_apply_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra `redact` adds to our list, and takes nothing from it."""
    module = tmp_path / "detect_secrets" / "core" / "plugins" / "util.py"
    module.parent.mkdir(parents=True)
    for folder in (module.parent, module.parent.parent, module.parent.parent.parent):
        (folder / "__init__.py").write_text("", encoding="utf-8")
    module.write_text(
        "import re\nclass P:\n    denylist = [re.compile('qqq[0-9]+'), 'not a pattern']\nclass N:\n    pass\n"
        "def get_mapping_from_secret_type_to_class():\n    return {'Q key': P, 'none': N}\n",
        encoding="utf-8",
    )
    for name in [name for name in sys.modules if name.startswith("detect_secrets")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    patterns.cache_clear()
    try:
        assert redact_text(f"qqq123 {SECRETS['npm token']}") == "[redacted: Q key] [redacted: npm token]"
    finally:
        patterns.cache_clear()
        for name in [name for name in sys.modules if name.startswith("detect_secrets")]:
            del sys.modules[name]


def test_a_secret_spread_over_deltas_is_found() -> None:
    """No delta alone looks like a secret; together they do, and the whole comes out redacted."""
    log = Log()
    log.begin("go")
    log.steps()
    secret = SECRETS["GitHub token"]
    pieces = ["the token is ", secret[:3], secret[3:11], secret[11:], " and that is it"]
    for piece in pieces:
        log.chunk({"type": "text-delta", "index": 0, "text": piece})
        log.chunk({"type": "tool-call-delta", "index": 1, "id": "c", "argumentsDelta": piece})
    log.done()
    log.end()
    values = list(public_events(events_of(log), secrets=True, results=False))
    text = json.dumps(values)
    assert secret not in text
    deltas: list[Any] = [value["data"] for value in values if value["type"] == "assistant/chunk"]
    for key in ("text", "argumentsDelta"):
        said = "".join(delta["chunk"].get(key, "") for delta in deltas)
        assert said == "the token is [redacted: GitHub token] and that is it"
    assert [value["seq"] for value in values] == list(range(len(log.events)))


def test_values_behind_telling_keys_are_taken_out_whole() -> None:
    """In JSON the key says what a value is, however short it is."""
    log = Log()
    log.add("plugin/state", {"login": {"password": "x1", "user": "ann"}, "list": [{"api_key": "k"}], "tokens": 5})
    (value,) = public_events(events_of(log), secrets=True, results=False)
    data: Any = value["data"]
    assert data["login"] == {"password": "[redacted: value of a telling name]", "user": "ann"}
    assert data["list"][0]["api_key"].startswith("[redacted")
    assert data["tokens"] == 5


def test_without_results_keeps_everything_else() -> None:
    """Only what tools returned is replaced; outcome, order and arguments stay."""
    values = list(public_events(events_of(demo()), secrets=False, results=True))
    results: list[Any] = [value for value in values if value["type"] == "tool/result"]
    assert len(results) == 5
    for value in results:
        assert value["data"]["message"]["content"][0]["content"] == [{"type": "text", "text": HIDDEN}]
    others = [value for value in values if value["type"] != "tool/result"]
    assert others == [event for event in demo().events if event["type"] != "tool/result"]


def test_a_transcript_is_redacted_everywhere() -> None:
    """Titles, messages, arguments, results, plans and notes."""
    log = Log()
    secret = SECRETS["GitHub token"]
    log.begin(f"use {secret}")
    log.add("session/title", {"title": f"with {secret}", "messageSeqs": [], "source": {"kind": "user"}})
    log.steps()
    log.say(f"ok {secret}", ("c", "run", {"t": secret}), reasoning=f"hm {secret}")
    log.use("c", "run", {"t": secret}, f"got {secret}")
    log.add("todo/write", {"todos": [{"content": secret, "status": "pending"}]})
    log.done()
    log.end("error", step=1, message=f"bad {secret}")
    transcript = build_transcript("x", events_of(log))
    redact(transcript)
    assert secret not in repr(transcript)


@pytest.mark.parametrize("form", ["md", "html", "json", "jsonl"])
def test_exports_are_redacted_and_the_log_is_not(form: str, run: Callable[..., Result], root: Path) -> None:
    """--redact takes the secret out of every format and leaves the stored bytes alone."""
    (log,) = root.glob("*/*/session.jsonl")
    before = log.read_bytes()
    plain = run("export", "demo", "--format", form).out
    clean = run("export", "demo", "--format", form, "--redact", "--hide-results").out
    assert "sk-test-0123456789abcdefghij" in plain
    assert "sk-test-0123456789abcdefghij" not in clean
    assert "TIMEOUT after 20 s" in plain
    assert "TIMEOUT after 20 s" not in clean
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [("show",), ("show", "--full"), ("show", "--raw"), ("show", "--json"), ("tail",), ("tail", "--raw", "-n", "200")],
)
def test_every_command_that_prints_contents_can_hide_them(
    arguments: tuple[str, ...], run: Callable[..., Result]
) -> None:
    """The same two options stand on show and tail, in every form."""
    command, *options = arguments
    everything = run(command, "demo", *options).out
    hidden = run(command, "demo", *options, "--redact", "--hide-results").out
    assert hidden != everything
    assert "sk-test" not in hidden
    assert "its outcome is unknown" not in hidden
