// Moments: how far the rank has come, noted some ten times a second without the GIL.
//
// All ranks of a node note the same moments: their times follow from CLOCK_MONOTONIC alone, at
// random within each period, so that no rhythm of the job's can hide between them. The watchdog
// compares them (hangwatch/efficiency/stragglers.py).
//
// Nothing here knows Python or throws.

#pragma once

#include <cstdint>

#include "page.hpp"

namespace hangwatch::moments {

// The number of the first moment after a time, and its time (CLOCK_MONOTONIC, ns).
struct Next {
  std::uint64_t number;
  std::uint64_t ns;
};
Next next(std::uint64_t now_ns) noexcept;

// Notes one, of this process' page. For the thread of the heartbeat.
void take(std::uint64_t number) noexcept;

// Adds how many calls each group of gloo's has issued and completed, as c10d counts them: of a
// process all of whose groups are gloo's, and have been used. A part of take().
void count_calls(MomentData& moment) noexcept;

}  // namespace hangwatch::moments
