// Which Python line launched the operator that failed later: kept for streams that do not run work at once.
#pragma once

#include <string>
#include <string_view>

#include "cann/acl.h"

namespace torch_npu {

/// Notes a launch of `op` on `stream`. Free on streams that run work inline: an error is then raised by the
/// launch.
void note_launch(const char* op, aclrtStream stream);

/// For an error that a later call reported: the lines that launched the operators which `message` names, most
/// recent first; empty if none is known.
std::string launched_by(std::string_view message);

}  // namespace torch_npu
