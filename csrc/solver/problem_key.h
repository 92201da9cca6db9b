// Keys: problems as text, "conv_fwd:float32 n=8 c=64 ...", which the stores, logs and users see. A problem's
// visit() names its fields once; the writer and the reader here do the rest.
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <iterator>
#include <sstream>
#include <string>

#include "solver/problem.h"

namespace dlb::solver {

// Appends fields to a string. It is no stream, because every new problem's key is written while the program
// waits.
class KeyWriter {
 public:
  KeyWriter(const char* op, c10::ScalarType dtype);
  std::string finish() { return std::move(out_); }

  template <class T>
  void operator()(const char* name, const T& value) {
    begin(name);
    put(value);
  }
  // A last field: 0 or 1, or a value that makes itself a word. Keys lack it where it is 0, because keys were
  // stored before the field existed.
  template <class T>
  void if_set(const char* name, const T& value) {
    if (!value) return;
    begin(name);
    if constexpr (requires { value.key_text(); })
      out_ += value.key_text();
    else
      put(value);
  }
  template <size_t N>
  void operator()(const char* name, const char (&text)[N]) {
    begin(name);
    out_ += text[0] ? text : "-";
  }
  template <class T, size_t N>
  void operator()(const char* name, const T (&values)[N]) {
    begin(name);
    for (size_t i = 0; i < N; i++) {
      if (i) out_ += ',';
      put(values[i]);
    }
  }

 private:
  void begin(const char* name) { out_.append(1, ' ').append(name).append(1, '='); }
  void put(int64_t number);
  void put(c10::ScalarType type);

  std::string out_;
};

// Reads what a KeyWriter wrote. Every function throws std::invalid_argument for other text.
class KeyReader {
 public:
  // Reads the op's name and the dtype.
  KeyReader(const std::string& key, const char* op, c10::ScalarType& dtype);
  // Throws unless the whole key was read.
  void finish();

  template <class T>
  void operator()(const char* name, T& value) {
    expect(std::string(" ") + name + "=");
    get(value);
  }
  template <class T>
  void if_set(const char* name, T& value) {
    const std::string field = std::string(" ") + name + "=";
    if constexpr (requires { T::parse(name); }) {
      if (take(field)) value = T::parse(graphic_word(kMostWord));
    } else {
      if constexpr (sizeof(T) == 1) {
        if (take(field + "1")) value = 1;
      } else {
        if (take(field)) value = static_cast<T>(number());
      }
    }
  }
  template <size_t N>
  void operator()(const char* name, char (&text)[N]) {
    expect(std::string(" ") + name + "=");
    const std::string word = graphic_word(N - 1);
    if (word != "-") word.copy(text, N - 1);
  }
  template <class T, size_t N>
  void operator()(const char* name, T (&values)[N]) {
    expect(std::string(" ") + name + "=");
    for (size_t i = 0; i < N; i++) {
      if (i) expect(",");
      get(values[i]);
    }
  }

 private:
  static constexpr size_t kMostWord = 1 << 16;

  void expect(const std::string& text);
  bool take(const std::string& text);  // false, with nothing read, where other text follows
  std::string graphic_word(size_t most);
  int64_t number();
  void get(c10::ScalarType& type);
  template <class T>
  void get(T& value) {
    value = static_cast<T>(number());
  }

  std::istringstream in_;
};

// Throws std::invalid_argument for TF32 with another dtype than float32.
void check_tf32(const Problem& problem);

}  // namespace dlb::solver
