// The entry of a program in the program store: its binary, or a note that the driver's own cache has it.
#pragma once
#include <string>
#include <string_view>

#include "cl/compile.h"
#include "cl/device.h"
#include "cl/hash.h"

namespace dlb::cl {

// PoCL keeps what it compiles in a cache of its own, from where a program is built again in a few
// milliseconds (cl/builtins.h). Asked for the binary, it compiles every kernel for work-groups of any size: a
// tenth of a second and more for each, under locks that launches need, for code that never runs where the
// program's IR is at hand. So the store only notes which folder of which cache has the program. Packs have
// binaries.
//
// PoCL takes what it finds under the hash of a source, whatever state that is in. So what is compiled gets a
// symbol with a random name: PoCL finds nothing of it before, and only what a stored entry names, and has
// been checked, is built again. The name also tells the folder.

// A new symbol name with random digits.
std::string new_marker();

// The marker in a note or a binary; "" where there is none.
std::string marker_of(std::string_view stored);

// The source with a declaration of the marker's symbol; the source itself for "".
std::string marked(const std::string& source, const std::string& marker);

// The identity of the driver's own cache on disk; "" where the driver has none.
std::string driver_cache_of(const Device& device);

// The folder of the driver's own cache that has what was stored, or "" where that is not known.
std::string stored_folder(std::string_view stored);

// The entry to store for a program that was compiled from this source with this marker: its binary, or a note
// where the driver keeps the binary. "" where the driver keeps it in a folder that is not known.
std::string what_to_store(const Device& device, const std::string& source, const Compiled& compiled,
                          const std::string& marker);

// The program of a stored binary or note; null where it cannot be loaded any more.
cl_program load_stored(Device& device, const std::string& stored, const std::string& source,
                       const std::string& options, const Hash128& key);

// Whether an entry of the program store is a note instead of a binary. Other machines cannot use a note.
bool is_note(std::string_view stored);

}  // namespace dlb::cl
