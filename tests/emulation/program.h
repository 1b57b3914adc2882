// Owns what the test programs share: the schedule of their arguments, named kernels, files of cases.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>

#include <emulation/emulation.h>

namespace glm53::program {

// What a case says of its kernel's launch; zeros leave it to the kernel.
inline std::array<std::int64_t, 3> plan{};

inline void set_schedule(const char* order, const char* seed) {
  emulation::schedule = {emulation::parse_order(order), std::strtoull(seed, nullptr, 10)};
}

struct Entry {
  const char* name;
  const char* (*run)();
};

// Arguments: NAME ORDER SEED. Prints what the entry says or what the emulation refuses; 1 without it.
inline int run_entry(std::span<const Entry> entries, char** arguments) {
  set_schedule(arguments[2], arguments[3]);
  for (const Entry& entry : entries) {
    if (std::strcmp(entry.name, arguments[1])) continue;
    try {
      std::puts(entry.run());
    } catch (const std::runtime_error& error) {
      std::printf("refused: %s\n", error.what());
    }
    return 0;
  }
  return 1;
}

// Arguments: CASES RESULTS ORDER SEED. Calls run(header, cases, results) for each case of the file.
template <class Header, class Run>
int run_cases(const Run& run, char** arguments) {
  set_schedule(arguments[3], arguments[4]);
  std::FILE* cases = std::fopen(arguments[1], "rb");
  std::FILE* results = std::fopen(arguments[2], "wb");
  if (!cases || !results) return 2;
  try {
    for (Header header; std::fread(&header, sizeof header, 1, cases) == 1;) {
      run(header, cases, results);
    }
  } catch (const std::runtime_error& error) {
    std::printf("refused: %s\n", error.what());
    return 1;
  }
  return std::fclose(results);
}

}  // namespace glm53::program
