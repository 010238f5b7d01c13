// Convolutions with what follows them: by oneDNN as PyTorch ships it, or by Winograd's algorithm, which
// oneDNN no longer has. Packed weights, in the layout that either computes with, lie in device memory as any
// other bytes.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstring>

#include "cann_host/kernels/convolution.h"
#include "cann_host/kernels/transpose.h"
#include "cann_host/runtime/settings.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;
using Scalars = at::List<std::optional<at::Scalar>>;

/// What a packed weight starts with; its values follow at their own alignment.
struct Header {
  int64_t dtype;  // at::ScalarType
  enum class Layout : int32_t { contiguous, onednn, own } layout;
  int32_t description_bytes;
  uint8_t description[1008];  // of oneDNN's layout, serialized
};
using Layout = Header::Layout;
static_assert(sizeof(Header) == 1024 && sizeof(Header) % 64 == 0);

/// One of PyTorch's operators on oneDNN's tensors.
template <class Function>
c10::TypedOperatorHandle<Function> find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Function>();
}

at::Tensor reorder_weight(const at::Tensor& weight, at::IntArrayRef padding, at::IntArrayRef stride,
                          at::IntArrayRef dilation, int64_t groups, at::OptionalIntArrayRef input_size) {
  static const auto op =
      find<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t,
                      at::OptionalIntArrayRef)>("mkldnn::_reorder_convolution_weight");
  return op.call(weight, padding, stride, dilation, groups, input_size);
}

at::Tensor serialized_layout(const at::Tensor& packed) {
  static const auto op = find<at::Tensor(const at::Tensor&)>("mkldnn::_get_mkldnn_serialized_md");
  return op.call(packed);
}

int64_t bytes_of(const at::Tensor& packed) {
  static const auto op = find<int64_t(const at::Tensor&)>("mkldnn::_nbytes");
  return op.call(packed);
}

const void* address_of(const at::Tensor& packed) {
  static const auto op = find<int64_t(const at::Tensor&)>("mkldnn::data_ptr");
  return reinterpret_cast<const void*>(op.call(packed));
}

/// Whether oneDNN computes in the dtype. Its float16 needs processors with float16 arithmetic.
bool onednn_takes(at::ScalarType dtype) {
  if (!at::globalContext().userEnabledMkldnn() || !at::hasMKLDNN()) return false;
  static const bool bfloat16 = find<bool()>("mkldnn::_is_mkldnn_bf16_supported").call();
  return dtype == at::kFloat || (dtype == at::kBFloat16 && bfloat16);
}

/// A tensor of oneDNN over values that lie in its layout; it does not own them.
at::Tensor packed_values(const Header& header, void* values, at::IntArrayRef size) {
  const int32_t dtype = header.dtype == static_cast<int64_t>(at::kFloat) ? aoti_torch_dtype_float32()
                                                                         : aoti_torch_dtype_bfloat16();
  AtenTensorHandle handle = nullptr;
  const auto code = aoti_torch_create_tensor_from_blob_v2(
      values, static_cast<int64_t>(size.size()), size.data(), size.data(), 0, dtype,
      aoti_torch_device_type_cpu(), 0, &handle, aoti_torch_layout__mkldnn(), header.description,
      header.description_bytes);
  TORCH_CHECK(code == 0, "oneDNN does not know the layout of this packed weight");
  auto* tensor = reinterpret_cast<at::Tensor*>(handle);
  at::Tensor result = *tensor;
  aoti_torch_delete_tensor_object(handle);
  return result;
}

/// The header of a packed weight.
const Header& header_of(const at::Tensor& packed, at::ScalarType dtype) {
  TORCH_CHECK(packed.is_contiguous() && packed.numel() >= static_cast<int64_t>(sizeof(Header)),
              "a packed weight has ", sizeof(Header), " bytes before its values; got ", packed.numel());
  const auto& header = *static_cast<const Header*>(packed.const_data_ptr());
  TORCH_CHECK(header.dtype == static_cast<int64_t>(dtype), "the weight was packed from ",
              static_cast<at::ScalarType>(header.dtype), ", the input is ", dtype);
  return header;
}

void* values_of(const at::Tensor& packed) { return packed.mutable_data_ptr<uint8_t>() + sizeof(Header); }

void check_room(const at::Tensor& packed, int64_t bytes, at::IntArrayRef size) {
  TORCH_CHECK(packed.numel() - static_cast<int64_t>(sizeof(Header)) >= bytes,
              "the packed weight is too small for shape ", size);
}

/// The weight in the memory of a packed one, for oneDNN and ATen.
at::Tensor unpacked(const at::Tensor& packed, at::IntArrayRef size, at::ScalarType dtype) {
  const Header& header = header_of(packed, dtype);
  if (header.layout == Layout::onednn) return packed_values(header, values_of(packed), size);
  check_room(packed, c10::multiply_integers(size) * static_cast<int64_t>(c10::elementSize(dtype)), size);
  return at::from_blob(values_of(packed), size, at::TensorOptions(dtype));
}

bool all_equal(at::IntArrayRef list, int64_t value) {
  return std::all_of(list.begin(), list.end(), [value](int64_t n) { return n == value; });
}

kernels::ConvolutionKernel kernel_of(at::IntArrayRef weight_size) {
  return static_cast<kernels::ConvolutionKernel>(weight_size[2]);
}

/// Whether a kernel of our own computes the convolution.
bool is_own(at::IntArrayRef weight_size, at::IntArrayRef stride, at::IntArrayRef padding,
            at::IntArrayRef dilation, int64_t groups) {
  if (groups != 1 || weight_size[2] != weight_size[3] || stride[0] <= 0 || stride[1] <= 0) return false;
  if (weight_size[2] == 1) return all_equal(padding, 0);
  return weight_size[2] == 3 && all_equal(stride, 1) && all_equal(dilation, 1) && settings().winograd;
}

/// Whether it does, and faster than oneDNN.
bool is_faster(const at::Tensor& weight, at::IntArrayRef input_size, at::IntArrayRef stride,
               at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups) {
  if (weight.scalar_type() != at::kFloat || weight.numel() == 0 ||
      !is_own(weight.sizes(), stride, padding, dilation, groups)) {
    return false;
  }
  int64_t results = input_size[0];
  for (int64_t d = 0; d < 2; ++d)
    results *= (input_size[d + 2] + 2 * padding[d] - weight.size(d + 2)) / stride[d] + 1;
  return kernels::convolution_pays(kernel_of(weight.sizes()), results, weight.size(1), weight.size(0));
}

/// The image with its channels last.
at::Tensor channels_last(const at::Tensor& image) {
  constexpr int64_t least = 8;  // channels for which blocks of a transpose are full
  const int64_t bytes = image.element_size(), channels = image.size(1),
                pixels = image.size(2) * image.size(3);
  if (image.is_contiguous(at::MemoryFormat::ChannelsLast) || !image.is_contiguous() || channels < least ||
      (bytes != 2 && bytes != 4)) {
    return image.contiguous(at::MemoryFormat::ChannelsLast);
  }
  at::Tensor result = at::empty(image.sizes(), image.options(), at::MemoryFormat::ChannelsLast);
  const auto* from = static_cast<const char*>(image.const_data_ptr());
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  for (int64_t n = 0; n < image.size(0); ++n) {
    kernels::transpose({.element_bytes = bytes,
                        .from = from + n * channels * pixels * bytes,
                        .from_stride = pixels,
                        .to = to + n * pixels * channels * bytes,
                        .to_stride = channels,
                        .rows = channels,
                        .columns = pixels});
  }
  return result;
}

/// What the kernels rely on.
void check_sizes(at::IntArrayRef input, at::IntArrayRef weight, at::IntArrayRef output,
                 at::IntArrayRef stride, at::IntArrayRef padding) {
  bool fits = input[0] == output[0] && input[1] == weight[1] && output[1] == weight[0];
  for (size_t d = 0; d < 2; ++d)
    fits = fits && output[d + 2] == (input[d + 2] + 2 * padding[d] - weight[d + 2]) / stride[d] + 1;
  TORCH_CHECK(fits, "an input of ", input, " and a weight of ", weight, " with stride ", stride,
              " and padding ", padding, " do not give an output of ", output);
}

/// By a weight of kernels::pack_convolution().
void by_own(const at::Tensor& input, const float* weight, at::IntArrayRef weight_size, const Optional& bias,
            const Optional& residual, at::IntArrayRef stride, at::IntArrayRef padding, bool relu,
            at::Tensor& output) {
  check_sizes(input.sizes(), weight_size, output.sizes(), stride, padding);
  TORCH_CHECK(!residual.has_value() || residual->sizes() == output.sizes(), "residual has shape ",
              residual->sizes(), ", the output ", output.sizes());
  TORCH_CHECK(!bias.has_value() || bias->numel() == weight_size[0], "bias has ", bias->numel(),
              " numbers; expected one for each of ", weight_size[0], " channels");
  const at::Tensor x = channels_last(input);
  const Optional shift = bias.has_value() ? Optional(bias->contiguous()) : std::nullopt;
  const Optional added = residual.has_value() ? Optional(channels_last(*residual)) : std::nullopt;
  at::Tensor y = output.contiguous(at::MemoryFormat::ChannelsLast);
  kernels::convolve(kernel_of(weight_size),
                    {.x = x.const_data_ptr<float>(),
                     .weight = weight,
                     .bias = shift.has_value() ? shift->const_data_ptr<float>() : nullptr,
                     .residual = added.has_value() ? added->const_data_ptr<float>() : nullptr,
                     .y = y.mutable_data_ptr<float>(),
                     .batch = x.size(0),
                     .height = x.size(2),
                     .width = x.size(3),
                     .channels = x.size(1),
                     .filters = y.size(1),
                     .result_height = y.size(2),
                     .result_width = y.size(3),
                     .padding = {padding[0], padding[1]},
                     .stride = {stride[0], stride[1]},
                     .relu = relu});
  if (!y.is_same(output)) output.copy_(y);
}

/// The convolution, and the residual added where oneDNN adds it.
at::Tensor by_onednn(const at::Tensor& input, const at::Tensor& weight, const Optional& bias,
                     const Optional& residual, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation, int64_t groups) {
  // Its fastest kernels take images with the channels last.
  const at::Tensor image = channels_last(input);
  // It adds to convolutions of one group only, and not where strides do not say what the layout is.
  const bool adds =
      groups == 1 && (weight.is_mkldnn() || image.suggest_memory_format() == at::MemoryFormat::ChannelsLast);
  if (!residual.has_value() || !adds) {
    static const auto op =
        find<at::Tensor(const at::Tensor&, const at::Tensor&, const Optional&, at::IntArrayRef,
                        at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view, Scalars,
                        std::optional<std::string_view>)>("mkldnn::_convolution_pointwise");
    at::Tensor y =
        op.call(image, weight, bias, padding, stride, dilation, groups, "none", Scalars(), std::nullopt);
    return residual.has_value() ? y.add_(*residual) : y;
  }
  static const auto op =
      find<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const Optional&,
                      at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view,
                      std::optional<at::Scalar>, std::optional<std::string_view>, Scalars,
                      std::optional<std::string_view>)>("mkldnn::_convolution_pointwise", "binary");
  return op.call(image, channels_last(*residual), weight, bias, padding, stride, dilation, groups, "add",
                 at::Scalar(1.0), std::nullopt, Scalars(), std::nullopt);
}

/// The same by ATen's convolution; float16 rounds once, at the end.
at::Tensor by_aten(const at::Tensor& input, const at::Tensor& weight, const Optional& bias,
                   const Optional& residual, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, int64_t groups) {
  const bool half = input.scalar_type() == at::kHalf;
  const auto exact = [half](const at::Tensor& t) { return half ? t.to(at::kFloat) : t; };
  at::Tensor y =
      at::conv2d(exact(input), exact(weight), bias.has_value() ? Optional(exact(*bias)) : std::nullopt,
                 stride, padding, dilation, groups);
  return residual.has_value() ? y.add_(*residual) : y;
}

}  // namespace

void PackConvolutionWeight(const at::Tensor& weight, at::IntArrayRef inputSize, at::IntArrayRef stride,
                           at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                           at::Tensor& packed) {
  Header header{static_cast<int64_t>(weight.scalar_type()), Layout::contiguous, 0, {}};
  const auto room = packed.numel() - static_cast<int64_t>(sizeof(Header));
  const auto bytes = static_cast<int64_t>(weight.nbytes());
  TORCH_CHECK(packed.is_contiguous() && room >= bytes, "packed must be contiguous and have ",
              sizeof(Header) + bytes, " bytes; got ", packed.numel());
  auto* values = static_cast<uint8_t*>(values_of(packed));
  const auto keep = [&](const void* from, int64_t count) {
    if (from != values) std::memcpy(values, from, count);
    std::memset(values + count, 0, room - count);
    std::memcpy(packed.mutable_data_ptr(), &header, sizeof(Header));
  };
  if (is_faster(weight, inputSize, stride, padding, dilation, groups)) {
    const auto kernel = kernel_of(weight.sizes());
    const int64_t count = kernels::packed_numbers(kernel, weight.size(0), weight.size(1)) * sizeof(float);
    if (count <= room && at::isfinite(weight).all().item<bool>()) {
      header.layout = Layout::own;
      kernels::pack_convolution(kernel, weight.contiguous().const_data_ptr<float>(), weight.size(0),
                                weight.size(1), reinterpret_cast<float*>(values));
      return keep(values, count);
    }
  }
  if (onednn_takes(weight.scalar_type()) && weight.numel() > 0) {
    const at::Tensor reordered = reorder_weight(weight.contiguous(at::MemoryFormat::ChannelsLast), padding,
                                                stride, dilation, groups, inputSize);
    const at::Tensor description = serialized_layout(reordered);
    const int64_t count = bytes_of(reordered);
    if (description.numel() <= static_cast<int64_t>(sizeof(header.description)) && count <= room) {
      header.layout = Layout::onednn;
      header.description_bytes = static_cast<int32_t>(description.numel());
      std::memcpy(header.description, description.const_data_ptr(), description.numel());
      return keep(address_of(reordered), count);
    }
  }
  keep(weight.contiguous().const_data_ptr(), bytes);
}

void FusedConvolution(const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef weightSize,
                      const Optional& bias, const Optional& residual, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                      std::string_view activation, at::Tensor& output) {
  TORCH_CHECK(activation.empty() || activation == "relu", "activation is '", activation,
              "'; known: relu, or empty");
  if (output.numel() == 0) return;
  const bool relu = activation == "relu", packed = weight.scalar_type() == at::kByte;
  if (packed && header_of(weight, input.scalar_type()).layout == Layout::own) {
    TORCH_CHECK(
        is_own(weightSize, stride, padding, dilation, groups),
        "the weight was packed for one group, and 3x3 for stride and dilation 1, 1x1 without padding; got ",
        "stride=", stride, ", padding=", padding, ", dilation=", dilation, ", groups=", groups,
        ", weightSize=", weightSize);
    const auto numbers = kernels::packed_numbers(kernel_of(weightSize), weightSize[0], weightSize[1]);
    check_room(weight, numbers * sizeof(float), weightSize);
    return by_own(input, static_cast<const float*>(values_of(weight)), weightSize, bias, residual, stride,
                  padding, relu, output);
  }
  const Placement placement({output}, input, bias, residual);
  const at::Tensor values = packed ? unpacked(weight, weightSize, input.scalar_type()) : weight;
  const auto run = values.is_mkldnn() || onednn_takes(input.scalar_type()) ? by_onednn : by_aten;
  assign(output, run(input, values, bias, residual, stride, padding, dilation, groups));
  // oneDNN's own relu makes 0 of NaN, so that it is done here, while the image is in the cache where it fits.
  if (relu) at::relu_(output);
}

}  // namespace cann_host::host
