// libatb: the few functions of Ascend Transformer Boost that clients link to. They are C++ there, so the
// declarations repeat the names that make up the symbols. Operations cannot be created, and no other function
// of the library can be reached.
#include <cstdint>

#pragma GCC visibility push(default)
namespace atb {

using Status = int32_t;
constexpr Status not_supported = 1;

class Context;
class Operation;
struct Tensor;

namespace infer {
struct ElewiseParam;
struct GroupTopkParam;
struct LinearParam;
struct PagedAttentionParam;
struct ReshapeAndCacheParam;
struct RmsNormParam;
struct RopeParam;
struct SelfAttentionParam;
}  // namespace infer

Status CreateContext(Context** context) {
  if (context) *context = nullptr;
  return not_supported;
}
Status DestroyContext(Context*) { return not_supported; }

template <class Param>
Status CreateOperation(const Param&, Operation** operation) {
  if (operation) *operation = nullptr;
  return not_supported;
}
Status DestroyOperation(Operation*) { return not_supported; }

/// Clients ask for the size of what they give to an operation, and there is none.
struct Utils {
  static uint64_t GetTensorSize(const Tensor& tensor);
};
uint64_t Utils::GetTensorSize(const Tensor&) { return 0; }

template Status CreateOperation(const infer::ElewiseParam&, Operation**);
template Status CreateOperation(const infer::GroupTopkParam&, Operation**);
template Status CreateOperation(const infer::LinearParam&, Operation**);
template Status CreateOperation(const infer::PagedAttentionParam&, Operation**);
template Status CreateOperation(const infer::ReshapeAndCacheParam&, Operation**);
template Status CreateOperation(const infer::RmsNormParam&, Operation**);
template Status CreateOperation(const infer::RopeParam&, Operation**);
template Status CreateOperation(const infer::SelfAttentionParam&, Operation**);

}  // namespace atb
#pragma GCC visibility pop
