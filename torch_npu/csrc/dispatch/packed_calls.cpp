// What operators do with tensors in a private format. Products read a packed matrix as it is, views share its
// memory, and for everything else it is made plain first; what was written is packed again. Each conversion
// is noted (torch_npu.unfused_report).
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <string_view>

#include "torch_npu/csrc/dispatch/packed.h"
#include "torch_npu/csrc/dispatch/unfused.h"

namespace torch_npu {
namespace {

enum class Treatment : int8_t { kPass, kProduct, kConvert, kRefuse };

/// Operators that read or change what a tensor is and not its numbers, and those that are about formats.
constexpr std::array<std::string_view, 11> kPassing = {
    "aten::_has_compatible_shallow_copy_type",
    "aten::is_pinned",
    "aten::is_set_to",
    "aten::record_stream",
    "aten::set_",
    "npu::_npu_format_cast",
    "npu::_npu_storage_size",
    "npu::erase_stream",
    "npu::get_npu_format",
    "npu::npu_format_cast",
    "npu::npu_format_cast_",
};

/// matrix products, and the argument that may be packed
constexpr std::array<std::pair<std::string_view, size_t>, 2> kProducts = {
    {{"aten::mm", 1}, {"aten::addmm", 2}}};

bool returns_view(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& r) {
    return r.alias_info() != nullptr && !r.alias_info()->isWrite();
  });
}

/// How one operator meets packed tensors.
struct Rule {
  Treatment treatment;
  size_t weight = 0;  // of kProduct: the argument that may be packed
  // What schemas do not say: _copy_from(self, dst) writes its second argument, Inductor's code any.
  bool writes_second = false, writes_all = false;
  bool reads_blocks = false;  // a view in five dimensions names the blocks of packed matrices

  explicit Rule(const c10::FunctionSchema& schema) : treatment(Treatment::kConvert) {
    const std::string_view name = schema.name();
    for (const auto& [product, argument] : kProducts) {
      if (name != product) continue;
      treatment = Treatment::kProduct;
      weight = argument;
    }
    if (returns_view(schema) || std::find(kPassing.begin(), kPassing.end(), name) != kPassing.end())
      treatment = Treatment::kPass;
    // Collectives write tensors and do not say so.
    if (name.starts_with("c10d::") || name == "aten::resize_") treatment = Treatment::kRefuse;
    writes_second = name == "aten::_copy_from" || name == "aten::_copy_from_and_resize";
    writes_all = name == "torch_npu_inductor::code";
    reads_blocks = name.starts_with("npu::npu_grouped_matmul_swiglu_quant");
  }

  bool writes(const c10::Argument& argument, size_t position) const {
    return (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
           (writes_second && position == 1) || writes_all;
  }
};

const Rule& rule_of(const c10::FunctionSchema& schema) {
  static std::mutex mutex;
  static ska::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<Rule>> rules;
  const std::lock_guard lock(mutex);
  auto& rule = rules[&schema];
  if (rule == nullptr) rule = std::make_unique<Rule>(schema);
  return *rule;
}

/// Whether of these tensors the weight alone is packed, and in a way that the product reads.
bool product_reads(c10::ArrayRef<c10::IValue> arguments, size_t weight) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i != weight && arguments[i].isTensor() && is_packed(arguments[i].toTensor())) return false;
  }
  const at::Tensor& matrix = arguments[weight].toTensor();
  const auto dtype = matrix.scalar_type();
  return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && is_packed_matrix(matrix);
}

/// Matrices [G, K, N] for a view [G, N / c, K / 16, 16, c] of them, whose numbers lie in their plain order
/// here.
at::Tensor matrices_of_blocks(const at::Tensor& blocks) {
  if (blocks.dim() != 5) return blocks;
  return blocks.view_symint(
      {blocks.sym_size(0), blocks.sym_size(2) * blocks.sym_size(3), blocks.sym_size(1) * blocks.sym_size(4)});
}

/// The plain tensors that stand for packed ones during a call.
class PlainArguments {
 public:
  explicit PlainArguments(bool reads_blocks) : reads_blocks_(reads_blocks) {}
  at::Tensor plain(const at::Tensor& tensor, bool written) {
    if (!tensor.defined() || !is_packed(tensor)) return tensor;
    Memory& memory = memory_of(tensor.storage());
    memory.written |= written;
    const at::Tensor plain = on_plain_storage(tensor, memory.plain);
    pairs_.push_back({tensor, reads_blocks_ ? matrices_of_blocks(plain) : plain});
    return pairs_.back().plain;
  }
  c10::IValue plain(const c10::IValue& value, bool written) {
    if (value.isTensor()) return plain(value.toTensor(), written);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) list.push_back(plain(tensor, written));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
        list.push_back(tensor.has_value() ? std::optional(plain(*tensor, written)) : std::nullopt);
      return list;
    }
    return value;
  }
  /// Packs what was written, and returns the argument for a result that is its stand-in.
  void repack_written() const {
    for (const Memory& memory : memories_) {
      if (memory.written) repack(memory.plain, memory.packed);
    }
  }
  c10::IValue result(c10::IValue value) const {
    if (!value.isTensor()) return value;
    for (const auto& [packed, plain] : pairs_) {
      if (plain.is_same(value.toTensor())) return packed;
    }
    return value;
  }

 private:
  struct Memory {
    c10::Storage packed;
    at::Tensor plain;
    bool written = false;
  };
  struct Pair {
    at::Tensor packed, plain;
  };

  Memory& memory_of(const c10::Storage& storage) {
    for (Memory& memory : memories_) {
      if (memory.packed.is_alias_of(storage)) return memory;
    }
    memories_.push_back({storage, unpack(storage)});
    return memories_.back();
  }

  bool reads_blocks_;
  c10::SmallVector<Memory, 2> memories_;
  c10::SmallVector<Pair, 2> pairs_;
};

void convert(const c10::OperatorHandle& op, const Rule& rule, c10::DispatchKeySet below,
             torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  note_unfused(schema.name().c_str(),
               "a tensor in a private format (FRACTAL_NZ) was copied to a plain one first; cast it back with "
               "torch_npu.npu_format_cast(t, 2)");
  PlainArguments arguments(rule.reads_blocks);
  const size_t first = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    auto& value = (*stack)[first + i];
    value = arguments.plain(value, rule.writes(schema.arguments()[i], i));
  }
  op.redispatchBoxed(below, stack);
  arguments.repack_written();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    (*stack)[i] = arguments.result(std::move((*stack)[i]));
}

void packed_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const Rule& rule = rule_of(schema);
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPackedKey);
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  switch (rule.treatment) {
    case Treatment::kPass:
      return op.redispatchBoxed(below, stack);
    case Treatment::kProduct:
      if (product_reads(arguments, rule.weight)) return op.redispatchBoxed(below, stack);
      [[fallthrough]];
    case Treatment::kConvert:
      return convert(op, rule, below, stack);
    case Treatment::kRefuse:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, schema.name(),
          ": a tensor is in a private format (FRACTAL_NZ), and this operator takes plain ones only; cast it "
          "back first: torch_npu.npu_format_cast(t, 2)");
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CustomRNGKeyId, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&packed_call>());
}

// Operators with composite code, which would run instead: products take the way over their out= forms, the
// others call kernels of PyTorch's own devices.
TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m) {
  for (const char* name :
       {"mm", "addmm", "conj_physical_", "mode.values", "_has_compatible_shallow_copy_type"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&packed_call>());
}

}  // namespace torch_npu
