// Memory shared by processes, by means of Linux.
#include "distributed/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "cl/settings.h"

namespace dlb::distributed {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr uint64_t kLayout = 0x646c6264'00000001;  // changes with what lies in a segment
constexpr int kMostRanks = 256;

}  // namespace

struct Segment::Header {
  uint64_t layout = kLayout;
  int ranks = 0, lanes = 0;
  std::atomic<int> failed{-1};
  std::atomic<int> processes[kMostRanks]{};
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);  // processes share no locks

namespace {

[[noreturn]] void raise_errno(const char* call) {
  throw std::runtime_error(std::string(call) + ": " + std::generic_category().message(errno));
}

size_t progress_bytes(int ranks, int lanes) {
  return static_cast<size_t>(ranks) * static_cast<size_t>(lanes) * sizeof(Progress);
}

// The halves begin with a page.
size_t halves_begin(int ranks, int lanes) {
  return kHeaderBytes + (progress_bytes(ranks, lanes) + 4095) / 4096 * 4096;
}

size_t segment_bytes(int ranks, int lanes) {
  return halves_begin(ranks, lanes) +
         2 * Segment::kHalf * static_cast<size_t>(ranks) * static_cast<size_t>(lanes);
}

// Half of the cores, divided among the ranks: the others copy. Two at least, which hide each other's waits,
// and which groups of several hosts need.
int lanes_for(int ranks) {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / (2 * ranks), 2, 8);
}

struct flock lock_of(int index, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = index;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string host_identity() {
  const std::string emulated = cl::settings::emulated_host();
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat processes {};
  if (boot.empty() || stat("/proc/self/ns/pid", &processes) != 0) return "";
  return boot + " " + std::to_string(processes.st_ino) + " " + std::to_string(geteuid()) + " " + emulated;
}

Segment::Segment(int ranks) {
  if (ranks > kMostRanks) throw std::runtime_error("too many ranks on one host");
  fd_ = static_cast<int>(syscall(SYS_memfd_create, "dlbackend", 1u /* MFD_CLOEXEC */));
  if (fd_ < 0) raise_errno("memfd_create");
  const int lanes = lanes_for(ranks);
  bytes_ = segment_bytes(ranks, lanes);
  try {
    if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) raise_errno("ftruncate");
    map(0);
  } catch (...) {
    close(fd_);
    throw;
  }
  static_assert(sizeof(Header) <= kHeaderBytes);
  auto* made = new (memory_) Header;
  made->ranks = ranks;
  made->lanes = lanes;
  made->processes[0] = getpid();
  for (int i = 0; i < ranks * lanes; ++i) new (&progress(i / ranks, i % ranks)) Progress;
}

Segment::Segment(const std::string& address, int index) {
  int process = 0, number = 0;
  if (std::sscanf(address.c_str(), "%d %d", &process, &number) != 2)
    throw std::runtime_error("the first rank of the host has no shared memory");
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) raise_errno(("open " + path).c_str());
  try {
    struct stat found {};
    if (fstat(fd_, &found) != 0) raise_errno("fstat");
    bytes_ = static_cast<size_t>(found.st_size);
    if (bytes_ < kHeaderBytes) throw std::runtime_error(path + " is not dlbackend's");
    map(index);
    const Header& made = header();
    if (made.layout != kLayout || segment_bytes(made.ranks, made.lanes) != bytes_)
      throw std::runtime_error(path + " is of another version of dlbackend");
    header().processes[index] = getpid();
  } catch (...) {
    if (memory_) munmap(memory_, bytes_);
    close(fd_);
    throw;
  }
}

// A child that was forked has the memory, but none of the locks.
void Segment::map(int index) {
  struct flock lock = lock_of(index, F_WRLCK);
  if (fcntl(fd_, F_SETLK, &lock) != 0) raise_errno("fcntl");
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) raise_errno("mmap");
  memory_ = memory;
}

Segment::~Segment() {
  munmap(memory_, bytes_);
  close(fd_);
}

std::string Segment::address() const {
  return std::to_string(getpid()) + " " + std::to_string(fd_);
}

bool Segment::is_alive(int index) const {
  if (process(index) == getpid()) return true;  // a process does not see its own locks
  struct flock lock = lock_of(index, F_WRLCK);
  return fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

Progress& Segment::progress(int lane, int index) const {
  char* first = static_cast<char*>(memory_) + kHeaderBytes;
  return reinterpret_cast<Progress*>(first)[lane * ranks() + index];
}

char* Segment::half(int lane, int index, uint64_t step) const {
  char* first = static_cast<char*>(memory_) + halves_begin(ranks(), lanes());
  return first + (2 * static_cast<size_t>(lane * ranks() + index) + (step & 1)) * kHalf;
}

void Segment::sleep(Progress& progress, uint32_t changes, std::chrono::milliseconds time) {
  progress.waiting.fetch_add(1);
  const struct timespec limit { time.count() / 1000, time.count() % 1000 * 1'000'000 };
  syscall(SYS_futex, &progress.changes, FUTEX_WAIT, changes, &limit, nullptr, 0);
  progress.waiting.fetch_sub(1);
}

void Segment::announce(Progress& progress) {
  progress.changes.fetch_add(1);
  if (progress.waiting.load() > 0)
    syscall(SYS_futex, &progress.changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int Segment::ranks() const {
  return header().ranks;
}
int Segment::lanes() const {
  return header().lanes;
}
int Segment::process(int index) const {
  return header().processes[index];
}

void Segment::fail(int index) {
  int none = -1;
  header().failed.compare_exchange_strong(none, index);
  for (int lane = 0; lane < lanes(); ++lane) announce(progress(lane, index));
}

int Segment::failed() const {
  return header().failed;
}

}  // namespace dlb::distributed
