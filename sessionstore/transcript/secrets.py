"""What a secret looks like.

A short list of our own, for tokens whose form is public and hard to mistake, and for
values that stand behind a telling name.  Where the detect-secrets plugins are
installed (extra ``redact``), their patterns apply too.  Entropy is not measured: it
would take away hashes and identifiers, which a transcript is full of.

The list is documented in docs/cli.md; a test keeps the two equal.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Final

__all__ = ["PATTERNS", "patterns"]

_NAME = (
    r"(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|access[_-]?token|"
    r"refresh[_-]?token|private[_-]?key|client[_-]?secret|credentials?|[_-]token)"
)

#: Name, and pattern; group ``keep`` is what stands before the secret and stays.
PATTERNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "private key",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:[\s\S]{0,20000}?-----END [A-Z0-9 ]*PRIVATE KEY"
            r"(?: BLOCK)?-----|[\s\S]{0,20000})"
        ),
    ),
    ("Anthropic or OpenAI key", re.compile(r"\bsk-[A-Za-z0-9][A-Za-z0-9_-]{18,}")),
    ("AWS access key id", re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b")),
    ("Google API key", re.compile(r"\bAIza[0-9A-Za-z_-]{35}")),
    ("Google OAuth token", re.compile(r"\bya29\.[0-9A-Za-z_-]{20,}")),
    ("GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})")),
    ("GitLab token", re.compile(r"\bgl(?:pat|dt|rt|cbt|ptt|soat)-[A-Za-z0-9_-]{20,}")),
    ("Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    ("npm token", re.compile(r"\bnpm_[A-Za-z0-9]{36}")),
    ("PyPI token", re.compile(r"\bpypi-[A-Za-z0-9_-]{50,}")),
    ("SendGrid key", re.compile(r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}")),
    ("Slack token", re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}")),
    ("Slack webhook", re.compile(r"(?P<keep>https://hooks\.slack\.com/)(?:services|workflows)/[A-Za-z0-9/_-]+")),
    ("Stripe key", re.compile(r"\b[rs]k_(?:live|test)_[0-9a-zA-Z]{16,}")),
    ("JSON web token", re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?")),
    (
        "password in a URL",
        re.compile(r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/?#@\"'<>]{0,100}:)[^\s/?#@\"'<>]{1,200}(?=@)"),
    ),
    (
        "authorization header",
        re.compile(
            r"(?i)(?P<keep>\b(?:proxy-)?authorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?:bearer|basic|token|digest)?\s*)[^\s\"'\\,;]{8,}"
        ),
    ),
    ("bearer token", re.compile(r"(?P<keep>\b[Bb]earer\s+)[A-Za-z0-9._~+/-]{16,}=*")),
    (
        "value of a telling name",
        re.compile(
            rf"(?i)(?P<keep>{_NAME}[\"'\\]{{0,4}}\s{{0,3}}(?::|=>?)\s{{0,3}}(?:[\"'\\]{{1,4}})?)"
            r"(?!(?:\$|<|\{|null\b|none\b|true\b|false\b|\[redacted))[^\s\"'\\,;)}\]]{6,}"
        ),
    ),
)


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Our patterns and, where they are installed, those of the detect-secrets plugins."""
    return PATTERNS + _from_detect_secrets()


def _from_detect_secrets() -> tuple[tuple[str, re.Pattern[str]], ...]:
    try:
        # By name: the package is optional, slow to import, and ships no types.
        plugins = import_module("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    except ImportError:
        return ()
    found = (
        (str(name), expression)
        for name, plugin in sorted(plugins.items())
        for expression in getattr(plugin, "denylist", None) or ()
    )
    return tuple((name, expression) for name, expression in found if isinstance(expression, re.Pattern))
