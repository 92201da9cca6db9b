// Folders and times of files, as both caches on disk see them: this library's and the driver's.
#pragma once
#include <dirent.h>
#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>

namespace dlb::cl {

constexpr int64_t kSecond = 1'000'000'000, kDay = 24 * 3600 * kSecond;  // nanoseconds

inline int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

inline int64_t modified(const struct stat& info) {
  return info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec;
}

// Clocks differ between machines that share a folder, and jump: a time further ahead than this says nothing.
inline bool in_future(int64_t time) {
  return time > now() + kDay;
}

// Calls fn(name, descriptor of the folder) for whatever is in it.
template <class Fn>
void for_each_name(const std::string& folder, Fn&& fn) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return;
  while (const dirent* item = ::readdir(dir.get())) fn(std::string(item->d_name), ::dirfd(dir.get()));
}

}  // namespace dlb::cl
