// 128-bit FNV-1a: names disk cache entries and program keys. Not cryptographic: entries also hold their whole
// key.
#pragma once
#include <compare>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace dlb::cl {

struct Hash128 {
  uint64_t high = 0, low = 0;
  auto operator<=>(const Hash128&) const = default;
  std::string hex() const {
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                  static_cast<unsigned long long>(low));
    return text;
  }
};

// Offset basis and prime of the 128-bit variant (http://www.isthe.com/chongo/tech/comp/fnv).
inline constexpr Hash128 kHashStart = {0x6c62272e07bb0142ULL, 0x62b821756295c58dULL};

// Given the hash of what comes before, `start` continues it: hash128(b, hash128(a)) is hash128(a + b).
inline Hash128 hash128(std::string_view bytes, const Hash128& start = kHashStart) {
  __extension__ using u128 = unsigned __int128;
  u128 h = (static_cast<u128>(start.high) << 64) | start.low;
  const u128 prime = (static_cast<u128>(0x0000000001000000ULL) << 64) | 0x000000000000013BULL;
  for (unsigned char c : bytes) h = (h ^ c) * prime;
  return {static_cast<uint64_t>(h >> 64), static_cast<uint64_t>(h)};
}

struct Hash128Hasher {
  size_t operator()(const Hash128& h) const noexcept { return h.low; }
};

}  // namespace dlb::cl
