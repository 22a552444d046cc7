// Keys or values of a kv head, for tests of the encoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/api/dtype.h"
#include "kernels/cpu/encode_steps.h"

namespace oscarkv::testing {

// Rows of numbers as a window holds them, in blocks.
class StoredRows {
 public:
  StoredRows(DType storage, int dim, const std::vector<float>& x)
      : bits_(x.size()), rows_{.storage = storage, .dim = dim} {
    ToStorage(DType::kFP32, x.data(), x.size(), storage, bits_.data());
    const std::size_t block = static_cast<std::size_t>(kWindowBlockTokens) * dim;
    for (std::size_t i = 0; i < x.size(); i += block) blocks_.push_back(&bits_[i]);
  }

  cpu::TokenRows rows() const {
    cpu::TokenRows rows = rows_;
    rows.blocks = blocks_.data();
    return rows;
  }

 private:
  std::vector<std::uint16_t> bits_;
  std::vector<const void*> blocks_;
  cpu::TokenRows rows_;
};

}  // namespace oscarkv::testing
