// What the last call of torch's that failed has raised. The program may raise another exception
// for it and keep nothing of this one, so it is kept for whoever has to say why the rank ended.

#pragma once

#include "python.hpp"

namespace hangwatch::thrown {

// False, with an exception set, where Python cannot be asked.
bool setup();
// Keeps type and text of the exception that is set, which stays set. Runs nothing of the program's:
// only a text that is the exception's single argument is kept.
void keep() noexcept;
// (type, text), both empty where no call has failed.
PyObject* last();

}  // namespace hangwatch::thrown
