// The mapping of this process's page, and what the parts of the writer share.

#pragma once

#include "page.hpp"
#include "writer.hpp"

namespace hangwatch::writer {

// The page, or nullptr where this process has none (any more).
Page* page() noexcept;

// Counts a write that found no room, or a record that another thread was writing.
void dropped(Page* page) noexcept;

// To the tick (1 to 10 ms): a fifth of the price, and good enough for how long
// something takes.
std::uint64_t coarse_now_ns() noexcept;

// Native id of the calling thread.
std::uint32_t this_thread() noexcept;

// Hashes of what stands in the tables, 0 for what does not.
std::uint64_t string_hash(std::uint32_t index) noexcept;
std::uint64_t site_hash(std::uint32_t index) noexcept;

// Begins the hash of a slot anew, for another group.
void forget_checkpoints(Page* page, std::size_t slot) noexcept;

// What the parts do when this process gets a page, and in a fork's child, which
// must forget everything without a lock and without freeing anything.
bool open_tables() noexcept;
void close_tables() noexcept;
void disown_tables() noexcept;
void disown_heartbeat() noexcept;

// True if memory has been set aside for a slot. By this process's own count, since what
// stands in the page may have been put there by somebody else.
bool has_room(std::size_t slot) noexcept;

// Sets memory aside for a slot, and those beside it. False where there is none. For the
// holder of the GIL, as all that defines groups.
bool make_room(Page* page, std::size_t slot) noexcept;

}  // namespace hangwatch::writer
