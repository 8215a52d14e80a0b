"""Prints native/methods.hpp, the table of the wrapped methods, from hangwatch.model.operations.

python native/methods.py > native/methods.hpp
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from hangwatch.model.operations import METHODS, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangwatch.model.operations import Method, Parameter

MOST_NAMES = max(
    len(parameter.names)
    for method in METHODS
    for parameter in (method.tensor, method.options, method.peer, method.tag, method.sends)
    if parameter is not None
)
HEAD = f"""\
// Made from hangwatch/model/operations.py: python native/methods.py > native/methods.hpp
// clang-format off

#pragma once

#include <cstddef>

#include "groups.hpp"

namespace hangwatch::signature {{

// Where an argument is: its position without self, or its names.
struct Parameter {{
  int position = -1;  // -1: there is none
  const char* names[{MOST_NAMES}] = {{}};
}};

// One method of torch.distributed.ProcessGroup.
struct Method {{
  const char* name;
  const char* wire;     // the name of the operation
  groups::Call call;
  bool one_tensor;      // with one size and dtype on all ranks
  Parameter tensor;     // the tensor, or list of tensors, that identifies the call
  Parameter root;       // the root's rank, or the options that hold it
  Parameter peer;
  Parameter tag;
  Parameter sends;      // how many rows go to each member, and come from it
  Parameter receives;
}};

constexpr Method kMethods[] = {{
"""
TAIL = """\
};
constexpr std::size_t kMethodCount = sizeof(kMethods) / sizeof(kMethods[0]);

}  // namespace hangwatch::signature
"""


def text() -> str:
    """The header."""
    return HEAD + "".join(map(_row, METHODS)) + TAIL


def _row(method: Method) -> str:
    call = "p2p" if method.p2p else "monitored_barrier" if method.seq_count > 1 else "collective"
    one_tensor = str(OPERATIONS[method.wire].one_tensor).lower()
    root = method.options if method.rooted else None
    splits = method.sends, method.receives
    parameters = ", ".join(_braced(method.tensor, root, method.peer, method.tag, *splits))
    return (
        f'    {{"{method.name}", "{method.wire}", groups::Call::{call}, {one_tensor},'
        f" {parameters}}},\n"
    )


def _braced(*parameters: Parameter | None) -> Iterator[str]:
    for parameter in parameters:
        if parameter is None:
            yield "{}"
        else:
            names = ", ".join(f'"{name}"' for name in parameter.names)
            yield f"{{{parameter.position}, {{{names}}}}}"


if __name__ == "__main__":
    sys.stdout.write(text())
