#include "device.h"
#include "stream.h"

namespace cann_host {

constinit HandleTable<Context, 1 << 16> contexts{"a context"};

}  // namespace cann_host

using namespace cann_host;

aclError aclrtCreateContext(aclrtContext* context, int32_t device) {
  return entry(__func__, [&] {
    require_pointer(context, "context");
    Device& d = device_of(device);
    d.in_use.store(true);
    thread_context = contexts.create(&d, false);
    *context = thread_context;
  });
}

aclError aclrtDestroyContext(aclrtContext handle) {
  return entry(__func__, [&] {
    Context& context = contexts.get(handle, "context");
    if (context.primary) {
      refuse(ACL_ERROR_INVALID_PARAM, "context=%p came with aclrtSetDevice; aclrtResetDevice ends it",
             handle);
    }
    synchronize(*context.device, {});
    if (thread_context == &context) thread_context = nullptr;
    contexts.destroy(context);
  });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return entry(__func__, [&] {
    require_pointer(context, "context");
    *context = &current_context();
  });
}

aclError aclrtSetCurrentContext(aclrtContext handle) {
  return entry(__func__, [&] { thread_context = &contexts.get(handle, "context"); });
}

aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  return entry(__func__, [&] {
    require_pointer(active, "active");
    if (flags) *flags = 0;
    *active = device_of(device).in_use.load();
  });
}
