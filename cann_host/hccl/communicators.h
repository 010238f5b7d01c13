// Handles of communicators, and how their work gets onto streams.
#pragma once

#include <cann/hccl.h>

#include <functional>
#include <memory>
#include <string>

#include "communicator.h"

namespace cann_host::hccl {

using CommunicatorPtr = std::shared_ptr<Communicator>;

/// Throws HCCL_E_PTR for null and HCCL_E_NOT_FOUND for what is not a communicator, or not any more.
CommunicatorPtr find(HcclComm handle);
HcclComm add(CommunicatorPtr communicator);
CommunicatorPtr remove(HcclComm handle);

/// Puts the work on the stream, or, between HcclGroupStart and HcclGroupEnd, aside. `receives` work waits for
/// other work of its group.
HcclResult launch(const char* function, const CommunicatorPtr& communicator, aclrtStream stream,
                  std::function<void(Communicator&)> work, bool receives = false);

void start_group();
HcclResult end_group();

}  // namespace cann_host::hccl
