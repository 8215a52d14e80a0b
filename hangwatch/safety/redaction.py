"""Takes secrets out of command lines, texts and source before they enter our data.

Reports are passed around. A secret in a command line, the text of an exception or a line of
source is replaced by ``[redacted]`` where it comes in (the supervisor's command, /proc, the
agent's record of an exception, the reader of source), so no later code has to think of it.
The name of an option stays: people see that there was a password, not which.

Three things are known: values of options, variables and fields whose *name* says that they
are secret (kind_of); the part before the ``@`` of a URL, and the headers of HTTP that carry
secrets; and tokens whose *shape* is that of a known issuer. All else is kept, even if it looks
random: people need hashes of commits, run ids and paths. So a secret that has neither a name
nor a known shape (the last word of ``login alice hunter2``) is not found.

Each is a pure function of the text, and changes nothing when done again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_letters, digits
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REDACTED = "[redacted]"
MAX_CHARS = 1 << 20
"""Longest text; the rest is dropped."""
CUT = "…"
_OF_A_TOKEN = f"{ascii_letters}{digits}_.-"

_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|(?:sk|pk|rk)-(?=[\w-]{0,200}\d)[\w-]{20,}"  # OpenAI, Anthropic, Langfuse
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|gl(?:pat|dt|rt|ptt|ft|soat|cbt|agent|imt)-[\w-]{16,}"  # GitLab
    r"|xox[a-z]-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{20,}"  # Slack
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"  # AWS
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}"  # Google
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dckr_pat_[\w-]{16,}|dop_v1_[0-9a-f]{40,}"
    r"|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{30,}"  # NVIDIA, Groq, Replicate
    r"|wandb_v1_\w{20,}|local-[0-9a-f]{40}"  # Weights & Biases
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|hvs\.[\w-]{20,}"  # SendGrid, Vault
    r"|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"  # JSON Web Tokens
    r")"
)
_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)((?:(?!-----END)[\s\S])+)"
    r"(-----END [A-Z ]{0,40}-----)?"
)
_URL = re.compile(
    r"(?<![A-Za-z0-9])([A-Za-z][A-Za-z0-9+.\-]{0,20}://)"
    r"(?:([^\s/?#:@'\"<>]{0,200}):(?!\d{1,5}(?:[/?#\s'\"]|$))([^\s'\"<>]{1,1000})"
    r"|([^\s/?#:@'\"<>]{16,1000}))@"
)
_BEARER = re.compile(
    r"\b(Bearer\s{1,3})(?=[^\s'\"]{0,200}[\d._~+/=-])([\w.~+/=:-]{8,})", re.IGNORECASE
)
_HEADER = re.compile(
    r"\b((?:Proxy-)?Authorization|(?:Set-)?Cookie|X-[\w-]{0,40}(?:Key|Token|Secret|Auth))"
    r"(\\?['\"]?\s{0,3}[:=]\s{0,3}(?:b?\\?['\"])?)"
    r"((?:(?:Bearer|Basic|Digest|Token|ApiKey)\s{1,3})?)([^\s'\"\\][^'\"\r\n\\]*)",
    re.IGNORECASE,
)
_LOGIN_CALL = re.compile(r"(\blogin\([^'\"\n]{0,40}['\"])[^'\"\n]{8,}")
"""``wandb.login(key="...")``."""
_NAME = re.compile(
    r"(?<![\w.\-])(-{0,2}[A-Za-z_][\w.\-]{0,80})"
    r"(\\?['\"]?\]?\s{0,3}(?::=|=>|[=!]=|[=:])\s{0,3}"  # name=, "name": , environ["name"] =
    r"|\\?['\"]\s{0,3},\s{0,3}(?=b?\\?['\"])"  # "--name", "value"
    r"|\s{1,3})"  # --name value
)
_ANNOTATION = re.compile(r"[A-Za-z_][\w.\[\] |,]{0,60}?\s{0,3}=\s{0,3}(?=[bBrRfFuU]{0,2}['\"])")
_HINT = re.compile(
    r"pass|pwd|pw|secret|token|key|auth|cred|cookie|jwt|dsn|bearer|sig", re.IGNORECASE
)
_QUOTED = re.compile(r"([bBrRfFuU]{0,2}(['\"]))((?:\\.|(?!\2)[^\\\r\n])*)")
_ESCAPED = re.compile(r"(b?\\(['\"]))((?:(?!\\?\2)[^\r\n])*)")
_BARE = re.compile(r"()()([^\s'\"]+)")
_BARE_IN_URL = re.compile(r"()()([^\s'\"&]+)")
"""Up to the next parameter: a secret that is not encoded may hold a ``#``."""
_OPTION = re.compile(r"-{1,2}[A-Za-z_]")
_ASSIGNED = re.compile(r"[-+~]{0,2}[A-Za-z_][\w.\-/@]{0,120}")
_LOGIN = re.compile(r"(?!\d+:\d+$)([^\s:/]{1,200}):(\S+)")
_LOGIN_OPTIONS = frozenset({"-u", "--user", "--proxy-user"})

_PLAIN = frozenset(
    {"", "true", "false", "yes", "no", "on", "off", "none", "null", "nil", "auto"}
    | {"bearer", "basic", "digest", "token"}
)
"""Values that say if there is a secret, or how it is sent, and are none."""
_REFERENCE = re.compile(r"\$\{?\w+\}?|\$\([^)]*\)|%\(?\w*\)?s|\{\w*\}|\*+|\.{3}|<[\w -]{1,40}>")
"""Stands for a value: a variable, a format's field."""
_OF_A_VOCABULARY = re.compile(r"\d{1,5}|<.{0,40}>|\[[A-Z_0-9]{1,20}\]")
_FILE = re.compile(
    r"(?:~|\.{1,2})/\S+|/(?:[\w.\-]+/)*[\w\-]+\.[A-Za-z][A-Za-z0-9]{0,5}"
    r"|/(?:home|etc|root|run|var|mnt|data|opt|usr|tmp|workspace|scratch|secrets)/[\w./\-]+"
)
_RANDOM = re.compile(r"(?=\S*\d)\S{8,}|\S{20,}")


def command(words: Sequence[str]) -> list[str]:
    """Return a command line without its secrets, word for word."""
    shown: list[str] = []
    option = ""
    for word in words:
        before, option = option, ""
        if before in _LOGIN_OPTIONS and (login := _LOGIN.fullmatch(word)):
            shown.append(f"{login[1]}:{REDACTED}")
        elif _expects(before) and not _OPTION.match(word):
            shown.append(_instead(word, kind_of(before)))
        else:
            shown.append(_word(word))
            option = word
    return shown


def text(raw: str, most_chars: int = MAX_CHARS) -> str:
    """Return any text without the secrets that are named or shaped as such in it.

    Longer than most_chars it is cut, before what could be a part of a token.
    """
    if len(raw) > most_chars:
        kept = raw[:most_chars]
        raw = (kept.rstrip(_OF_A_TOKEN) or kept) + CUT
    return _named(_shaped(raw), _in_text)


def source(code: str) -> str:
    """Return source code without secrets in its literals. It has the same lines as before."""
    lines = _PRIVATE_KEY.sub(_without_key, code).split("\n")
    return "\n".join(
        _named(_LOGIN_CALL.sub(rf"\1{REDACTED}", _shaped(line)), _in_source)
        if "'" in line or '"' in line
        else _shaped(line)
        for line in lines
    )


def _word(word: str) -> str:
    """Redact a word of a command line that is no value of the option before it."""
    name, equals, value = word.partition("=")
    if not equals or not _ASSIGNED.fullmatch(name):
        return text(word)
    kind = kind_of(name)
    # Also ``--env=NAME=VALUE``.
    return f"{name}={_instead(value, kind) if kind else _word(value)}"


def _expects(option: str) -> bool:
    """Return True if the next word is the value of a secret option."""
    if not _OPTION.match(option) or "=" in option or not _ASSIGNED.fullmatch(option):
        return False
    kind = kind_of(option)
    return kind is not None and not kind.switch


def _instead(value: str, kind: Kind | None) -> str:
    """Return the value of a secret option or variable as it is shown."""
    return REDACTED if kind and _gives_away(value, kind) else text(value)


def _gives_away(value: str, kind: Kind) -> bool:
    if value.lower() in _PLAIN or value.startswith(REDACTED) or _REFERENCE.fullmatch(value):
        return False
    if kind.token and _OF_A_VOCABULARY.fullmatch(value):
        return False
    return kind.password or _FILE.fullmatch(value) is None


def _in_text(name: str, separator: str, value: str, kind: Kind, *, quoted: bool) -> bool:
    """Return True if a text has a secret after a name."""
    option = name.startswith("-")
    between = separator.strip()
    if not between:  # a blank: --name value, or: the password 'value'
        if not (option and not kind.switch) and not (quoted and kind.password):
            return False
        if _OPTION.match(value):
            return False
    if between.endswith(",") and not option and not name.isupper():
        return False  # of a list of names
    # Of a parser: unexpected token: word.
    if kind.token and between == ":" and not quoted and not _RANDOM.match(value):
        return False
    return _gives_away(value, kind)


def _in_source(name: str, separator: str, value: str, kind: Kind, *, quoted: bool) -> bool:
    """Return True if a literal in source is a secret: ``if token == "the"`` is none."""
    if not quoted or (kind.token and not _RANDOM.fullmatch(value)):
        return False
    # A prompt is none: input("password: ")
    return separator.strip() not in {"", ":"} and _in_text(
        name, separator, value, kind, quoted=True
    )


def _named(raw: str, secret: Callable[..., bool]) -> str:
    """Return the text without the values that follow the name of a secret."""
    if not _HINT.search(raw):
        return raw
    parts: list[str] = []
    done = at = 0
    while match := _NAME.search(raw, at):
        name, separator = match.groups()
        at = match.end()
        in_url = raw[match.start() - 1 : match.start()] in {"?", "&"}
        kind = kind_of(name, in_url=in_url)
        if kind is None:
            continue  # what follows may be a name itself
        if secret is _in_source and (annotation := _ANNOTATION.match(raw, at)):
            separator, at = "=", annotation.end()
        value = _QUOTED.match(raw, at) or _ESCAPED.match(raw, at)
        quoted = value is not None
        value = value or (_BARE_IN_URL if in_url else _BARE).match(raw, at)
        if value and secret(name, separator, value[3], kind, quoted=quoted):
            parts += [raw[done : value.start(3)], REDACTED]
            done = at = value.end()
    return "".join([*parts, raw[done:]])


def _shaped(raw: str) -> str:
    """Return the text without tokens of known issuers, and secrets in URLs and headers."""
    if "PRIVATE KEY-----" in raw:
        raw = _PRIVATE_KEY.sub(_without_key, raw)
    if "://" in raw:
        raw = _URL.sub(_without_login, raw)
    raw = _HEADER.sub(rf"\1\2\3{REDACTED}", raw)
    raw = _BEARER.sub(rf"\1{REDACTED}", raw)
    return _SHAPES.sub(REDACTED, raw)


def _without_key(match: re.Match[str]) -> str:
    # As many lines as before: source is read by line.
    lines = "\n" * match[2].count("\n")
    return f"{match[1]}{REDACTED}{lines}{match[3] or ''}"


def _without_login(match: re.Match[str]) -> str:
    if match[4] is None:
        return f"{match[1]}{match[2]}:{REDACTED}@"
    return f"{match[1]}{REDACTED}@" if _RANDOM.fullmatch(match[4]) else match[0]


@dataclass(frozen=True, slots=True)
class Kind:
    """The sort of secret that a name stands for."""

    token: bool = False
    """True for a token; tokenizers have tokens, too, which are no secrets."""
    password: bool = False
    """True if any value is a secret, also one that looks like a file."""
    switch: bool = False
    """True for a switch, ``--use-auth-token``: the next word is not its value."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PASSWORDS = frozenset({"password", "passwd", "passphrase", "passcode", "pwd", "pw", "sshpass"})
_SECRETS = _words(
    "secret secrets credential credentials apikey apitoken authtoken accesstoken accesskey "
    "secretkey privatekey bearer authorization cookie cookies jwt dsn"
)
_BEFORE_TOKENS = _words(
    "access api auth bearer bot deploy gh github gitlab hf hub huggingface npm oauth personal "
    "pypi refresh secret security session slack vault wandb"
)
"""Words before ``tokens`` that make it a list of secrets, not of numbers."""
_OF_A_TOKENIZER = _words(
    "added additional audio begin bos class cls cost dist drop end eod eos eot expert extra fim "
    "first gen generated image img in input ignore label last latent loss mask max memory mean "
    "min n new next num number out output pad padding per placeholder prefix prompt query reg "
    "register reserved sep separator special speech start stop suffix sum text think time total "
    "train trigger unk unknown valid video vision vocab word"
)
"""Words before ``token`` that make it one of a text."""
_BEFORE_KEY = _words(
    "access account api app auth aws azure client consumer deploy encryption gcp hf license "
    "master openai private secret service shared signing storage subscription wandb"
)
_BEFORE_PASS = _words("admin db database ftp http mail mysql proxy redis root smtp")
_BEFORE_AUTH = frozenset({"basic", "http", "proxy"})
_IN_URLS = frozenset({"sig", "signature", "code"})
_TAILS = frozenset({"b64", "base64", "hash", "plain", "plaintext", "str", "string", "value"})
"""Words after the one that counts."""
_SWITCHES = _words(
    "allow ask disable enable has is log need no print prompt require save show skip use "
    "with without"
)
_WORKING_DIRECTORY = frozenset({"PWD", "OLDPWD"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PASSWORD, _TOKEN, _OTHER = Kind(password=True), Kind(token=True), Kind()


@lru_cache(maxsize=512)
def kind_of(name: str, *, in_url: bool = False) -> Kind | None:
    """Return the sort of secret that a name stands for, None for none.

    in_url: it is a parameter of a URL.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    switch = len(words) > 1 and words[0] in _SWITCHES
    while len(words) > 1 and words[-1] in _TAILS:
        words.pop()
    kind = _kind(words) if words and name not in _WORKING_DIRECTORY else None
    if words == ["pass"] and (name.startswith("-") or name.isupper()):
        kind = _PASSWORD
    if kind is None and in_url and words and words[-1] in _IN_URLS:
        kind = _OTHER
    return Kind(kind.token, kind.password, switch) if kind and switch else kind


def _kind(words: list[str]) -> Kind | None:
    *before, last = words
    previous = before[-1] if before else ""
    if last in _PASSWORDS or (last == "pass" and previous in _BEFORE_PASS):
        return _PASSWORD
    if last == "token":
        return None if _OF_A_TOKENIZER.intersection(before) else _TOKEN
    if last == "tokens":
        return _TOKEN if previous in _BEFORE_TOKENS else None
    secret = (
        last in _SECRETS
        or (last in {"key", "keys"} and previous in _BEFORE_KEY)
        or (last == "auth" and previous in _BEFORE_AUTH)
        or words[-3:] == ["access", "key", "id"]
        or "pgpassword" in words
    )
    return _OTHER if secret else None
