// Reading, checking and writing the records of stores and packs.
#include "cl/stores/record.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace dlb::cl {

const char kRecordMagic[8] = {'D', 'L', 'B', 'R', 'E', 'C', '0', '2'};

namespace {

constexpr size_t kCommonMagic = 3;  // characters of the magic that are the same in all versions

uint64_t header_checksum(const RecordHeader& header) {
  return hash128({reinterpret_cast<const char*>(&header), offsetof(RecordHeader, header_checksum)}).low;
}

}  // namespace

const char* describe(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return "sound";
    case Fault::kMissing:
      return "not there";
    case Fault::kUnreadable:
      return "cannot be read";
    case Fault::kVersion:
      return "written by another version";
    case Fault::kTruncated:
      return "ends early";
    case Fault::kDamaged:
      return "damaged";
    case Fault::kMisplaced:
      return "another entry than its name or place says";
  }
  return "";
}

RecordHeader header_of(const Record& record) {
  RecordHeader header{{},
                      record.kind,
                      static_cast<uint32_t>(record.key.size()),
                      record.payload.size(),
                      hash128(record.key),
                      {},
                      0};
  std::memcpy(header.magic, kRecordMagic, sizeof kRecordMagic);
  header.checksum = hash128(record.payload, header.key_hash);
  header.header_checksum = header_checksum(header);
  return header;
}

// O_NONBLOCK: a pipe that has an entry's name must not make the process wait.
File::File(const std::string& path, int flags, unsigned mode)
    : fd_(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode)) {}

File::~File() {
  close();
}

bool File::close() {
  const int fd = fd_;
  fd_ = -1;
  return fd < 0 || ::close(fd) == 0;
}

bool File::write(const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

bool File::read_at(uint64_t offset, void* data, size_t size) const {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::pread(fd_, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return false;
    at += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool File::find(uint64_t& offset, uint64_t end, const char (&magic)[8]) const {
  const std::string_view wanted(magic, sizeof magic);
  std::string chunk;
  while (offset + wanted.size() <= end) {
    chunk.resize(std::min<uint64_t>(end - offset, 1 << 20));
    if (!read_at(offset, chunk.data(), chunk.size())) return false;
    const size_t at = chunk.find(wanted);
    offset += at != std::string::npos ? at : chunk.size() - wanted.size() + 1;
    if (at != std::string::npos) return true;
  }
  return false;
}

Fault read_header(const File& file, uint64_t offset, uint64_t size, RecordHeader& header) {
  if (offset + sizeof header > size) return Fault::kTruncated;
  if (!file.read_at(offset, &header, sizeof header)) return errno ? Fault::kUnreadable : Fault::kTruncated;
  if (std::memcmp(header.magic, kRecordMagic, sizeof kRecordMagic) != 0)
    return std::memcmp(header.magic, kRecordMagic, kCommonMagic) == 0 ? Fault::kVersion : Fault::kDamaged;
  if (header.header_checksum != header_checksum(header)) return Fault::kDamaged;
  return header.bytes() <= size - offset ? Fault::kNone : Fault::kTruncated;
}

Fault read_body(const File& file, uint64_t offset, const RecordHeader& header, Record& record) {
  record.kind = header.kind;
  record.key.resize(header.key_size);
  record.payload.resize(header.payload_size);
  offset += sizeof header;
  if (!file.read_at(offset, record.key.data(), record.key.size()) ||
      !file.read_at(offset + record.key.size(), record.payload.data(), record.payload.size()))
    return errno ? Fault::kUnreadable : Fault::kTruncated;
  const Hash128 key_hash = hash128(record.key);
  return hash128(record.payload, key_hash) == header.checksum && key_hash == header.key_hash
             ? Fault::kNone
             : Fault::kDamaged;
}

bool write_record(File& file, const Record& record) {
  const RecordHeader header = header_of(record);
  return file.write(&header, sizeof header) && file.write(record.key.data(), record.key.size()) &&
         file.write(record.payload.data(), record.payload.size());
}

}  // namespace dlb::cl
