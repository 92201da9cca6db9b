// One entry of a store as bytes, the same in a file of its own and inside a pack: header, key, payload.
// Numbers are little-endian, as on every host that runs this.
#pragma once
#include <cstdint>
#include <string>

#include "cl/hash.h"

namespace dlb::cl {

enum class StoreKind : uint32_t { kProgram = 1, kFind = 2 };

// Why some bytes cannot be used as an entry.
enum class Fault { kNone, kMissing, kUnreadable, kVersion, kTruncated, kDamaged, kMisplaced };
const char* describe(Fault fault);

struct RecordHeader {
  char magic[8];
  StoreKind kind;
  uint32_t key_size;
  uint64_t payload_size;
  Hash128 key_hash;
  Hash128 checksum;          // of key and payload
  uint64_t header_checksum;  // of the members above

  uint64_t bytes() const { return sizeof(RecordHeader) + key_size + payload_size; }  // of the whole record
};
static_assert(sizeof(RecordHeader) == 64);

struct Record {
  StoreKind kind = StoreKind::kProgram;
  std::string key, payload;
};

RecordHeader header_of(const Record& record);

// Owns a file descriptor.
class File {
 public:
  File(const std::string& path, int flags, unsigned mode = 0600);  // errno says why ok() is false
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  bool close();                                                  // false: what was written is not all there
  bool write(const void* data, size_t size);                     // all of it
  bool read_at(uint64_t offset, void* data, size_t size) const;  // all of it; errno 0 at the file's end
  bool find(uint64_t& offset, uint64_t end, const char (&magic)[8]) const;  // the next place of `magic`

 private:
  int fd_;
};

// Reads the header at `offset` of a file of `size` bytes and checks it, and that the record fits.
Fault read_header(const File& file, uint64_t offset, uint64_t size, RecordHeader& header);

// Reads key and payload behind a checked header, and checks them.
Fault read_body(const File& file, uint64_t offset, const RecordHeader& header, Record& record);

// Appends the record to the file. False where that fails; errno says why.
bool write_record(File& file, const Record& record);

extern const char kRecordMagic[8];

}  // namespace dlb::cl
