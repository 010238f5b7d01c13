#include "cann_host/opapi/phase1.h"

#include <algorithm>
#include <limits>

#include "cann_host/opapi/fractal_nz.h"
#include "cann_host/runtime/extent.h"
#include "cann_host/runtime/task.h"

namespace cann_host {
namespace {

std::string shape_text(const Extents& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

std::string mask_text(DtypeMask allowed) {
  std::string text;
  for (int i = 0; i < 63; ++i) {
    if (allowed >> i & 1) text += (text.empty() ? "" : ", ") + std::string(dtype_name(aclDataType(i)));
  }
  return text;
}

bool is_taken(aclFormat format, DtypeMask allowed) {
  return (format == ACL_FORMAT_FRACTAL_NZ && (allowed & may_be_fractal_nz) != 0) || format == ACL_FORMAT_ND ||
         format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NCDHW || format == ACL_FORMAT_NCL ||
         format == ACL_FORMAT_UNDEFINED;
}

/// Each converts to itself and to those behind it, as in PyTorch.
enum class Category { boolean, integer, fraction, complex };

Category category(aclDataType dtype) {
  switch (dtype) {
    case ACL_BOOL:
      return Category::boolean;
    case ACL_INT4:
    case ACL_INT8:
    case ACL_INT16:
    case ACL_INT32:
    case ACL_INT64:
    case ACL_UINT1:
    case ACL_UINT8:
    case ACL_UINT16:
    case ACL_UINT32:
    case ACL_UINT64:
      return Category::integer;
    case ACL_COMPLEX32:
    case ACL_COMPLEX64:
    case ACL_COMPLEX128:
      return Category::complex;
    default:
      return Category::fraction;
  }
}

/// What a view reaches: its number of elements, and the elements from the start of its storage to its last
/// one. Both are -1 for a negative size, stride or offset, and for what no address space holds.
struct Reach {
  int64_t numel, storage;
};

Reach reach_of(const aclTensor& tensor) {
  constexpr Reach impossible{-1, -1};
  constexpr int64_t limit = std::numeric_limits<int64_t>::max() / 16;  // bytes of the widest type
  int64_t numel = 1, last = tensor.offset;
  if (last < 0 || last > limit) return impossible;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const int64_t size = tensor.sizes[i], stride = tensor.strides[i];
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel) || numel > limit) return impossible;
    int64_t step;
    if (size > 1 && (stride < 0 || __builtin_mul_overflow(size - 1, stride, &step) || step > limit ||
                     (last += step) > limit)) {
      return impossible;
    }
  }
  return {numel, numel == 0 ? 0 : last + 1};
}

/// Below this nothing is looked up: a lookup costs as much as a small operator.
constexpr int64_t checked_extent = int64_t{1} << 20;

}  // namespace

void Phase1::fail(aclError code, std::string reason) {
  if (failed()) return;
  code_ = code;
  set_last_error(std::string(op_) + ": " + reason);
}

void Phase1::null_argument(const char* name) {
  fail(ACLNN_ERR_PARAM_NULLPTR,
       std::string("argument '") + name + "' is a null pointer, which it may not be");
}

void Phase1::require(bool condition, const char* reason) {
  if (!condition) fail(ACLNN_ERR_PARAM_INVALID, reason);
}

void Phase1::tensor(const char* name, const aclTensor* tensor, DtypeMask allowed, bool optional) {
  if (failed()) return;
  if (tensor == nullptr) {
    if (!optional) null_argument(name);
    return;
  }
  const Reach reach = reach_of(*tensor);
  const bool any_dtype = (allowed & ~may_be_fractal_nz) == 0;
  const bool dtype_fits =
      element_size(tensor->dtype) != 0 && (any_dtype || (allowed >> tensor->dtype & 1) != 0);
  if (!dtype_fits || !is_taken(tensor->format, allowed) || reach.numel < 0 ||
      (is_fractal_nz(*tensor) && !describes_fractal_nz(*tensor)) ||
      (reach.numel > 0 && tensor->storage == nullptr)) {
    reject(name, *tensor, allowed, reach.numel);
  } else if (const auto bytes = reach.storage * static_cast<int64_t>(element_size(tensor->dtype));
             bytes >= checked_extent) [[unlikely]] {
    const std::string reason = reason_against_extent(tensor->storage, static_cast<size_t>(bytes));
    if (!reason.empty()) {
      fail(ACLNN_ERR_PARAM_INVALID,
           std::string("argument '") + name + "' of shape " + shape_text(tensor->sizes) + " " + reason);
    }
  }
}

void Phase1::reject(const char* name, const aclTensor& tensor, DtypeMask allowed, int64_t numel) {
  const std::string who = std::string("argument '") + name + "'";
  if (element_size(tensor.dtype) == 0) {
    fail(ACLNN_ERR_PARAM_INVALID, who + " has the unknown aclDataType " + std::to_string(tensor.dtype));
  } else if ((allowed & ~may_be_fractal_nz) != 0 && (allowed >> tensor.dtype & 1) == 0) {
    fail(ACLNN_ERR_PARAM_INVALID,
         who + " is " + dtype_name(tensor.dtype) + "; this operator takes " + mask_text(allowed));
  } else if (!is_taken(tensor.format, allowed)) {
    fail(ACLNN_ERR_PARAM_INVALID, who + " has the internal format " + std::to_string(tensor.format) +
                                      "; cann_host takes plain layouts (ND, NCHW, NCDHW, NCL) here");
  } else if (is_fractal_nz(tensor) && !describes_fractal_nz(tensor)) {
    fail(ACLNN_ERR_PARAM_INVALID, who + " of shape " + shape_text(tensor.sizes) + " with strides " +
                                      shape_text(tensor.strides) + " and offset " +
                                      std::to_string(tensor.offset) +
                                      " is in FRACTAL_NZ, of which only a whole matrix or its transpose can "
                                      "be read");
  } else if (numel < 0) {
    fail(ACLNN_ERR_PARAM_INVALID, who + " has the impossible shape " + shape_text(tensor.sizes) +
                                      " with strides " + shape_text(tensor.strides) + " and offset " +
                                      std::to_string(tensor.offset));
  } else {
    fail(ACLNN_ERR_PARAM_NULLPTR, who + " of shape " + shape_text(tensor.sizes) + " has no memory");
  }
}

void Phase1::tensors(const char* name, const aclTensorList* list, DtypeMask allowed, bool optional) {
  if (failed()) return;
  if (list == nullptr) return null_argument(name);
  for (const auto& element : list->values) tensor(name, element.get(), allowed, optional);
}

void Phase1::broadcast(const aclTensor* out, std::initializer_list<const aclTensor*> inputs) {
  if (failed()) return;
  // Right-aligned: dimension d from the back of out must be the largest of the inputs' and match each or be 1
  // there.
  size_t rank = 0;
  for (const auto* input : inputs) rank = std::max(rank, input->sizes.size());
  bool fits = out->sizes.size() == rank;
  for (size_t back = 1; fits && back <= rank; ++back) {
    int64_t expected = 1;
    for (const auto* input : inputs) {
      if (input->sizes.size() < back) continue;
      const int64_t size = input->sizes[input->sizes.size() - back];
      fits = fits && (size == 1 || expected == 1 || size == expected);
      if (size != 1) expected = size;
    }
    fits = fits && out->sizes[rank - back] == expected;
  }
  if (fits) return;
  std::string shapes;
  for (const auto* input : inputs) shapes += (shapes.empty() ? "" : ", ") + shape_text(input->sizes);
  fail(ACLNN_ERR_PARAM_INVALID,
       "the output has shape " + shape_text(out->sizes) + ", which is not the broadcast of " + shapes);
}

void Phase1::same_shape(const aclTensor* out, std::initializer_list<const aclTensor*> inputs) {
  if (failed()) return;
  for (const auto* input : inputs) {
    if (input->sizes == out->sizes) continue;
    return fail(ACLNN_ERR_PARAM_INVALID, "input of shape " + shape_text(input->sizes) + ", output of shape " +
                                             shape_text(out->sizes) + "; they must be equal");
  }
}

void Phase1::converts(const aclTensor* out, std::initializer_list<const aclTensor*> operands,
                      const aclScalar* number) {
  if (failed()) return;
  aclDataType widest = number == nullptr ? ACL_BOOL : number->dtype;
  for (const auto* operand : operands) {
    if (category(operand->dtype) > category(widest)) widest = operand->dtype;
  }
  if (category(widest) <= category(out->dtype)) return;
  fail(ACLNN_ERR_PARAM_INVALID, std::string("the result type ") + dtype_name(widest) +
                                    " can't be cast to the desired output type " + dtype_name(out->dtype));
}

void Phase1::quotient(const aclTensor* out) {
  if (failed() || category(out->dtype) >= Category::fraction) return;
  fail(ACLNN_ERR_PARAM_INVALID,
       std::string("the result type of a division, a floating-point type, can't be cast to "
                   "the desired output type ") +
           dtype_name(out->dtype));
}

void Phase1::dim(const aclTensor* tensor, int64_t dim) {
  if (failed()) return;
  const auto rank = std::max<int64_t>(static_cast<int64_t>(tensor->sizes.size()), 1);
  if (dim >= -rank && dim < rank) return;
  fail(ACLNN_ERR_PARAM_INVALID, "dimension " + std::to_string(dim) + " of a tensor of shape " +
                                    shape_text(tensor->sizes) + "; allowed: [" + std::to_string(-rank) +
                                    ", " + std::to_string(rank - 1) + "]");
}

void Phase1::dims(const aclTensor* tensor, const aclIntArray* dims) {
  if (dims == nullptr) return;
  for (int64_t d : dims->values) dim(tensor, d);
}

void Phase1::rank(const char* name, const aclTensor* tensor, size_t rank) {
  if (failed() || tensor->sizes.size() == rank) return;
  fail(ACLNN_ERR_PARAM_INVALID, std::string("argument '") + name + "' has shape " +
                                    shape_text(tensor->sizes) + "; it must have " + std::to_string(rank) +
                                    " dimensions");
}

void Phase1::matmul(const aclTensor* out, const aclTensor* a, const aclTensor* b) {
  if (failed()) return;
  const auto ra = a->sizes.size(), rb = b->sizes.size(), ro = out->sizes.size();
  bool fits = ra >= 2 && rb >= 2 && ro >= 2 && a->sizes[ra - 1] == b->sizes[rb - 2] &&
              out->sizes[ro - 2] == a->sizes[ra - 2] && out->sizes[ro - 1] == b->sizes[rb - 1];
  // A batch of one matrix is multiplied by each of the other's. An output without batches takes their sum.
  for (size_t back = 3; fits && back <= std::max(ra, rb); ++back) {
    const int64_t of_a = back <= ra ? a->sizes[ra - back] : 1, of_b = back <= rb ? b->sizes[rb - back] : 1;
    const int64_t batches = of_a == 1 ? of_b : of_a;
    fits = (of_b == 1 || of_b == batches) && (ro == 2 || (back <= ro && out->sizes[ro - back] == batches));
  }
  if (fits) return;
  fail(ACLNN_ERR_PARAM_INVALID, "cannot multiply " + shape_text(a->sizes) + " by " + shape_text(b->sizes) +
                                    " into " + shape_text(out->sizes));
}

void Phase1::reduced(const aclTensor* out, std::initializer_list<const aclTensor*> inputs,
                     int64_t reduction) {
  if (failed()) return;
  if (reduction < 0 || reduction > 2) {
    fail(ACLNN_ERR_PARAM_INVALID,
         "reduction is " + std::to_string(reduction) + "; it must be 0 (none), 1 (mean) or 2 (sum)");
  } else if (reduction == 0) {
    broadcast(out, inputs);
  } else if (out->numel() != 1) {
    fail(ACLNN_ERR_PARAM_INVALID,
         "a reduced loss is one number, the output has shape " + shape_text(out->sizes));
  }
}

void Phase1::convolution(const aclTensor* input, const aclTensor* weight, const aclTensor* bias,
                         const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation,
                         bool transposed, const aclIntArray* output_padding, int64_t groups,
                         const aclTensor* output) {
  if (failed()) return;
  const auto refuse = [&](const std::string& reason) {
    fail(ACLNN_ERR_PARAM_INVALID, "input " + shape_text(input->sizes) + ", weight " +
                                      shape_text(weight->sizes) + ", output " + shape_text(output->sizes) +
                                      ": " + reason);
  };
  const size_t rank = input->sizes.size();
  if (rank < 3 || rank > 5 || weight->sizes.size() != rank || output->sizes.size() != rank) {
    return refuse("all must have the same number of dimensions, 3 to 5");
  }
  const size_t spatial = rank - 2;
  // One number stands for all spatial dimensions.
  const auto at = [](const aclIntArray* values, size_t i) {
    return values->values[values->values.size() == 1 ? 0 : i];
  };
  for (const auto* values : {stride, padding, dilation, output_padding}) {
    const size_t count = values->values.size();
    // Beginning and end of each dimension may be padded apart.
    const bool both_ends = values == padding && !transposed && spatial == 2 && count == 2 * spatial;
    if (count != 1 && count != spatial && !both_ends) {
      return refuse("stride, padding, dilation and outputPadding need 1 or " + std::to_string(spatial) +
                    " numbers (padding of images also 4)");
    }
  }
  const auto padded = [&](size_t i) {
    const auto& values = padding->values;
    return values.size() == 2 * spatial ? values[2 * i] + values[2 * i + 1] : 2 * at(padding, i);
  };
  if (groups < 1) return refuse("groups is " + std::to_string(groups) + "; it must be positive");
  const int64_t in_channels = transposed ? weight->sizes[0] : weight->sizes[1] * groups;
  const int64_t out_channels = transposed ? weight->sizes[1] * groups : weight->sizes[0];
  if (input->sizes[1] != in_channels || output->sizes[1] != out_channels ||
      output->sizes[0] != input->sizes[0]) {
    return refuse("batch sizes and channels do not match for " + std::to_string(groups) + " group(s)");
  }
  if (bias != nullptr && bias->numel() != out_channels) {
    return refuse("the bias has shape " + shape_text(bias->sizes) + ", not one number an output channel");
  }
  for (size_t i = 0; i < spatial; ++i) {
    if (at(stride, i) < 1 || at(dilation, i) < 1) return refuse("stride and dilation must be positive");
    if (weight->sizes[i + 2] < 1) return refuse("the kernel has no elements");
    const int64_t reach = at(dilation, i) * (weight->sizes[i + 2] - 1);
    const int64_t in = input->sizes[i + 2];
    const int64_t expected = transposed
                                 ? (in - 1) * at(stride, i) - padded(i) + reach + at(output_padding, i) + 1
                                 : (in + padded(i) - reach - 1) / at(stride, i) + 1;
    if (output->sizes[i + 2] != expected) {
      return refuse("spatial dimension " + std::to_string(i) + " of the output must be " +
                    std::to_string(expected));
    }
  }
}

void Phase1::padded(const aclTensor* inner, const aclIntArray* padding, size_t spatial, bool reflects,
                    const aclTensor* outer) {
  if (failed()) return;
  const size_t rank = inner->sizes.size();
  bool fits = padding->values.size() == 2 * spatial && (rank == spatial + 1 || rank == spatial + 2) &&
              outer->sizes.size() == rank;
  for (size_t d = 0; fits && d < rank; ++d) {
    const int64_t size = inner->sizes[d];
    if (d + spatial < rank) {
      fits = outer->sizes[d] == size;
      continue;
    }
    const int64_t before = padding->values[2 * (rank - 1 - d)],
                  after = padding->values[2 * (rank - 1 - d) + 1];
    const int64_t most = reflects ? size - 1 : std::numeric_limits<int32_t>::max();
    fits = size > 0 && std::max(before, after) <= most && (!reflects || std::min(before, after) > -size) &&
           outer->sizes[d] == size + before + after && outer->sizes[d] > 0;
  }
  if (fits) return;
  std::string pads;
  for (int64_t pad : padding->values) pads += (pads.empty() ? "" : ", ") + std::to_string(pad);
  fail(ACLNN_ERR_PARAM_INVALID, "a tensor of shape " + shape_text(inner->sizes) + " with the padding [" +
                                    pads + "] cannot become one of shape " + shape_text(outer->sizes));
}

void Phase1::lists(const aclTensorList* out, std::initializer_list<const aclTensorList*> inputs) {
  if (failed()) return;
  for (const auto* input : inputs) {
    if (input->values.size() != out->values.size()) {
      return fail(ACLNN_ERR_PARAM_INVALID, "an input list has " + std::to_string(input->values.size()) +
                                               " tensors, the output list " +
                                               std::to_string(out->values.size()));
    }
    for (size_t i = 0; i < input->values.size(); ++i)
      same_shape(out->values[i].get(), {input->values[i].get()});
  }
}

}  // namespace cann_host
