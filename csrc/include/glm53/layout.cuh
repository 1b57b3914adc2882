// Owns the byte layouts that every kernel shares: one FP8 KV row and one page of FP8 index keys.
// The same numbers as sglang_glm53/geometry.py, and byte-exact with SGLang 0.5.23's own writers, so that
// prefix caches, cache tiers and a stock peer of a disaggregated pair can read what we wrote.
// Only constants: no torch, and it compiles with any C++17 host compiler.
#pragma once

namespace glm53 {

// One FP8 KV row: kKvLora e4m3 latent values, one FP32 scale for each kKvTile of them, then kKvRope
// bf16 RoPE values. Offsets and sizes are bytes from the row's first byte.
constexpr int kKvLora = 512;
constexpr int kKvRope = 64;
constexpr int kKvTile = 128;
constexpr int kKvScaleOffset = kKvLora;
constexpr int kKvRopeOffset = kKvScaleOffset + 4 * (kKvLora / kKvTile);
constexpr int kKvRowBytes = kKvRopeOffset + 2 * kKvRope;

static_assert(kKvLora % kKvTile == 0, "every scale covers a whole tile of the latent");
static_assert(kKvRowBytes == 656, "SGLang's pools hold 656 bytes for each token and layer");
// A row starts at a multiple of its own size, so all three parts can be moved in 16-byte words.
static_assert(kKvScaleOffset % 16 == 0, "the scales start on a 16-byte boundary");
static_assert(kKvRopeOffset % 16 == 0, "the RoPE values start on a 16-byte boundary");
static_assert(kKvRowBytes % 16 == 0, "the next row starts on a 16-byte boundary");

// One index page: the e4m3 keys of kPage tokens, kIndexHeadDim values each, then one FP32 scale a token.
constexpr int kIndexHeadDim = 128;
constexpr int kPage = 64;
constexpr int kIndexScaleOffset = kPage * kIndexHeadDim;
constexpr int kIndexPageBytes = kIndexScaleOffset + 4 * kPage;

static_assert(kIndexPageBytes == 8448, "SGLang's index pool holds 8448 bytes for each page and layer");
static_assert(kIndexScaleOffset % 16 == 0, "the scales start on a 16-byte boundary");
static_assert(kIndexPageBytes % 16 == 0, "the next page starts on a 16-byte boundary");

}  // namespace glm53
