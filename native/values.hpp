// Plain Python values of a decoded page, in the schema of hangwatch/types/.

#pragma once

#include "python.hpp"
#include "reader.hpp"

namespace hangwatch {

// The names of types.Phase and types.OpState, in the order of page.hpp.
extern const char* const kPhaseNames[kPhases];
extern const char* const kOpStateNames[kOpStates];

// A new dict with the keys of types.RankPage, or nullptr with an exception set.
PyObject* to_dict(const PageView& view, bool with_events);

// A new list of tuples, one for each moment in the order of types.Moment.
PyObject* to_list(const std::vector<MomentData>& moments);

}  // namespace hangwatch
