#include "torch_npu/csrc/ops/arguments.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/native/BucketizationUtils.h>

#include <array>
#include <limits>

namespace torch_npu {

double largest(at::ScalarType dtype) {
  return AT_DISPATCH_V2(dtype, "nan_to_num",
                        AT_WRAP([] { return static_cast<double>(std::numeric_limits<scalar_t>::max()); }),
                        AT_EXPAND(AT_ALL_TYPES), at::kHalf, at::kBFloat16, at::kBool);
}

int32_t division_mode(const std::optional<std::string_view>& rounding_mode) {
  if (!rounding_mode.has_value()) return 0;
  if (*rounding_mode == "trunc") return 1;
  TORCH_CHECK(*rounding_mode == "floor",
              "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", *rounding_mode,
              "'");
  return 2;
}

int64_t scatter_mode(std::string_view reduce) {
  TORCH_CHECK(reduce == "add" || reduce == "multiply", "reduce argument must be either add or multiply.");
  return reduce == "add" ? 1 : 2;
}

int64_t reduction_code(std::string_view reduce) {
  constexpr std::array<std::string_view, 5> kNames = {"sum", "prod", "amax", "amin", "mean"};
  const auto* found = std::find(kNames.begin(), kNames.end(), reduce);
  TORCH_CHECK(found != kNames.end(), "reduce argument must be either sum, prod, mean, amax or amin, got ",
              reduce, ".");
  return 1 + (found - kNames.begin());
}

Sizes reduced_sizes(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim) {
  const auto reduced = dims.has_value() && !dims->empty() ? at::dim_list_to_bitset(*dims, self.dim())
                                                          : std::bitset<at::dim_bitset_size>().set();
  Sizes sizes;
  for (int64_t i = 0; i < self.dim(); ++i) {
    if (!reduced[i]) {
      sizes.push_back(self.size(i));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

Sizes index_select_sizes(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  Sizes sizes(self.sizes());
  sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return sizes;
}

Sizes embedding_sizes(const at::Tensor& weight, const at::Tensor& indices) {
  Sizes sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return sizes;
}

Sizes stack_sizes(at::TensorList tensors, int64_t dim) {
  const auto first = tensors[0].sizes();
  for (size_t i = 1; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].sizes() == first, "stack expects each tensor to be equal size, but got ", first,
                " at entry 0 and ", tensors[i].sizes(), " at entry ", i);
  }
  Sizes sizes(first);
  sizes.insert(sizes.begin() + at::maybe_wrap_dim(dim, tensors[0].dim() + 1), tensors.size());
  return sizes;
}

Sizes repeat_sizes(const at::Tensor& self, at::IntArrayRef repeats) {
  TORCH_CHECK(static_cast<int64_t>(repeats.size()) >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  Sizes sizes(repeats);
  const size_t new_dims = repeats.size() - self.dim();
  for (size_t i = 0; i < repeats.size(); ++i) {
    TORCH_CHECK(repeats[i] >= 0, "Repeats cannot be negative, found ", repeats[i], " at index ", i);
    if (i >= new_dims) sizes[i] *= self.size(static_cast<int64_t>(i - new_dims));
  }
  return sizes;
}

Sizes padded_sizes(const at::Tensor& self, at::IntArrayRef pad) {
  Sizes sizes(self.sizes());
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    auto& size = sizes[sizes.size() - 1 - i];
    size += pad[2 * i] + pad[2 * i + 1];
    TORCH_CHECK(size >= 0, "The input size ", size - pad[2 * i] - pad[2 * i + 1], ", plus negative padding ",
                pad[2 * i], " and ", pad[2 * i + 1],
                " resulted in a negative output size, which is invalid.");
  }
  return sizes;
}

Sizes cdist_sizes(const at::Tensor& x1, const at::Tensor& x2) {
  const int64_t rank = x1.dim();
  Sizes sizes = at::infer_size_dimvector(x1.sizes().slice(0, rank - 2), x2.sizes().slice(0, x2.dim() - 2));
  sizes.push_back(x1.size(-2));
  sizes.push_back(x2.size(-2));
  return sizes;
}

int64_t bincount_size(const at::Tensor& self, int64_t minlength) {
  return self.numel() == 0 ? minlength : std::max(minlength, self.max().item<int64_t>() + 1);
}

int64_t repeat_total(const at::Tensor& repeats, const std::optional<int64_t>& output_size) {
  return output_size.has_value() ? *output_size : repeats.sum().item<int64_t>();
}

bool searchsorted_right(const at::Tensor& sorted_sequence, const at::Tensor& self, bool out_int32, bool right,
                        const std::optional<std::string_view>& side,
                        const std::optional<at::Tensor>& sorter) {
  const auto dtype = out_int32 ? at::kInt : at::kLong;
  at::native::searchsorted_pre_check(sorted_sequence, self, self.new_empty({0}, dtype), out_int32, right,
                                     side, sorter.value_or(at::Tensor()));
  return right || (side.has_value() && *side == "right");
}

}  // namespace torch_npu
