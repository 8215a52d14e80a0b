"""Follows methods of torch's classes: they run as ever, and then we are told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hangwatch.agent.record.unseen import standing_for, uncounted
from hangwatch.agent.torch_api import keep_compiler_off

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_MARK = "_observed_by_hangwatch"
_COMPILER = "torch._C._dynamo.eval_frame"


def leave_alone(code: CodeType, *, deep: bool) -> None:
    """Have torch.compile pass by code of ours; deep: and what it calls. Raises AttributeError."""
    keep_compiler_off(sys.modules[_COMPILER], code, deep=deep)


def follow(owner: type, name: str, tell: Callable[[Any, Any], None]) -> None:
    """Call tell(instance, result), which must not raise, after a method of a class; once."""
    original: Any = vars(owner)[name]
    if hasattr(original, _MARK):
        return

    @standing_for(original)
    @uncounted
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        tell(self, result)
        return result

    leave_alone(wrapper.__code__, deep=False)
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
