// A heartbeat that goes on while the GIL is held, and stops with the process.

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <new>

#include "dump.hpp"
#include "mapping.hpp"
#include "moments.hpp"

namespace hangwatch::writer {
namespace {

constexpr std::uint64_t kLateNs = 5'000'000;  // a moment that is noted later is none of the others'
constexpr time_t kJoinS = 2;                  // how long an ending process waits for a beat

struct Heartbeat {
  pthread_mutex_t mutex;
  pthread_cond_t wake;
  pthread_t thread;
  std::uint64_t interval_ns;
  bool with_moments;
  bool stop;
};
Heartbeat* g_heartbeat = nullptr;

void* heartbeat_main(void* argument) {
  auto* beat = static_cast<Heartbeat*>(argument);
  pthread_mutex_lock(&beat->mutex);
  std::uint64_t beat_ns = 0;  // when the next one is due
  moments::Next moment{0, ~std::uint64_t{0}};
  if (beat->with_moments) moment = moments::next(now_ns());
  while (!beat->stop) {
    // Nobody has to wait for what this does.
    pthread_mutex_unlock(&beat->mutex);
    const std::uint64_t now = now_ns();
    if (now >= moment.ns) {
      if (now - moment.ns < kLateNs) moments::take(moment.number);
      moment = moments::next(now);
    }
    if (now >= beat_ns) {
      if (Page* p = page()) p->heartbeat_ns.store(now, std::memory_order_relaxed);
      dump::look();
      beat_ns = now + beat->interval_ns;
    }
    pthread_mutex_lock(&beat->mutex);
    if (beat->stop) break;
    const std::uint64_t ns = std::min(beat_ns, moment.ns);
    const timespec until{static_cast<time_t>(ns / 1'000'000'000),
                         static_cast<long>(ns % 1'000'000'000)};
    pthread_cond_timedwait(&beat->wake, &beat->mutex, &until);
  }
  pthread_mutex_unlock(&beat->mutex);
  return nullptr;
}

}  // namespace

void disown_heartbeat() noexcept { g_heartbeat = nullptr; }

int start_heartbeat(std::uint64_t interval_ms, bool with_moments) noexcept {
  if (g_heartbeat != nullptr || page() == nullptr) return 0;
  auto* beat = new (std::nothrow) Heartbeat{};
  if (beat == nullptr) return ENOMEM;
  beat->interval_ns = std::clamp<std::uint64_t>(interval_ms, 1, 60'000) * 1'000'000;
  beat->with_moments = with_moments;
  pthread_mutex_init(&beat->mutex, nullptr);
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&beat->wake, &clock);
  pthread_condattr_destroy(&clock);
  // The thread inherits the mask: no signal of the job's may be handled by it.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&beat->thread, nullptr, heartbeat_main, beat);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    delete beat;
    return error;
  }
  g_heartbeat = beat;
  return 0;
}

void stop_heartbeat() noexcept {
  Heartbeat* beat = g_heartbeat;
  if (beat == nullptr) return;
  g_heartbeat = nullptr;
  pthread_mutex_lock(&beat->mutex);
  beat->stop = true;
  pthread_cond_signal(&beat->wake);
  pthread_mutex_unlock(&beat->mutex);
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += kJoinS;
  if (pthread_timedjoin_np(beat->thread, nullptr, &until) != 0) {
    pthread_detach(beat->thread);  // what it looks at does not answer: it keeps all it uses
    return;
  }
  pthread_cond_destroy(&beat->wake);
  pthread_mutex_destroy(&beat->mutex);
  delete beat;
}

}  // namespace hangwatch::writer
