// What a call works on: its tensor's dtype and shape, its root, peer and tag.

#pragma once

#include "groups.hpp"
#include "methods.hpp"
#include "page.hpp"
#include "python.hpp"

namespace hangwatch::signature {

// The arguments of a vectorcall without self.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;
};

bool setup();  // false with an exception set

// Fills dtype, shape, root, peer and tag of the event, and the device
// (only where `want_device`). Returns false with an exception set.
bool read(const Method& method, const Arguments& arguments, const groups::Slot& slot,
          bool want_device, EventData& event, groups::Device& device);

// Reads the splits of a call, the event of which is `index`. False where none are given, or they
// are no lists of numbers. Runs nothing of the program's.
bool read_splits(const Method& method, const Arguments& arguments, std::uint64_t index,
                 SplitsData& splits) noexcept;

}  // namespace hangwatch::signature
