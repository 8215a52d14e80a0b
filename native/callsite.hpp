// Where in the user's code a call comes from, and by which name the user made it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "python.hpp"

namespace hangwatch::callsite {

struct Site {
  std::uint32_t site;  // index in the page's table of sites, kNone without one
  std::uint32_t op;    // string index of the function of torch.distributed, or kNone
  const void* caller;  // see caller()
};

// Looks up functions that the limited API lacks. Returns false with an exception set.
bool setup();

// Files whose names begin so, or of generated code, are not the user's own; but for those of
// the program.
void set_prefixes(std::vector<std::string> internal, std::vector<std::string> program);

// Forgets what it knows of the page's tables; for a new page.
void forget();

// What identifies the function that called us, only to be compared.
const void* caller();

// Walks from the frame that called us. Returns false with an exception set.
bool find(Site& found);

}  // namespace hangwatch::callsite
