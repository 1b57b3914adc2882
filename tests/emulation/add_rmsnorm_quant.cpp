// Owns a program that runs add_rmsnorm_quant on cases from a file, each buffer a heap block of its
// own.
// Usage: add_rmsnorm_quant CASES RESULTS ORDER SEED. A case is a Header and the elements of x, of
// the residual if there is one, and of the weight; its result is those of the residual, y, q and
// scale, whole buffers with what lies between their rows, then bytes read and written by x,
// residual, weight, y, q, scale.
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include <kernels/add_rmsnorm_quant.cuh>

#include "program.h"

using namespace glm53;

namespace {

struct Header {
  std::int64_t rows, hidden, scales, has_residual, has_y;
  std::int64_t x_stride, residual_stride, y_stride, q_stride, scale_row_stride, scale_group_stride;
  std::int64_t scale_words;
  double eps;
};

// Exactly as long as its last row needs, so that AddressSanitizer guards its end; what no kernel
// writes keeps the byte that the tests know.
template <class Element>
struct Tensor {
  explicit Tensor(std::int64_t elements) : bytes(elements * sizeof(Element)) {
    if (!bytes) return;
    data = static_cast<Element*>(::operator new(bytes, std::align_val_t(16)));
    std::memset(static_cast<void*>(data), 0xa5, bytes);
  }
  ~Tensor() { ::operator delete(data, std::align_val_t(16)); }
  void read(std::FILE* file) {
    if (bytes && std::fread(data, 1, bytes, file) != bytes) {
      throw std::runtime_error("the case is cut short");
    }
  }
  void write(std::FILE* file) const {
    if (bytes) std::fwrite(data, 1, bytes, file);
  }

  Element* data = nullptr;
  std::size_t bytes;
};

void write_traffic(std::FILE* file) {
  for (const char* name : {"x", "residual", "weight", "y", "q", "scale"}) {
    std::uint64_t moved[2] = {};
    for (const emulation::Buffer& buffer : emulation::traffic) {
      if (std::strcmp(buffer.name, name)) continue;
      moved[0] = buffer.bytes_read;
      moved[1] = buffer.bytes_written;
    }
    std::fwrite(moved, sizeof moved[0], 2, file);
  }
}

void run(const Header& header, std::FILE* cases, std::FILE* results) {
  const Scales scales = static_cast<Scales>(header.scales);
  const auto elements = [&](std::int64_t stride, bool there) {
    return there ? (header.rows - 1) * stride + header.hidden : 0;
  };
  Tensor<Bf16> x(elements(header.x_stride, true)), weight(header.hidden);
  Tensor<Bf16> residual(elements(header.residual_stride, header.has_residual));
  Tensor<Bf16> y(elements(header.y_stride, header.has_y));
  Tensor<E4m3> q(elements(header.q_stride, scales != Scales::kNone));
  Tensor<std::uint32_t> scale(header.scale_words);
  x.read(cases);
  residual.read(cases);
  weight.read(cases);
  const AddRmsNormQuantParams params{
      .x = x.data,
      .residual = residual.data,
      .weight = weight.data,
      .y = y.data,
      .q = q.data,
      .scale = scale.data,
      .x_stride = header.x_stride,
      .residual_stride = header.residual_stride,
      .y_stride = header.y_stride,
      .q_stride = header.q_stride,
      .scale_row_stride = header.scale_row_stride,
      .scale_group_stride = header.scale_group_stride,
      .rows = static_cast<std::uint32_t>(header.rows),
      .hidden = static_cast<std::uint32_t>(header.hidden),
      .eps = static_cast<float>(header.eps),
      .scales = scales,
  };
  emulation::launch(add_rmsnorm_quant_shape(params), add_rmsnorm_quant_entry(scales), params);
  residual.write(results);
  y.write(results);
  q.write(results);
  scale.write(results);
  write_traffic(results);
}

}  // namespace

int main(int, char** arguments) { return program::run_cases<Header>(run, arguments); }
