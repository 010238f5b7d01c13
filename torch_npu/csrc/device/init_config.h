#pragma once

#include <string>

namespace torch_npu::device {

/// The file that aclInit reads, see torch_npu/npu/environment.py.
struct InitConfig {
  std::string path;     // empty: CANN's defaults
  std::string problem;  // why the file cannot be used; raised by whatever first uses or names a device
};

/// To be called before a device is used.
void set_init_config(InitConfig config);

}  // namespace torch_npu::device
