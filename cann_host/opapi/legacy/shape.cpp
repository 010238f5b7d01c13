// Views, copies and what picks or arranges elements.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Sizes = std::vector<int64_t>;

void slice(const Arguments& a) {
  auto result = a[0];
  const Sizes offsets = a.list(1), sizes = a.list(2);
  TORCH_CHECK(offsets.size() == sizes.size(), "offsets and sizes have ", offsets.size(), " and ",
              sizes.size(), " numbers");
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const auto d = static_cast<int64_t>(dim);
    const int64_t size = sizes[dim] == -1 ? result.size(d) - offsets[dim] : sizes[dim];
    result = result.narrow(d, offsets[dim], size);
  }
  a.set(0, result);
}

/// Inputs: tensor, beginning, end and step of each dimension. A set bit of a mask stands for the whole
/// dimension.
void strided_slice(const Arguments& a) {
  for (const char* name : {"ellipsis_mask", "new_axis_mask", "shrink_axis_mask"}) {
    TORCH_CHECK(a.attribute<int64_t>(name, 0) == 0, "cann_host has no StridedSlice with ", name);
  }
  const auto open_begin = a.attribute<int64_t>("begin_mask", 0),
             open_end = a.attribute<int64_t>("end_mask", 0);
  const Sizes begin = a.list(1), end = a.list(2), step = a.list(3);
  TORCH_CHECK(begin.size() == end.size() && begin.size() == step.size(), "StridedSlice got ", begin.size(),
              " beginnings, ", end.size(), " ends and ", step.size(), " steps");
  auto result = a[0];
  for (size_t dim = 0; dim < begin.size(); ++dim) {
    const auto d = static_cast<int64_t>(dim);
    const auto given = [&](int64_t mask, int64_t value) {
      return mask >> dim & 1 ? std::optional<int64_t>() : std::optional(value);
    };
    result = result.slice(d, given(open_begin, begin[dim]), given(open_end, end[dim]), step[dim]);
  }
  a.set(0, result);
}

void confusion_transpose(const Arguments& a) {
  const auto perm = a.attribute<Sizes>("perm"), shape = a.attribute<Sizes>("shape");
  a.set(0, a.flag("transpose_first") ? a[0].permute(perm).reshape(shape) : a[0].reshape(shape).permute(perm));
}

void pad(const Arguments& a) {
  const Sizes pads = a.list(1);  // beginning and end of each dimension, the first one first
  Sizes backward;
  for (size_t i = pads.size(); i >= 2; i -= 2) backward.insert(backward.end(), {pads[i - 2], pads[i - 1]});
  a.set(0, at::constant_pad_nd(a[0], backward, a.has(2) ? a.number(2) : at::Scalar(0)));
}

std::vector<at::Tensor> all_inputs(const Arguments& a) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < a.inputs(); ++i) tensors.push_back(a[i]);
  return tensors;
}

void one_hot(const Arguments& a) {
  const auto axis = a.attribute<int64_t>("axis", -1), depth = a.attribute<int64_t>("depth");
  const auto hit = a[0].unsqueeze(-1) == at::arange(depth, a[0].options());
  a.set(0, at::where(hit, a[1].reshape({}), a[2].reshape({})).movedim(-1, axis));
}

void masked_fill_range(const Arguments& a) {
  auto result = a[0].clone();
  const auto axis = a.attribute<int64_t>("axis", -1);
  auto last = result.movedim(axis, -1);
  const auto start = a[1], end = a[2], value = a[3];
  for (int64_t i = 0; i < start.size(0); ++i) {
    for (int64_t j = 0; j < start.size(1); ++j) {
      const int64_t from = start[i][j].item<int64_t>(), to = end[i][j].item<int64_t>();
      auto row = last.dim() == 1 || axis == 0 ? last : last.select(0, j);
      if (to > from) row.narrow(-1, from, to - from).fill_(value[i]);
    }
  }
  a.set(0, result);
}

/// Sixteen channels to a block: blocks x1_c1_offset and x2_c1_offset on, c1_len of them.
void stride_add(const Arguments& a) {
  const int64_t channels = 16 * a.attribute<int64_t>("c1_len");
  const auto part = [&](size_t i, const char* name) {
    const auto x = a.wide(i);
    const int64_t from = std::min(16 * a.attribute<int64_t>(name), x.size(1));
    const int64_t there = std::min(channels, x.size(1) - from);
    Sizes padding(2 * static_cast<size_t>(x.dim() - 2), 0);
    padding.insert(padding.end(), {0, channels - there});
    return at::constant_pad_nd(x.narrow(1, from, there), padding);
  };
  a.set(0, part(0, "x1_c1_offset") + part(1, "x2_c1_offset"));
}

void sign_bits_pack(const Arguments& a) {
  auto bits = (a[0] >= 0).to(at::kInt).reshape({-1});
  // What fills the last byte up counts as negative.
  bits = at::constant_pad_nd(bits, {0, (8 - bits.numel() % 8) % 8}).view({-1, 8});
  a.set(0, bits.bitwise_left_shift(at::arange(8, bits.options())).sum(1));
}

void sign_bits_unpack(const Arguments& a) {
  const auto bytes = a[0].to(at::kInt).reshape({-1, 1});
  const auto bits = bytes.bitwise_right_shift(at::arange(8, bytes.options())).bitwise_and(1);
  a.set(0, bits.to(at::kFloat) * 2 - 1);
}

}  // namespace

Table shape_operators() {
  return {
      {"BroadcastTo", [](const Arguments& a) { a.set(0, a[0].expand(a.list(1))); }},
      {"Transpose", [](const Arguments& a) { a.set(0, a[0].permute(a.list(1))); }},
      {"ConfusionTransposeD", confusion_transpose},
      {"Slice", slice},
      {"StridedSlice", strided_slice},
      {"Tile", [](const Arguments& a) { a.set(0, a[0].repeat(a.list(1))); }},
      {"ReverseV2", [](const Arguments& a) { a.set(0, a[0].flip(a.list(1))); }},
      {"AsStrided",
       [](const Arguments& a) { a.set(0, a[0].as_strided(a.list(1), a.list(2), a.number(3).toLong())); }},
      {"Pad", pad},
      {"PadV3", pad},
      {"ConcatD",
       [](const Arguments& a) { a.set(0, at::cat(all_inputs(a), a.attribute<int64_t>("concat_dim"))); }},
      {"Pack", [](const Arguments& a) { a.set(0, at::stack(all_inputs(a), a.attribute<int64_t>("axis"))); }},
      {"GatherV2",
       [](const Arguments& a) { a.set(0, a[0].index_select(a.list(2).at(0), a[1].reshape({-1}))); }},
      {"GatherElements",
       [](const Arguments& a) { a.set(0, a[0].gather(a.attribute<int64_t>("dim", 0), a[1].to(at::kLong))); }},
      {"Roll",
       [](const Arguments& a) {
         a.set(0, a[0].roll(a.attribute<Sizes>("shifts"), a.attribute<Sizes>("dims", {})));
       }},
      {"Tril", [](const Arguments& a) { a.set(0, a[0].tril(a.attribute<int64_t>("diagonal", 0))); }},
      {"Triu", [](const Arguments& a) { a.set(0, a[0].triu(a.attribute<int64_t>("diagonal", 0))); }},
      {"OneHotD", one_hot},
      {"MaskedFillRange", masked_fill_range},
      {"StrideAdd", stride_add},
      {"SignBitsPack", sign_bits_pack},
      {"SignBitsUnpack", sign_bits_unpack},
  };
}

}  // namespace cann_host::legacy
