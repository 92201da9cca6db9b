// PoCL's own cache on disk: a folder for each program with its IR (program.bc) and, for each kernel and
// work-group size, machine code that it adds when one is first launched. PoCL believes whatever lies there
// and aborts, or crashes, where that is damaged. So what it is about to load is compared with checksums that
// processes leave in the program's folder, and the whole is kept within bounds.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dlb::cl {

// The folder (in PoCL's cache) of the program that has this binary, as the binary says; "" for binaries of
// other drivers.
std::string driver_folder_of_binary(std::string_view binary);

// The folder of a program whose source declares a symbol `marker`, and that was built in the last `seconds`;
// "" if there is none.
std::string find_driver_folder(const std::string& marker, double seconds);

// Removes what is damaged among the files of a program, and says whether its IR is there and sound. Without
// sound IR the folder goes, except where the program's binary is given: from that PoCL brings back what is
// missing, and IR without a checksum is compared with it. Until the process ends the folder counts as used.
bool check_driver_folder(const std::string& folder, std::string_view binary = {});

// Whether the folder has machine code of a kernel, for whatever work-group size.
bool has_driver_code(const std::string& folder, const std::string& kernel);

// Writes the checksums of a program's files into its folder.
void record_driver_folder(const std::string& folder) noexcept;
// Does so for all folders that this process used. To be called when it ends, because its launches added code.
void record_driver_folders() noexcept;

// Removes a program. Others may use it meanwhile: PoCL makes what it misses again.
bool remove_driver_folder(const std::string& root, const std::string& folder) noexcept;

// PoCL's part of our cache folder, for tools and for keeping it small.
class OwnDriverCache {
 public:
  struct Folder {
    std::string name;
    uint64_t bytes = 0;
    int64_t used = 0;  // nanoseconds since 1970: when PoCL last built the program
  };
  const std::string& root() const { return root_; }
  uint64_t max_bytes() const;
  std::vector<Folder> folders() const;
  // The fault of a program's files, or "".
  std::string fault(const std::string& folder) const;
  bool remove(const std::string& folder) const noexcept { return remove_driver_folder(root_, folder); }
  // Removes the least recently used programs beyond max_bytes(), and what killed processes left.
  void prune() const noexcept;

 private:
  friend const OwnDriverCache& own_driver_programs();
  explicit OwnDriverCache(std::string root) : root_(std::move(root)) {}
  const std::string root_;
};
const OwnDriverCache& own_driver_programs();

}  // namespace dlb::cl
