"""Command lines and answers of schedulers without secrets."""

from __future__ import annotations

import os
import re

_NAMES = r"key|token|secret|passw|passphrase|credential|dashboard_prefix"
_NAME = re.compile(_NAMES, re.IGNORECASE)
_VALUE = r"""\"(?:\\.|[^"\\])*"?|'[^']*'?|[^\s"',;&]+"""
# PBS reports all variables of a job, as JSON or as lines, and each variable may be a secret.
_VARIABLES = re.compile(
    r'("Variable_List"\s*:\s*\{|Variable_List = )'
    r'(?:(?<=\{)(?:[^{}"]|"(?:\\.|[^"\\])*(?:"|\Z))*(?:\}|\Z)|(?<= ).*?(?=\n    [\w.]+ = |\nJob Id: |\Z))',
    re.DOTALL,
)
_SECRETS = (
    _VARIABLES,
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL),
    # NAME=VALUE, "name": "value"; --name VALUE
    re.compile(rf"""((?<![\w.-])[\w.-]*(?:{_NAMES})[\w.-]*["']?\s*[=:]\s*)(?:{_VALUE})""", re.IGNORECASE),
    re.compile(rf"(--[\w-]*(?:{_NAMES})[\w-]*\s+)(?!-)(?:{_VALUE})", re.IGNORECASE),
    re.compile(r"(\bBearer\s+)\S+", re.IGNORECASE),
    # https://user:password@host
    re.compile(r"(://)[^/@\s]+(?=@)"),
)
_HIDDEN = "***"
# Minimum length of a variable's value, because shorter values occur in other words.
_SHORTEST = 6


def redacted(text: str) -> str:
    """Return a text with ``***`` for values with the name of a secret, and for secrets among this process's variables.

    Examples
    --------
    >>> redacted("sbatch --export=API_KEY=abc --token xyz job.sh")
    'sbatch --export=API_KEY=*** --token *** job.sh'
    """
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{_HIDDEN}", text)
    # Another thread may remove a variable meanwhile.
    for name in filter(_NAME.search, list(os.environ)):
        if len(value := os.environ.get(name, "")) >= _SHORTEST:
            text = text.replace(value, _HIDDEN)
    return text
