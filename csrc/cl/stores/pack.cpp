// File layout: a header that says how many entries were written, then that many records (cl/stores/record.h).
#include "cl/stores/pack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "cl/log.h"
#include "cl/settings.h"
#include "cl/stores/paths.h"

namespace dlb::cl {
namespace {

constexpr char kPackMagic[8] = {'D', 'L', 'B', 'P', 'A', 'C', 'K', '2'};

struct PackHeader {
  char magic[8];
  uint64_t entries;
  Hash128 checksum;  // of the members above
};
static_assert(sizeof(PackHeader) == 32);

PackHeader pack_header(uint64_t entries) {
  PackHeader header{{}, entries, {}};
  std::memcpy(header.magic, kPackMagic, sizeof kPackMagic);
  header.checksum = hash128({reinterpret_cast<const char*>(&header), offsetof(PackHeader, checksum)});
  return header;
}

auto order(const Pack::Item& item) {
  return std::tie(item.key_hash, item.kind);
}

}  // namespace

void Pack::warn(const std::string& what) {
  std::call_once(warned_, [&] {
    std::fprintf(stderr, "dlbackend: pack %s: %s; what is sound in it is used\n", path_.c_str(),
                 what.c_str());
  });
}

void Pack::open() {
  std::call_once(opened_, [this] {
    file_.emplace(path_, O_RDONLY);
    struct stat info {};
    if (!file_->ok() || ::fstat(file_->fd(), &info) != 0)
      faults_.push_back(std::strerror(errno));
    else if (!S_ISREG(info.st_mode))
      faults_.push_back("not a file");
    else
      scan(static_cast<uint64_t>(info.st_size));
    std::stable_sort(items_.begin(), items_.end(), [](auto& a, auto& b) { return order(a) < order(b); });
  });
}

// Records are found by their headers alone. The size of a damaged record is not known, so the next record is
// searched for behind it.
void Pack::scan(uint64_t size) {
  PackHeader header{};
  uint64_t at = sizeof header;
  const bool readable = file_->read_at(0, &header, sizeof header);
  const PackHeader expected = pack_header(header.entries);
  const bool sound = readable && std::memcmp(&header, &expected, sizeof header) == 0;
  if (!sound) {
    faults_.push_back("its header is damaged, of another version, or that of another kind of file");
    at = 0;
    if (!file_->find(at, size, kRecordMagic)) return;
  }
  while (at < size) {
    RecordHeader record{};
    const Fault fault = read_header(*file_, at, size, record);
    if (fault == Fault::kNone) {
      items_.push_back({record.kind, record.key_hash, at, record.bytes()});
      at += record.bytes();
      continue;
    }
    faults_.push_back("the entry at byte " + std::to_string(at) + ": " + describe(fault));
    if (!file_->find(++at, size, kRecordMagic)) break;
  }
  if (sound && items_.size() != header.entries)
    faults_.push_back(std::to_string(items_.size()) + " of " + std::to_string(header.entries) +
                      " entries are there");
}

const std::vector<Pack::Item>& Pack::items() {
  open();
  return items_;
}

const std::vector<std::string>& Pack::faults() {
  open();
  return faults_;
}

Fault Pack::read(const Item& item, Record& record) const {
  RecordHeader header{};
  const Fault fault = read_header(*file_, item.offset, item.offset + item.bytes, header);
  return fault == Fault::kNone ? read_body(*file_, item.offset, header, record) : fault;
}

std::optional<std::string> Pack::load(StoreKind kind, const std::string& key) noexcept try {
  open();
  if (!faults_.empty()) warn(faults_.front());
  const Item wanted{kind, hash128(key), 0, 0};
  auto less = [](const Item& a, const Item& b) { return order(a) < order(b); };
  for (auto [item, end] = std::equal_range(items_.begin(), items_.end(), wanted, less); item != end; ++item) {
    Record record;
    const Fault fault = read(*item, record);
    if (fault == Fault::kNone && record.key == key) return std::move(record.payload);
    if (fault != Fault::kNone)
      warn("the entry at byte " + std::to_string(item->offset) + ": " + describe(fault));
  }
  return std::nullopt;
} catch (...) {
  log_dropped("reading a pack");
  return std::nullopt;
}

PackWriter::PackWriter(std::string path)
    : path_(std::move(path)),
      temporary_(path_ + ".tmp." + std::to_string(::getpid())),
      file_(temporary_, O_CREAT | O_TRUNC | O_WRONLY, 0666) {
  const PackHeader header = pack_header(0);
  if (!file_.ok() || !file_.write(&header, sizeof header)) fail();
}

void PackWriter::discard() noexcept {
  if (!finished_) ::unlink(temporary_.c_str());
  finished_ = true;
}

void PackWriter::fail() {
  const std::string reason = std::strerror(errno);
  discard();
  throw std::runtime_error("cannot write " + path_ + ": " + reason);
}

void PackWriter::add(const Record& record) {
  if (!write_record(file_, record)) fail();
  entries_++;
}

void PackWriter::finish() {
  const PackHeader header = pack_header(entries_);
  if (::pwrite(file_.fd(), &header, sizeof header, 0) != sizeof header || ::fsync(file_.fd()) != 0 ||
      !file_.close() || ::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail();
  finished_ = true;
}

namespace {

std::vector<std::string> pack_paths() {
  std::vector<std::string> paths;
  const std::optional<std::string> named = settings::packs();
  if (named && named->empty()) return paths;
  std::istringstream words(named.value_or(""));
  for (std::string path; std::getline(words, path, ':');)
    if (!path.empty()) paths.push_back(path);
  const auto shipped_from = static_cast<std::ptrdiff_t>(paths.size());
  if (package_dir().empty()) return paths;
  std::error_code error;
  std::filesystem::directory_iterator item(package_dir() + "/packs", error), end;
  for (; !error && item != end; item.increment(error))
    if (item->path().extension() == ".pack") paths.push_back(item->path().string());
  std::sort(paths.begin() + shipped_from, paths.end());
  return paths;
}

}  // namespace

const std::vector<std::unique_ptr<Pack>>& system_packs() {
  static const auto* packs = [] {
    auto* result = new std::vector<std::unique_ptr<Pack>>;
    for (const std::string& path : pack_paths()) result->push_back(std::make_unique<Pack>(path));
    return result;
  }();
  return *packs;
}

}  // namespace dlb::cl
