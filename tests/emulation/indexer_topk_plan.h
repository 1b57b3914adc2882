// Owns the way for a case to choose indexer_topk's launch, which its shape would choose otherwise.
#pragma once

#include <kernels/indexer_topk.cuh>

#include "program.h"

namespace glm53::program {

inline IndexerTopkPlan planned(std::uint32_t rows, std::uint32_t width, bool bf16) {
  if (!plan[0]) return plan_indexer_topk(rows, width, bf16);
  return {static_cast<std::uint32_t>(plan[0]), static_cast<std::uint32_t>(plan[1]),
          static_cast<std::uint32_t>(plan[2])};
}

}  // namespace glm53::program

// The binding, which is read after this header, plans by it.
#define plan_indexer_topk program::planned
