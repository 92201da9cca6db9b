// cl/stores/record.h: a record comes back as it was written, and any damage to it is found.
#include "cl/stores/record.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace {

using dlb::cl::Fault;
using dlb::cl::File;
using dlb::cl::Record;
using dlb::cl::RecordHeader;
using dlb::cl::StoreKind;

// A file of a test's own that is removed with it.
class TemporaryFile {
 public:
  TemporaryFile() {
    const int fd = ::mkstemp(path_);
    REQUIRE(fd >= 0);
    ::close(fd);
  }
  ~TemporaryFile() { ::unlink(path_); }
  TemporaryFile(const TemporaryFile&) = delete;

  void write(const std::string& content) const {
    File file(path_, O_WRONLY | O_TRUNC);
    REQUIRE(file.write(content.data(), content.size()));
  }
  std::string content() const {
    File file(path_, O_RDONLY);
    std::string text(static_cast<size_t>(::lseek(file.fd(), 0, SEEK_END)), '\0');
    REQUIRE(file.read_at(0, text.data(), text.size()));
    return text;
  }
  const char* path() const { return path_; }

 private:
  char path_[64] = "/tmp/dlbackend-unit-XXXXXX";
};

// The first fault of the record at `offset`, and what was read.
Fault read_at(const TemporaryFile& temporary, uint64_t offset, Record& record) {
  const File file(temporary.path(), O_RDONLY);
  const uint64_t size = temporary.content().size();
  RecordHeader header{};
  const Fault fault = read_header(file, offset, size, header);
  return fault == Fault::kNone ? read_body(file, offset, header, record) : fault;
}

std::string bytes_of(const Record& record) {
  const TemporaryFile temporary;
  File file(temporary.path(), O_WRONLY);
  REQUIRE(write_record(file, record));
  REQUIRE(file.close());
  return temporary.content();
}

const Record kRecord{StoreKind::kFind, "place\nproblem", std::string("solver\0 12 us", 13)};

}  // namespace

TEST_CASE("A record comes back as it was written, wherever it lies in a file") {
  for (const Record& record :
       {kRecord, Record{StoreKind::kProgram, "", ""}, Record{StoreKind::kProgram, "key", ""},
        Record{StoreKind::kFind, "key", std::string(1 << 20, 'x')}})
    for (const uint64_t offset : {uint64_t{0}, uint64_t{7}}) {
      const TemporaryFile temporary;
      const std::string bytes = bytes_of(record);
      CHECK(bytes.size() == header_of(record).bytes());
      temporary.write(std::string(offset, '-') + bytes + "what follows");
      Record found;
      REQUIRE(read_at(temporary, offset, found) == Fault::kNone);
      CHECK(found.kind == record.kind);
      CHECK(found.key == record.key);
      CHECK(found.payload == record.payload);
    }
}

TEST_CASE("A record that is cut anywhere ends early") {
  const std::string bytes = bytes_of(kRecord);
  const TemporaryFile temporary;
  for (size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    temporary.write(bytes.substr(0, size));
    Record found;
    CHECK(read_at(temporary, 0, found) == Fault::kTruncated);
  }
}

TEST_CASE("A change of any bit of a record is found") {
  const std::string bytes = bytes_of(kRecord);
  const TemporaryFile temporary;
  for (size_t at = 0; at < bytes.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      CAPTURE(at);
      CAPTURE(bit);
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      temporary.write(damaged);
      Record found;
      CHECK(read_at(temporary, 0, found) != Fault::kNone);
    }
}

TEST_CASE("A record of another version of the format is told from a damaged one") {
  std::string bytes = bytes_of(kRecord);
  const TemporaryFile temporary;
  Record found;
  bytes[sizeof dlb::cl::kRecordMagic - 1] = '9';
  temporary.write(bytes);
  CHECK(read_at(temporary, 0, found) == Fault::kVersion);
  bytes[0] = 'x';
  temporary.write(bytes);
  CHECK(read_at(temporary, 0, found) == Fault::kDamaged);
}

TEST_CASE("The next record is found behind what is damaged, also across the end of a chunk") {
  constexpr size_t kChunk = 1 << 20;  // File::find reads so much at once
  for (const size_t garbage :
       {size_t{0}, size_t{1}, kChunk - 8, kChunk - 4, kChunk - 1, kChunk, kChunk + 3}) {
    CAPTURE(garbage);
    const TemporaryFile temporary;
    temporary.write(std::string(garbage, 'D') + bytes_of(kRecord));
    const File file(temporary.path(), O_RDONLY);
    uint64_t offset = 0;
    const uint64_t size = temporary.content().size();
    REQUIRE(file.find(offset, size, dlb::cl::kRecordMagic));
    CHECK(offset == garbage);
    offset = garbage + 1;
    CHECK_FALSE(file.find(offset, size, dlb::cl::kRecordMagic));
  }
}

TEST_CASE("A file that is not there is no file") {
  const File file("/nonexistent/dlbackend", O_RDONLY);
  CHECK_FALSE(file.ok());
  RecordHeader header{};
  CHECK(read_header(file, 0, sizeof header, header) == Fault::kUnreadable);
}
