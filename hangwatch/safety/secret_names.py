"""Tells from the name of an option, a variable or a field that its value is a secret."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


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
"""Words behind the one that counts."""
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
