// Owns a program that calls one kernel's binding on cases from a file, each tensor a heap block of
// its own. Built with GLM53_STEM, the kernel's name, and GLM53_BINDING, its binding's header.
// Usage: kernel CASES RESULTS ORDER SEED. A case is a Header and its arguments, as Argument::read
// has them; its result is the bytes of the written tensors, whole with what lies between their
// rows, then the length and the text of emulation::last_traffic().
#include <array>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "program.h"

#include GLM53_BINDING

using namespace glm53;

namespace {

struct Header {
  std::int64_t arguments;
  std::array<std::int64_t, 3> plan;
};

struct Free {
  void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t(16)); }
};

struct Argument {
  enum Kind : std::int64_t { kNone, kInteger, kReal, kTensor };

  // The kind; of a number its value; of a tensor the code and bits of its type, its rank, whether
  // the kernel writes it, its bytes, its shape, its strides, and the bytes.
  static Argument read(std::FILE* file) {
    Argument found;
    found.kind = static_cast<Kind>(take<std::int64_t>(file));
    if (found.kind == kInteger) found.integer = take<std::int64_t>(file);
    if (found.kind == kReal) found.real = take<double>(file);
    if (found.kind == kTensor) found.read_tensor(file);
    return found;
  }

  template <class Parameter>
  Parameter as() {
    if constexpr (std::is_same_v<Parameter, ffi::MaybeTensor>) {
      if (kind == kNone) return {};
      return tvm::ffi::TensorView(&tensor);
    } else if constexpr (std::is_same_v<Parameter, ffi::TensorView>) {
      if (kind != kTensor) throw std::runtime_error("a tensor is missing");
      return tvm::ffi::TensorView(&tensor);
    } else {
      return static_cast<Parameter>(std::is_floating_point_v<Parameter> ? real : integer);
    }
  }

  Kind kind = kNone;
  std::int64_t integer = 0, bytes = 0;
  double real = 0;
  bool written = false;
  std::unique_ptr<std::byte, Free> data;

 private:
  template <class Value>
  static Value take(std::FILE* file) {
    Value value;
    if (std::fread(&value, sizeof value, 1, file) != 1) throw std::runtime_error("cut short");
    return value;
  }

  void read_tensor(std::FILE* file) {
    tensor.dtype.code = static_cast<std::uint8_t>(take<std::int64_t>(file));
    tensor.dtype.bits = static_cast<std::uint8_t>(take<std::int64_t>(file));
    tensor.dtype.lanes = 1;
    tensor.ndim = static_cast<std::int32_t>(take<std::int64_t>(file));
    written = take<std::int64_t>(file) != 0;
    bytes = take<std::int64_t>(file);
    sizes = std::make_unique<std::int64_t[]>(2 * tensor.ndim);
    for (int i = 0; i < 2 * tensor.ndim; ++i) sizes[i] = take<std::int64_t>(file);
    tensor.shape = sizes.get();
    tensor.strides = sizes.get() + tensor.ndim;
    tensor.device = {kDLCPU, 0};
    // Exactly as long as its last row needs, so that AddressSanitizer guards its end.
    data.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(16))));
    tensor.data = data.get();
    if (bytes && std::fread(data.get(), bytes, 1, file) != 1) throw std::runtime_error("cut short");
  }

  DLTensor tensor{};
  std::unique_ptr<std::int64_t[]> sizes;
};

template <class... Parameters>
void call(void (*binding)(Parameters...), std::vector<Argument>& arguments) {
  if (arguments.size() != sizeof...(Parameters)) throw std::runtime_error("another signature");
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    binding(arguments[i].template as<Parameters>()...);
  }(std::index_sequence_for<Parameters...>{});
}

void run(const Header& header, std::FILE* cases, std::FILE* results) {
  std::vector<Argument> arguments;
  for (std::int64_t i = 0; i < header.arguments; ++i) arguments.push_back(Argument::read(cases));
  program::plan = header.plan;
  call(GLM53_STEM, arguments);
  for (const Argument& argument : arguments) {
    if (argument.written) std::fwrite(argument.data.get(), 1, argument.bytes, results);
  }
  const tvm::ffi::String traffic = emulation::last_traffic();
  const std::int64_t length = static_cast<std::int64_t>(traffic.size());
  std::fwrite(&length, sizeof length, 1, results);
  std::fwrite(traffic.data(), 1, traffic.size(), results);
}

}  // namespace

int main(int, char** arguments) { return program::run_cases<Header>(run, arguments); }
