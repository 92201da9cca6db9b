// The one place that reads environment variables: a function for each. docs/environment.md says what they
// mean to users. Every call reads the variable again; callers keep what must not change while the process
// runs.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace dlb::cl::settings {

// Where "not set" and "set to nothing" differ: no value is the former, an empty text the latter.
std::optional<std::string> devices();    // DLBACKEND_DEVICES; set to nothing it selects no device
std::optional<std::string> cache_dir();  // DLBACKEND_CACHE_DIR; set to nothing there is no cache
std::optional<std::string> packs();      // DLBACKEND_PACKS; set to nothing there are no packs

// One of the named words. Empty where the variable is not set and, with a line on stderr, where it holds
// another word.
std::string rates();           // DLBACKEND_RATES: measured, derived
std::string enqueue_thread();  // DLBACKEND_ENQUEUE_THREAD: 0, 1

// Parts of DLBACKEND_EMULATE, a list such as "class=gpu,tensor_cores=emulated" of what devices are taken to
// have in place of what their drivers and the system report. Empty or 0 where the list does not name the part
// and, with a line on stderr, where it gives it another value.
std::string emulated_class();           // class: cpu, gpu
std::string emulated_bf16();            // bf16: vectors, none
std::string emulated_int8();            // int8: vectors, pairs
std::string emulated_tensor_cores();    // tensor_cores: none, emulated
std::string emulated_groups_advance();  // groups_advance: 0, 1
std::string emulated_tiers();           // tiers: 0, 1
std::string emulated_host();            // host: any name
uint64_t emulated_cache();              // cache, bytes
uint64_t emulated_vector_floats();      // vector_floats

// A number above 0. It is 0 where the variable is not set and, with a line on stderr, where it holds
// something else.
uint64_t max_programs();  // DLBACKEND_MAX_PROGRAMS

// Numbers in a range. The comment ends with the default, which also holds, with a line on stderr, where the
// variable is no such number.
std::optional<unsigned> compile_processes();  // DLBACKEND_COMPILE_PROCESSES, 0 to 64; no value
unsigned local_ranks();  // LOCAL_WORLD_SIZE, as torchrun sets it: processes that share this host; 1
int verbose();           // DLBACKEND_VERBOSE, 0 to 2; 0

// Texts that their readers parse; empty where the variable is not set.
std::string opencl_library();  // DLBACKEND_OPENCL_LIBRARY
std::string find_mode();       // DLBACKEND_FIND_MODE
std::string find_share();      // DLBACKEND_FIND_SHARE
std::string solver();          // DLBACKEND_SOLVER
std::string fallback();        // DLBACKEND_FALLBACK

// Variables of the system and of PoCL; empty where they are not set.
std::string home();               // HOME
std::string xdg_cache_home();     // XDG_CACHE_HOME
std::string temporary_folder();   // TMPDIR, else "/tmp"
std::string pocl_cache_dir();     // POCL_CACHE_DIR
std::string pocl_kernel_cache();  // POCL_KERNEL_CACHE

// Sets POCL_CACHE_DIR for the driver, which reads it when the library is loaded.
void set_pocl_cache_dir(const std::string& folder);
// Sets CUDA_DEVICE_MAX_CONNECTIONS for NVIDIA's driver, unless the user has set it.
void set_default_cuda_connections(int connections);
// Sets how many threads PoCL starts, unless the user has set it.
void set_default_pocl_threads(int threads);

}  // namespace dlb::cl::settings
