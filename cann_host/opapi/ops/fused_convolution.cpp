// Convolutions by oneDNN as PyTorch ships it: with what follows them, and with weights in the layout that it
// computes with, which lies in device memory as any other bytes.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstring>

#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;
using Scalars = at::List<std::optional<at::Scalar>>;

/// What a packed weight starts with; its values follow at their own alignment.
struct Header {
  int64_t dtype;         // at::ScalarType
  int64_t layout_bytes;  // 0: the values lie as in a contiguous tensor
  uint8_t layout[1008];  // of oneDNN, serialized
};
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
  const auto code =
      aoti_torch_create_tensor_from_blob_v2(values, static_cast<int64_t>(size.size()), size.data(),
                                            size.data(), 0, dtype, aoti_torch_device_type_cpu(), 0, &handle,
                                            aoti_torch_layout__mkldnn(), header.layout, header.layout_bytes);
  TORCH_CHECK(code == 0, "oneDNN does not know the layout of this packed weight");
  auto* tensor = reinterpret_cast<at::Tensor*>(handle);
  at::Tensor result = *tensor;
  aoti_torch_delete_tensor_object(handle);
  return result;
}

/// The weight in the memory of a packed one.
at::Tensor unpacked(const at::Tensor& packed, at::IntArrayRef size, at::ScalarType dtype) {
  TORCH_CHECK(packed.is_contiguous() && packed.numel() >= static_cast<int64_t>(sizeof(Header)),
              "a packed weight has ", sizeof(Header), " bytes before its values; got ", packed.numel());
  auto* memory = packed.mutable_data_ptr<uint8_t>();
  const auto& header = *reinterpret_cast<const Header*>(memory);
  TORCH_CHECK(header.dtype == static_cast<int64_t>(dtype), "the weight was packed from ",
              static_cast<at::ScalarType>(header.dtype), ", the input is ", dtype);
  void* values = memory + sizeof(Header);
  if (header.layout_bytes > 0) return packed_values(header, values, size);
  const auto bytes = c10::multiply_integers(size) * static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK(packed.numel() - static_cast<int64_t>(sizeof(Header)) >= bytes,
              "the packed weight is too small for shape ", size);
  return at::from_blob(values, size, at::TensorOptions(dtype));
}

/// The convolution, and the residual added where oneDNN adds it.
at::Tensor by_onednn(const at::Tensor& input, const at::Tensor& weight, const Optional& bias,
                     const Optional& residual, at::IntArrayRef stride, at::IntArrayRef padding,
                     at::IntArrayRef dilation, int64_t groups) {
  // Its fastest kernels take images with the channels last.
  const at::Tensor image = input.contiguous(at::MemoryFormat::ChannelsLast);
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
  return op.call(image, residual->contiguous(at::MemoryFormat::ChannelsLast), weight, bias, padding, stride,
                 dilation, groups, "add", at::Scalar(1.0), std::nullopt, Scalars(), std::nullopt);
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
  Header header{static_cast<int64_t>(weight.scalar_type()), 0, {}};
  const auto room = packed.numel() - static_cast<int64_t>(sizeof(Header));
  const auto bytes = static_cast<int64_t>(weight.nbytes());
  TORCH_CHECK(packed.is_contiguous() && room >= bytes, "packed must be contiguous and have ",
              sizeof(Header) + bytes, " bytes; got ", packed.numel());
  auto* memory = packed.mutable_data_ptr<uint8_t>();
  auto* values = memory + sizeof(Header);
  const auto keep = [&](const void* from, int64_t count) {
    std::memcpy(values, from, count);
    std::memset(values + count, 0, room - count);
    std::memcpy(memory, &header, sizeof(Header));
  };
  if (onednn_takes(weight.scalar_type()) && weight.numel() > 0) {
    const at::Tensor reordered = reorder_weight(weight.contiguous(at::MemoryFormat::ChannelsLast), padding,
                                                stride, dilation, groups, inputSize);
    const at::Tensor layout = serialized_layout(reordered);
    const int64_t count = bytes_of(reordered);
    if (layout.numel() <= static_cast<int64_t>(sizeof(header.layout)) && count <= room) {
      header.layout_bytes = layout.numel();
      std::memcpy(header.layout, layout.const_data_ptr(), layout.numel());
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
  const at::Tensor values =
      weight.scalar_type() == at::kByte ? unpacked(weight, weightSize, input.scalar_type()) : weight;
  const auto run = values.is_mkldnn() || onednn_takes(input.scalar_type()) ? by_onednn : by_aten;
  const Placement placement({output}, input, bias, residual);
  assign(output, run(input, values, bias, residual, stride, padding, dilation, groups));
  // oneDNN's own relu makes 0 of NaN, so that it is done here, while the image is in the cache where it fits.
  if (activation == "relu") at::relu_(output);
}

}  // namespace cann_host::host
