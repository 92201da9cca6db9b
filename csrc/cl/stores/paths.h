// Where things live on this machine: the Python prefix that may hold a pip-installed driver, the installed
// package, and the cache folder.
#pragma once
#include <string>

namespace dlb::cl {

// sys.prefix, told by the Python package at import; empty in a process without Python.
std::string python_prefix();
void set_python_prefix(const std::string& prefix);

// The folder of the Python package, told likewise; its packs/ holds what is shipped.
const std::string& package_dir();
void set_package_dir(const std::string& folder);

// DLBACKEND_CACHE_DIR, else $XDG_CACHE_HOME/dlbackend, else ~/.cache/dlbackend; a folder under $TMPDIR when
// none of them can be written, unless it is not this user's alone. Created on first use. Empty when
// DLBACKEND_CACHE_DIR is set to the empty string (no cache).
const std::string& cache_dir();

// Creates the folder and its parents; false when that fails.
bool make_folders(const std::string& path);

// PoCL shows no device at all when its cache folder cannot be written, and aborts when POCL_CACHE_DIR is
// empty, and ends the process when the disk is full: points POCL_CACHE_DIR into our cache folder unless the
// user has set it, and to a folder for temporary files, with a warning, where less than 64 MiB are free.
// Called before the library is loaded.
void prepare_driver_caches();

// The part of our cache folder that is PoCL's, or "" where the user has set another with POCL_CACHE_DIR.
std::string own_driver_cache();

// The folder of PoCL's cache where less is free now than a program may take, else "".
std::string driver_cache_without_room();

// Which folder PoCL's cache is in, by device and inode numbers; empty where there is none or
// POCL_KERNEL_CACHE=0.
std::string pocl_cache_identity();

}  // namespace dlb::cl
