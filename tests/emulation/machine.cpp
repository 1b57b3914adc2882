// Owns the checks of the emulation itself: what correct kernels compute under it.
// Usage: machine ORDER SEED; prints each wrong value, exits with their number.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <glm53/device.cuh>
#include <glm53/pack.cuh>

using namespace glm53;

namespace {

int faults = 0;

void expect(const char* what, std::size_t at, long long found, long long wanted) {
  if (found == wanted) return;
  ++faults;
  std::printf("%s[%zu]: %lld, expected %lld\n", what, at, found, wanted);
}

template <class Value>
struct Output {
  Value* out;
};

void indices() {
  struct Record {
    std::uint32_t thread[3], block[3], block_dim[3], grid_dim[3];
  };
  const dim3 grid{3, 2, 2}, block{5, 4, 3};
  std::vector<Record> records(12 * 60);
  const auto kernel = [](Output<Record> params) {
    const std::uint32_t b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const std::uint32_t t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    params.out[b * 60 + t] = {{threadIdx.x, threadIdx.y, threadIdx.z},
                              {blockIdx.x, blockIdx.y, blockIdx.z},
                              {blockDim.x, blockDim.y, blockDim.z},
                              {gridDim.x, gridDim.y, gridDim.z}};
  };
  emulation::launch<Output<Record>>({grid, block}, kernel, {records.data()});
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::size_t t = i % 60, b = i / 60;
    expect("threadIdx.x", i, records[i].thread[0], t % 5);
    expect("threadIdx.y", i, records[i].thread[1], t / 5 % 4);
    expect("threadIdx.z", i, records[i].thread[2], t / 20);
    expect("blockIdx.x", i, records[i].block[0], b % 3);
    expect("blockIdx.y", i, records[i].block[1], b / 3 % 2);
    expect("blockIdx.z", i, records[i].block[2], b / 6);
    expect("blockDim.z", i, records[i].block_dim[2], 3);
    expect("gridDim.y", i, records[i].grid_dim[1], 2);
  }
}

void shared_memory() {
  std::vector<int> out(2 * 96);
  const auto kernel = [](Output<int> params) {
    struct Shared {
      int values[96];
    };
    GLM53_SHARED(Shared, forward);
    GLM53_SHARED(Shared, fresh);
    GLM53_DYNAMIC_SHARED(int, backward);
    const int t = static_cast<int>(threadIdx.x);
    const int poison = fresh.values[t];
    forward.values[t] = t;
    __syncthreads();
    backward[t] = forward.values[95 - t];
    __syncthreads();
    params.out[blockIdx.x * 96 + t] = backward[(t + 1) % 96] + (poison == -1 ? 0 : 1000);
  };
  emulation::launch<Output<int>>({{2}, {96}, 96 * sizeof(int)}, kernel, {out.data()});
  for (int i = 0; i < 192; ++i) expect("shared", i, out[i], 95 - (i % 96 + 1) % 96);
}

void shuffles() {
  std::vector<std::uint64_t> out(4 * 32 * 3);
  const auto kernel = [](Output<std::uint64_t> params) {
    const std::uint32_t t = threadIdx.x;
    const std::uint64_t mine = 1'000'000'000'000 + t;
    std::uint64_t* place = params.out + t;
    for (const std::uint32_t width : {32u, 16u, 8u}) {
      place[0] = __shfl_sync(kAllLanes, mine, 3, width);
      place[32] = __shfl_up_sync(kAllLanes, mine, 5, width);
      place[64] = __shfl_down_sync(kAllLanes, mine, 5, width);
      place[96] = __shfl_xor_sync(kAllLanes, mine, 12, width);
      place += 128;
    }
  };
  emulation::launch<Output<std::uint64_t>>({{1}, {32}}, kernel, {out.data()});
  int set = 0;
  for (const int width : {32, 16, 8}) {
    for (int t = 0; t < 32; ++t) {
      const int first = t / width * width, end = first + width;
      const auto lane = [&](int kind) {
        return static_cast<long long>(out[set * 128 + kind * 32 + t] - 1'000'000'000'000);
      };
      expect("shfl", t, lane(0), first + 3);
      expect("shfl_up", t, lane(1), t - 5 >= first ? t - 5 : t);
      expect("shfl_down", t, lane(2), t + 5 < end ? t + 5 : t);
      expect("shfl_xor", t, lane(3), (t ^ 12) < end ? t ^ 12 : t);
    }
    ++set;
  }
}

// The halves of a warp run different code with masks of their own, then meet again.
void partial_masks() {
  std::vector<std::uint32_t> out(48);
  const auto kernel = [](Output<std::uint32_t> params) {
    const std::uint32_t t = threadIdx.x, lane = t % 32;
    const std::uint32_t whole = t < 32 ? kAllLanes : 0xffffu;
    std::uint32_t value;
    if (lane < 16) {
      value = __shfl_xor_sync(0xffffu, t, 1);
      value += __ballot_sync(0xffffu, lane % 3 == 0);
    } else {
      value = __reduce_add_sync(0xffff0000u, t);
    }
    params.out[t] = __shfl_sync(whole, value, 15 - lane % 16);
  };
  emulation::launch<Output<std::uint32_t>>({{1}, {48}}, kernel, {out.data()});
  for (std::uint32_t t = 0; t < 48; ++t) {
    const std::uint32_t warp = t / 32 * 32, from = 15 - t % 16;
    std::uint32_t ballot = 0;
    for (int lane = 0; lane < 16; lane += 3) ballot |= 1u << lane;
    expect("partial", t, out[t], (warp + (from ^ 1)) + ballot);
  }
}

void votes() {
  std::vector<std::uint32_t> out(9 * 64);
  const auto kernel = [](Output<std::uint32_t> params) {
    const std::uint32_t t = threadIdx.x, lane = t % 32;
    std::uint32_t* place = params.out + t;
    place[0] = __ballot_sync(kAllLanes, lane % 5 == 1);
    place[64] = __any_sync(kAllLanes, t == 40) * 2 + __any_sync(kAllLanes, t == 99);
    place[128] = __all_sync(kAllLanes, t < 32) * 2 + __all_sync(kAllLanes, 1);
    place[192] = __reduce_add_sync(kAllLanes, t);
    place[256] = __reduce_min_sync(kAllLanes, (t * 7 + 3) % 64);
    place[320] = __reduce_max_sync(kAllLanes, (t * 7 + 3) % 64);
    place[384] = __syncthreads_count(t % 3 == 0);
    place[448] = __syncthreads_or(t == 63) * 2 + __syncthreads_or(t == 64);
    place[512] = __syncthreads_and(t < 64) * 2 + __syncthreads_and(t < 63);
  };
  emulation::launch<Output<std::uint32_t>>({{1}, {64}}, kernel, {out.data()});
  for (std::uint32_t t = 0; t < 64; ++t) {
    const std::uint32_t warp = t / 32 * 32;
    std::uint32_t ballot = 0, sum = 0, least = 64, most = 0;
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      const std::uint32_t value = ((warp + lane) * 7 + 3) % 64;
      if (lane % 5 == 1) ballot |= 1u << lane;
      sum += warp + lane;
      least = std::min(least, value);
      most = std::max(most, value);
    }
    expect("ballot", t, out[t], ballot);
    expect("any", t, out[64 + t], warp ? 2 : 0);
    expect("all", t, out[128 + t], warp ? 1 : 3);
    expect("add", t, out[192 + t], sum);
    expect("min", t, out[256 + t], least);
    expect("max", t, out[320 + t], most);
    expect("count", t, out[384 + t], 22);
    expect("or", t, out[448 + t], 2);
    expect("and", t, out[512 + t], 2);
  }
}

void atomics() {
  std::vector<int> out(16 + 5);
  out[18] = 1000;
  const auto kernel = [](Output<int> params) {
    struct Shared {
      int bins[16];
    };
    GLM53_SHARED(Shared, shared);
    const int t = static_cast<int>(threadIdx.x);
    if (t < 16) shared.bins[t] = 0;
    __syncthreads();
    atomicAdd(&shared.bins[t * t % 16], t);
    __syncthreads();
    if (t < 16) atomicAdd(params.out + t, shared.bins[t]);
    atomicAdd(reinterpret_cast<float*>(params.out + 16), 0.5f);
    atomicMax(params.out + 17, t * 3);
    atomicMin(params.out + 18, 500 - t);
    atomicOr(params.out + 19, 1 << t % 8);
    if (t == 0) atomicExch(params.out + 20, 77);
  };
  emulation::launch<Output<int>>({{4}, {128}}, kernel, {out.data()});
  int bins[16] = {};
  for (int t = 0; t < 128; ++t) bins[t * t % 16] += 4 * t;
  for (int i = 0; i < 16; ++i) expect("bins", i, out[i], bins[i]);
  expect("atomicAdd of floats", 0, std::bit_cast<float>(out[16]) == 256.0f, 1);
  expect("atomicMax", 0, out[17], 381);
  expect("atomicMin", 0, out[18], 373);
  expect("atomicOr", 0, out[19], 255);
  expect("atomicExch", 0, out[20], 77);
}

struct Copy {
  const std::uint32_t* in;
  std::uint32_t* out;
  template <class Visit>
  void each_buffer(const Visit& visit) const {
    visit("in", in, 4, 64, 128, Access::kRead);
    visit("out", out, 1, 256, 256, Access::kWrite);
    visit("absent", nullptr, 4, 64, 64, Access::kRead);
  }
};

// Four rows of 64 bytes, one every 128, copied 16 bytes at a time into one row.
void traffic() {
  std::vector<std::uint32_t> in(4 * 32), out(64);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(i);
  const auto kernel = [](Copy params) {
    pdl_wait();
    const std::uint32_t row = blockIdx.x, word = threadIdx.x;
    store_global(params.out + row * 16 + word * 4,
                 load_global<uint4>(params.in + row * 32 + word * 4));
  };
  const LaunchShape shape{.grid = {4}, .block = {4}, .pdl = true};
  emulation::launch<Copy>(shape, kernel, {in.data(), out.data()});
  for (std::uint32_t i = 0; i < 64; ++i) expect("copied", i, out[i], i / 16 * 32 + i % 16);
  expect("buffers", 0, emulation::traffic.size(), 2);
  expect("bytes read of in", 0, emulation::traffic[0].bytes_read, 256);
  expect("bytes written of in", 0, emulation::traffic[0].bytes_written, 0);
  expect("bytes read of out", 0, emulation::traffic[1].bytes_read, 0);
  expect("bytes written of out", 0, emulation::traffic[1].bytes_written, 256);
}

}  // namespace

int main(int, char** arguments) {
  emulation::schedule = {emulation::parse_order(arguments[1]),
                         std::strtoull(arguments[2], nullptr, 10)};
  indices();
  shared_memory();
  shuffles();
  partial_masks();
  votes();
  atomics();
  traffic();
  std::printf("%d faults\n", faults);
  return faults;
}
