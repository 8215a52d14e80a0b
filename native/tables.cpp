// The page's tables of strings and sites: each stands there once.

#include <new>
#include <unordered_map>

#include "mapping.hpp"

namespace hangwatch::writer {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// What stands in the tables of the page. Leaked on purpose where a process ends:
// threads may still write.
struct Tables {
  std::unordered_map<std::string, std::uint32_t> strings;
  std::unordered_map<std::string, std::uint32_t> sites;
  // As in the page. What stands there is for readers: bytes that somebody else has put into
  // the file must not lead a write of this process elsewhere.
  std::uint64_t string_count = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t site_count = 0;
};
Tables* g_tables = nullptr;

// By index: the same text has the same hash in every process.
std::uint64_t g_string_hashes[kMaxStrings];
std::uint64_t g_site_hashes[kMaxSites];

// FNV-1a, 64 bits (draft-eastlake-fnv).
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x0000'0100'0000'01b3;
  return hash;
}

std::atomic_flag g_busy = ATOMIC_FLAG_INIT;

// Had by one thread at a time; who finds it taken does without rather than wait. All that
// comes here has the GIL, and runs no Python meanwhile, so that it is free but for faults.
class Turn {
 public:
  Turn() noexcept : had_(!g_busy.test_and_set(std::memory_order_acquire)) {}
  ~Turn() {
    if (had_) g_busy.clear(std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return had_; }

 private:
  const bool had_;
};

// For who has the turn.
std::uint32_t intern_in_turn(Page* p, std::string_view text) {
  const auto known = g_tables->strings.find(std::string(text));
  if (known != g_tables->strings.end()) return known->second;
  StringTable& table = p->strings;
  const std::uint64_t index = g_tables->string_count;
  const std::uint64_t offset = g_tables->used_bytes;
  if (index >= kMaxStrings || text.size() > kStringBytes - offset) {
    dropped(p);
    return kNone;
  }
  std::memcpy(table.bytes + offset, text.data(), text.size());
  table.refs[index].store(offset << 32 | text.size(), kRelaxed);
  g_tables->used_bytes = offset + text.size();
  table.used_bytes.store(g_tables->used_bytes, kRelaxed);
  g_string_hashes[index] = hash_of(text);
  g_tables->string_count = index + 1;
  table.count.store(index + 1, std::memory_order_release);
  g_tables->strings.emplace(text, static_cast<std::uint32_t>(index));
  return static_cast<std::uint32_t>(index);
}

}  // namespace

bool open_tables() noexcept {
  g_tables = new (std::nothrow) Tables;
  return g_tables != nullptr;
}

void close_tables() noexcept {
  delete g_tables;
  g_tables = nullptr;
}

void disown_tables() noexcept {
  g_tables = nullptr;
  g_busy.clear(kRelaxed);
}

std::uint64_t string_hash(std::uint32_t index) noexcept {
  return index < kMaxStrings ? g_string_hashes[index] : 0;
}

std::uint64_t site_hash(std::uint32_t index) noexcept {
  return index < kMaxSites ? g_site_hashes[index] : 0;
}

std::uint32_t intern(std::string_view text) noexcept try {
  Page* p = page();
  if (p == nullptr) return kNone;
  const Turn turn;
  if (turn) return intern_in_turn(p, text);
  dropped(p);
  return kNone;
} catch (const std::bad_alloc&) {
  return kNone;
}

std::uint32_t intern_site(std::string_view file, std::uint64_t line,
                          std::string_view function) noexcept try {
  Page* p = page();
  if (p == nullptr) return kNone;
  const Turn turn;
  if (!turn) {
    dropped(p);
    return kNone;
  }
  std::string key(file);
  key.append(1, '\0').append(function).append(1, '\0').append(std::to_string(line));
  const auto known = g_tables->sites.find(key);
  if (known != g_tables->sites.end()) return known->second;
  const std::uint64_t index = g_tables->site_count;
  const std::uint64_t names =
      static_cast<std::uint64_t>(intern_in_turn(p, file)) << 32 | intern_in_turn(p, function);
  if (index >= kMaxSites || names >> 32 == kNone) {
    dropped(p);
    return kNone;
  }
  p->sites.names[index].store(names, kRelaxed);
  p->sites.lines[index].store(line, kRelaxed);
  g_site_hashes[index] = hash_of(key);
  g_tables->site_count = index + 1;
  p->sites.count.store(index + 1, std::memory_order_release);
  g_tables->sites.emplace(std::move(key), static_cast<std::uint32_t>(index));
  return static_cast<std::uint32_t>(index);
} catch (const std::bad_alloc&) {
  return kNone;
}

}  // namespace hangwatch::writer
