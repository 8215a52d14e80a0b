#include "page.hpp"

#include <charconv>

namespace hangwatch {

std::size_t encode_members(const std::vector<std::int64_t>& ranks, std::size_t room,
                           std::string& text) {
  text.clear();
  std::size_t i = 0;
  while (i < ranks.size()) {
    std::size_t last = i;
    const std::int64_t step = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 0;
    if (step > 0) {
      while (last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == step) ++last;
    }
    // A range of two is longer than two numbers unless it is dense.
    if (last == i + 1 && step != 1) last = i;
    std::string part = std::to_string(ranks[i]);
    if (last > i) {
      part += '-' + std::to_string(ranks[last]);
      if (step != 1) part += '/' + std::to_string(step);
    }
    if (text.size() + part.size() + 1 > room) return i;
    if (!text.empty()) text += ',';
    text += part;
    i = last + 1;
  }
  return i;
}

namespace {

bool parse_number(std::string_view& text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > INT32_MAX) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

bool decode_members(std::string_view text, std::size_t limit, std::vector<std::int64_t>& ranks) {
  ranks.clear();
  while (!text.empty()) {
    if (!ranks.empty() && !take(text, ',')) return false;
    std::int64_t first = 0;
    if (!parse_number(text, first)) return false;
    std::int64_t last = first;
    std::int64_t step = 1;
    if (take(text, '-')) {
      if (!parse_number(text, last) || last < first) return false;
      if (take(text, '/') && (!parse_number(text, step) || step < 1)) return false;
    }
    if (static_cast<std::size_t>((last - first) / step) + 1 > limit - ranks.size()) return false;
    for (std::int64_t rank = first; rank <= last; rank += step) ranks.push_back(rank);
  }
  return true;
}

}  // namespace hangwatch
