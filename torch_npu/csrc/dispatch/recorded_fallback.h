// The CPU fallback inside a graph: a task that runs ATen's CPU kernel on each replay.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

namespace torch_npu {

/// Records the operator on the current stream instead of running it, and leaves its results, whose values
/// each replay computes, on the stack. Shapes come from PyTorch's meta kernel: nothing has values yet.
///
/// Raises RuntimeError, which names operator and Python line, for what cannot be recorded: memory that the
/// host cannot address; an operator that draws random numbers, returns something else than tensors or changes
/// the shape of an argument; one whose shapes follow from data or which has no meta kernel; arguments that
/// are not dense.
void record_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DeviceIndex device);

}  // namespace torch_npu
