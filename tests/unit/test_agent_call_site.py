"""Where in the user's code a call comes from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from hangwatch.agent.call_site import (
    NO_SITE,
    Prefixes,
    public_name,
    raised_at,
    user_site,
)

if TYPE_CHECKING:
    from types import FrameType

PREFIXES = Prefixes(("/site-packages/torch/", "/lib/python/"))
C10D = "/site-packages/torch/distributed/distributed_c10d.py"
FSDP = "/site-packages/torch/distributed/fsdp.py"
USER = "/home/user/train.py"


def stack(*calls: tuple[str, str]) -> FrameType:
    """The innermost frame of functions (file, name) that call each other, outermost first."""

    def innermost() -> FrameType:
        return sys._getframe()  # noqa: SLF001 (there is no other way to a frame)

    function: Any = innermost
    for file, name in reversed(calls):
        scope: dict[str, Any] = {"inner": function}
        code = compile(f"\n\ndef {name}():\n    return inner()\n", file, "exec")
        exec(code, scope)  # noqa: S102 (frames with other files' names)
        function = scope[name]
    frame = function().f_back
    assert frame is not None
    return frame  # type: ignore[no-any-return]


def test_the_innermost_user_frame_is_the_call_site() -> None:
    frame = stack((USER, "main"), (USER, "step"), (FSDP, "hook"), (C10D, "all_reduce"))
    assert user_site(frame, PREFIXES) == (USER, 4, "step")


def test_without_a_user_frame_there_is_no_call_site() -> None:
    everywhere = Prefixes((*PREFIXES.internal, "/", "<string>"))
    assert user_site(stack((C10D, "all_reduce")), everywhere) == NO_SITE
    assert user_site(None, PREFIXES) == NO_SITE


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        (((USER, "main"), (C10D, "all_gather_object"), (C10D, "all_gather")), "all_gather_object"),
        (((USER, "main"), (FSDP, "hook"), (C10D, "all_reduce")), "all_reduce"),
        (((USER, "main"), (C10D, "_coalescing_manager")), ""),
        (((USER, "main"),), ""),
        (((C10D, "broadcast"), (USER, "mine"), (C10D, "barrier")), "barrier"),
    ],
)
def test_the_outermost_function_of_c10d_below_the_user_is_the_name(
    calls: tuple[tuple[str, str], ...], name: str
) -> None:
    assert public_name(stack(*calls), PREFIXES) == name


def test_an_exception_is_placed_at_its_innermost_user_frame() -> None:
    def fail() -> None:
        int("no number")

    try:
        fail()
    except ValueError as error:
        site = raised_at(error.__traceback__, Prefixes(("/lib/",)))
    assert site[0] == __file__
    assert site[2] == "fail"


def test_an_exception_of_installed_code_alone_is_placed_where_it_was_raised() -> None:
    with pytest.raises(ValueError, match="abc") as caught:
        int("abc")
    assert raised_at(caught.tb, Prefixes(("/",)))[0] == __file__
    assert raised_at(None, Prefixes()) == NO_SITE
