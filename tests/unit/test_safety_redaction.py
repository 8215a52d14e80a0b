"""Secrets of command lines, texts and source: what is taken out, and what has to stay."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hangwatch.safety.redaction import CUT, REDACTED, command, source, text

SECRET = "Zx9qLw3vT7uK2mB8"  # noqa: S105 (there to be found)
HEX = "3f786850e387550fdab836ed7e6dc881de23001b"
SHAPED = (
    "hf_" + "aB3" * 12,
    "sk-" + "proj-" + "aB3" * 12,
    "sk-ant-api03-" + "x9" * 20,
    "ghp_" + "aB3" * 12,
    "github_pat_" + "11ABC_" * 6,
    "glpat-" + "xY3_" * 5,
    "xoxb-" + "1234567890-abcdef",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0." + "c2ln_-",
    "AIza" + "x9Y-" * 9,
    "nvapi-" + "x9Y_" * 6,
    "npm_" + "aB3" * 12,
)
FORMS = (
    ("--wandb-api-key={}",),
    ("--hf_token", "{}"),
    ("--hf-token={}",),
    ("-password", "{}"),
    ("--password", "{}"),
    ("--db.password={}",),
    ("--githubToken", "{}"),
    ("env", "AWS_SECRET_ACCESS_KEY={}", "python"),
    ("docker", "run", "-e", "WANDB_API_KEY={}"),
    ("docker", "run", "-eWANDB_API_KEY={}"),
    ("docker", "run", "--env=WANDB_API_KEY={}"),
    ("+wandb.api_key={}",),
    ("curl", "-H", "Authorization: Bearer {}"),
    ("curl", "-H", "X-Api-Key: {}"),
    ("curl", "-u", "me:{}"),
    ("https://me:{}@host/x",),
    ("postgresql+psycopg2://me:{}@db:5432/x?sslmode=require",),
    ("https://host/x?a=1&access_token={}&b=2",),
    ("bash", "-c", "export HF_TOKEN={}; python train.py"),
    ("bash", "-c", "python train.py --password {} --lr 1"),
    ("bash", "-c", "python train.py --password '{}' --lr 1"),
    ('--config={{"api_key": "{}", "lr": 1}}',),
    ('--config="{{\\"password\\": \\"{}\\"}}"',),
    ("--connection=Server=x;Password={};",),
)
TEXTS = (
    "Command '['curl', '--password', '{}', '-x']' returned 1",
    "could not log in: {{'user': 'me', 'password': '{}'}}",
    "password: {}",
    "the password '{}' is wrong",
    "Config(user=me, hub_token={}, lr=1)",
    "401 for url: https://me:{}@host/x",
    "headers: {{'Authorization': 'Bearer {}', 'Accept': '*'}}",
    "Bearer {}",
    "environ({{'WANDB_API_KEY': '{}', 'HOME': '/root'}})",
    '{{"secret_key":"{}"}}',
    "message=password={}",
)
SOURCES = (
    'password = "{}"',
    "password: str | None = '{}'",
    'os.environ["WANDB_API_KEY"] = "{}"',
    'os.environ.setdefault("WANDB_API_KEY", "{}")',
    'wandb.login(key="{}")',
    'login("{}")',
    'push(token="{}", to=repo)',
    'HEADERS = {{"Authorization": "Bearer {}"}}',
    'URL = "https://me:{}@host/x"',
)
ORDINARY = (
    ["torchrun", "--nproc-per-node=8", "train.py", "--lr", "3e-4"],
    ["--tokenizer", "gpt2", "--tokenizer=/models/gpt2", "--tokenizer.path", "x"],
    ["--num-tokens", "512", "--max_tokens=4096", "--tokens", "5", "--total_tokens", "1"],
    ["--token-type", "word", "--token_ids=1,2", "--pad-token", "<pad>", "--eos_token=</s>"],
    ["--bos_token_id=1", "--image-token", "[IMG]", "--loss-per-token", "--drop-token=7"],
    ["--secret-santa", "bob", "--passes", "2", "--forward-pass", "3", "--key", "value"],
    ["--sort-key=age", "--author", "me", "--authority=me", "--keys", "a", "--signal", "TERM"],
    ["--commit", HEX, f"--revision={HEX}", "--run-id", "20260103-121314-ab12cd"],
    ["--data", "/mnt/data/secret-project/tokens.bin", "--ckpt=/a/b/key.pt"],
    ["--password-file", "/run/pw", "--private-key", "/home/me/.ssh/id", "--token-file=x"],
    ["--use_auth_token", "train.py", "--use-auth-token=True", "--token", "<s>"],
    ["git@github.com:me/x.git", "ssh://git@github.com/me/x", "tcp://10.0.0.1:29500"],
    ["http://host:8080/a@b", "http://[::1]:9000/x", "s3://bucket/key@v1"],
    ["PWD=/home/me", "OLDPWD=/x", "PATH=/bin:/usr/bin", "-u", "1000:1000", "-p", "8080:80"],
    ["--rdzv-endpoint", "host:29500", "--rdzv-conf", "join_timeout=60,is_host=1"],
    ["python", "-u", "train.py", "--task-name=sk-learn", "--ask-for-more-than-you-need"],
    ["--hf_token", "$HF_TOKEN", "--password=${PASSWORD}", "--token=None", ""],
    ["bash", "-c", "python train.py --max_tokens 5 && echo done"],
)
ORDINARY_TEXTS = (
    "KeyError: 'token'",
    "unexpected token: <pad> at line 3",
    "Expected tensor for argument #1 'key' to have 3 dimensions, got 2",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
    "Token indices sequence length is longer than 512 (max_tokens=4096)",
    "['password', 'username'] are not columns",
    "the author = me, the pass: 2, basic = training",
)
ORDINARY_SOURCES = (
    'if token == "the":',
    'pad_token = "<pad>"',
    "token = tokens[i]",
    'print("token: %s" % token)',
    'password = getpass("password: ")',
    "out = attention(query, key=key, value=value)",
    'parser.add_argument("--password", help="of the store")',
    'token = os.environ["HF_TOKEN"]',
    "dist.all_reduce(x, group=group)",
)


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
@pytest.mark.parametrize("secret", [SECRET, "pw", "hunter2", "a=b", "12345678", "p@ss%41"])
def test_a_secret_in_a_command_line_is_redacted_and_its_name_stays(
    form: tuple[str, ...], secret: str
) -> None:
    words = [word.format(secret) for word in form]
    shown = command(["train.py", *words, "--lr", "1"])
    assert REDACTED in " ".join(shown)
    assert secret not in " ".join(shown).replace("password", "")
    assert shown[0] == "train.py"
    assert shown[-2:] == ["--lr", "1"]
    assert command(shown) == shown
    for word, before in zip(shown[1:-2], words, strict=True):
        name = before.partition(secret)[0].partition("=")[0]
        assert word.startswith(name[:10])


@pytest.mark.parametrize("form", TEXTS)
def test_a_secret_in_a_text_is_redacted(form: str) -> None:
    shown = text(form.format(SECRET))
    assert REDACTED in shown
    assert SECRET not in shown
    assert text(shown) == shown


@pytest.mark.parametrize("form", SOURCES)
def test_a_secret_in_a_literal_of_source_is_redacted(form: str) -> None:
    shown = source(f"import os\n    {form.format(SECRET)}\n")
    assert REDACTED in shown
    assert SECRET not in shown
    assert shown.count("\n") == 2
    assert source(shown) == shown


@pytest.mark.parametrize("token", SHAPED)
@pytest.mark.parametrize("around", ["{}", "x={}", "--a {} b", "'{}'", "/{}/", "a:{},b", "({})"])
def test_tokens_of_known_issuers_are_known_by_their_shape(token: str, around: str) -> None:
    for redact in (text, source, lambda raw: command([raw])[0]):
        assert redact(around.format(token)) == around.format(REDACTED)


def test_private_keys_are_redacted_and_lines_stay_where_they_are() -> None:
    lines = [
        "KEY = '''-----BEGIN RSA PRIVATE KEY-----",
        "MIIEow",
        "-----END RSA PRIVATE KEY-----'''",
    ]
    shown = source("\n".join([*lines, "train()"]))
    assert "MIIEow" not in shown
    assert shown.split("\n")[3] == "train()"
    assert "MIIEow" not in text("\n".join(lines[:2]))


@pytest.mark.parametrize("words", ORDINARY, ids=" ".join)
def test_an_ordinary_command_line_is_unchanged(words: list[str]) -> None:
    assert command(words) == words


@pytest.mark.parametrize("raw", ORDINARY_TEXTS)
def test_an_ordinary_text_is_unchanged(raw: str) -> None:
    assert text(raw) == raw


@pytest.mark.parametrize("code", ORDINARY_SOURCES)
def test_ordinary_source_is_unchanged(code: str) -> None:
    assert source(code) == code


def test_half_a_token_is_not_left_where_a_text_is_cut() -> None:
    cut = text(f"it said {SHAPED[0]} and more", 20)
    assert cut == f"it said {CUT}"
    assert text("a" * 30, 20) == "a" * 20 + CUT


WORDS = st.text(string.ascii_letters + string.digits + "._-/:=@,'\" []{}?&\n", max_size=40)


@given(st.lists(WORDS, max_size=8))
@example(["--password", "-x"])
@example(["a://b:c@", "://:@", "Authorization:"])
def test_redacting_again_changes_nothing(words: list[str]) -> None:
    shown = command(words)
    assert len(shown) == len(words)
    assert command(shown) == shown
    for redact in (text, source):
        once = redact(" ".join(words))
        assert redact(once) == once
    assert source("\n".join(words)).count("\n") == "\n".join(words).count("\n")


@given(
    st.text(string.ascii_letters + string.digits + "+/!#%^*_~", min_size=6, max_size=40),
    st.sampled_from(FORMS),
    st.lists(st.sampled_from([word for words in ORDINARY for word in words[:2]]), max_size=4),
)
def test_no_secret_of_a_known_form_is_shown(
    raw: str, form: tuple[str, ...], around: list[str]
) -> None:
    secret = f"Q9{raw}q7"
    words = [*around, "x", *(word.format(secret) for word in form), *around]
    assert secret not in "\0".join(command(words))
    assert raw not in "\0".join(command(words)) or any(raw in word for word in (*around, *form))


HOSTILE = (
    *("a", "password ", "a://", "'", "Bearer ", "x-", "sk-", "eyJ", "=:", " ", "a.b.c-", "://"),
    *("-----BEGIN PRIVATE KEY-----", "https://a:b", "password='", "password=\\'", "a=", "X-Key "),
)


@pytest.mark.parametrize("part", HOSTILE)
def test_the_time_that_it_takes_grows_with_the_text_alone(part: str) -> None:
    def cpu_s(size: int) -> float:
        began = time.process_time()
        text(part * (size // len(part)))
        source(part * (size // len(part)) + '"')
        return time.process_time() - began

    assert cpu_s(100_000) < 10 * max(cpu_s(20_000), 0.1)
