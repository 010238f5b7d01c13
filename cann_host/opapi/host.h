// What the bodies of host operators (opspec/aclnn/*.yaml and cann_host/opapi/ops) may use.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>

#include <optional>
#include <string_view>
#include <vector>

#include "cann_host/opapi/arguments.h"
#include "cann_host/opapi/placement.h"
