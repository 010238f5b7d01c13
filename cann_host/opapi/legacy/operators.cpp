#include "cann_host/opapi/legacy/operators.h"

#include "cann_host/opapi/arguments.h"
#include "cann_host/opapi/executor.h"
#include "cann_host/opapi/legacy/format.h"

namespace cann_host::legacy {
namespace {

int64_t elements(at::IntArrayRef dims) { return c10::multiply_integers(dims); }

/// The tensor in memory, with the shape of its storage.
at::Tensor stored(const LegacyTensor& t, at::IntArrayRef dims) {
  const at::ScalarType dtype = to_aten(t.dtype);
  const int64_t count = elements(dims);
  TORCH_CHECK(count >= 0 && static_cast<size_t>(count) * at::elementSize(dtype) <= t.size, "a tensor of ",
              count, " elements of ", dtype, " lies in a buffer of ", t.size, " bytes");
  void* const data = t.constant.empty() ? t.data : const_cast<char*>(t.constant.data());
  return at::from_blob(data, dims, at::TensorOptions(dtype));
}

const Table& table() {
  static const auto* all = [] {
    auto* merged = new Table;
    for (const auto part :
         {pointwise_operators, activation_operators, matrix_operators, convolution_operators, shape_operators,
          reduction_operators, random_operators, box_operators, suppression_operators, optimizer_operators,
          statistics_operators, overflow_operators, recurrent_operators, quantization_operators,
          box_target_operators, region_operators, deformable_operators}) {
      merged->merge(part());
    }
    return merged;
  }();
  return *all;
}

class LegacyTask final : public aclOpExecutor {
 public:
  LegacyTask(Operator body, LegacyCall call) : body_(body), call_(std::move(call)) {}

  aclError run() noexcept override {
    int64_t largest = 0;
    for (const auto& t : call_.outputs) largest = std::max(largest, elements(t.dims));
    const auto call = [](const void* self) {
      const auto& task = *static_cast<const LegacyTask*>(self);
      task.body_(Arguments(task.call_));
    };
    return guarded(*this, call, this, largest);
  }

  std::string describe() const override {
    std::string text;
    for (const auto& t : call_.inputs) {
      text += (text.empty() ? "" : ", ") + std::string(dtype_name(t.dtype)) + "[";
      for (size_t i = 0; i < t.dims.size(); ++i) text += (i ? ", " : "") + std::to_string(t.dims[i]);
      text += "]";
    }
    return "legacy " + call_.type + "(" + text + ")";
  }

 private:
  const Operator body_;
  const LegacyCall call_;
};

std::unique_ptr<Task> task_of(LegacyCall call) {
  const auto found = table().find(call.type);
  if (found == table().end()) return nullptr;
  return std::make_unique<LegacyTask>(found->second, std::move(call));
}

[[maybe_unused]] const bool provided = [] {
  provide_legacy_operators(task_of);
  return true;
}();

}  // namespace

bool Arguments::has(size_t i) const {
  return i < call_.inputs.size() && call_.inputs[i].dtype != ACL_DT_UNDEFINED;
}

at::Tensor Arguments::operator[](size_t i) const {
  TORCH_CHECK(has(i), "input ", i, " is missing");
  const LegacyTensor& t = call_.inputs[i];
  if (is_internal(t.storage_format)) return unpacked(stored(t, t.storage_dims), t.storage_format, t.dims);
  return stored(t, t.dims);
}

at::Tensor Arguments::wide(size_t i) const {
  const auto tensor = (*this)[i];
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

std::vector<int64_t> Arguments::list(size_t i) const {
  const auto tensor = (*this)[i].to(at::kLong).contiguous();
  const auto* first = tensor.const_data_ptr<int64_t>();
  return {first, first + tensor.numel()};
}

std::optional<at::Tensor> Arguments::optional(size_t i) const {
  return has(i) ? std::optional(wide(i)) : std::nullopt;
}

const LegacyTensor& Arguments::output(size_t i) const {
  TORCH_CHECK(i < call_.outputs.size(), "output ", i, " is missing");
  return call_.outputs[i];
}

at::ScalarType Arguments::dtype(size_t i) const { return to_aten(output(i).dtype); }

void Arguments::set(size_t i, const at::Tensor& value) const {
  const LegacyTensor& t = output(i);
  const auto fitted = value.numel() == elements(t.dims) ? value.reshape(t.dims) : value.expand(t.dims);
  if (is_internal(t.storage_format)) {
    stored(t, t.storage_dims).copy_(packed(fitted.to(dtype(i)), t.storage_format, t.storage_dims));
  } else {
    stored(t, t.dims).copy_(fitted);
  }
}

void Arguments::set_found(size_t i, const at::Tensor& value) const {
  const LegacyTensor& t = output(i);
  stored(t, value.sizes()).copy_(value);
  call_.found->at(i) = value.sizes().vec();
}

}  // namespace cann_host::legacy
