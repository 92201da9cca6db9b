// Programs that another version of the driver may have compiled. NVIDIA's gives PTX for a program, a text
// that the same and every later driver makes machine code of, for the GPU that it was written for and for
// later ones. So a pack that was made on one machine spares many others the greater part of compiling. Its
// entries have a key without device and driver: what the text is, its target, and the hash of options and
// source, which depend on the device where the program does.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cl/device.h"

namespace dlb::cl {

// The keys under which packs may have a program for this device, those of the latest targets first. None
// where a driver's binaries are its own alone.
std::vector<std::string> portable_keys(const Device& device, const std::string& options,
                                       const std::string& source);

struct PortableProgram {
  std::string key, payload;
};
// The entry of a pack for a program that this device's driver compiled, given its program_key() and its
// binary. Nothing where other drivers cannot use it.
std::optional<PortableProgram> portable_program(const Device& device, const std::string& key,
                                                const std::string& binary);

// The binary in such a payload; nothing where the driver is older than the one that made it, or where it is
// no text for this device.
std::optional<std::string> portable_binary(const Device& device, const std::string& payload);

// Whether the device's driver compiles to PTX, of which it makes machine code when it loads a program.
bool compiles_to_ptx(const Device& device);

// Whether a pack has the program; says of a damaged one that it is.
bool has_portable(const Device& device, const std::string& source, const std::string& options);

// A program out of a pack, built; null where none has it, or the driver does not take it. Throws Error where
// the driver's disk is full.
cl_program load_portable(Device& device, const std::string& source, const std::string& options);

}  // namespace dlb::cl
