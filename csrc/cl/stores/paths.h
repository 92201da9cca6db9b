// Where things live on this machine: the Python prefix that may hold a pip-installed driver, the installed
// package, and the cache folder.
#pragma once
#include <string>

namespace dlb::cl {

// Python's sys.prefix, which the Python package sets at import. Empty in a process without Python.
std::string python_prefix();
void set_python_prefix(const std::string& prefix);

// The folder of the Python package, set likewise. Its folder packs/ holds the packs that are shipped.
const std::string& package_dir();
void set_package_dir(const std::string& folder);

// DLBACKEND_CACHE_DIR, else $XDG_CACHE_HOME/dlbackend, else ~/.cache/dlbackend; a folder under $TMPDIR when
// none of them can be written, unless it is not this user's alone. Created on first use. Empty when
// DLBACKEND_CACHE_DIR is set to the empty string (no cache).
const std::string& cache_dir();

// Creates the folder and its parents; false when that fails.
bool make_folders(const std::string& path);

// Points POCL_CACHE_DIR into our cache folder, unless the user has set it, or with a warning into a folder
// for temporary files where less than 64 MiB are free. PoCL needs that: it shows no device when its cache
// folder cannot be written, aborts when POCL_CACHE_DIR is empty, and ends the process when the disk is full.
// To be called before the library is loaded.
void prepare_driver_caches();

// PoCL's part of our cache folder, or "" where the user has set another folder with POCL_CACHE_DIR.
std::string own_driver_cache();

// The folder of PoCL's cache if its disk has less room left now than one program may take, else "".
std::string driver_cache_without_room();

// Identifies the folder of PoCL's cache by device and inode numbers. Empty where there is no cache, or
// POCL_KERNEL_CACHE=0 turns it off.
std::string pocl_cache_identity();

}  // namespace dlb::cl
