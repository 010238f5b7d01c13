#include "stream.h"

using namespace cann_host;

namespace {

void set_failure_mode(Stream& stream, uint64_t mode) {
  if (stream.is_default()) refuse(ACL_ERROR_INVALID_PARAM, "the default stream's failure mode cannot be set");
  if (mode > ACL_STOP_ON_FAILURE) {
    refuse(ACL_ERROR_INVALID_PARAM, "failure mode %lu: expected 0 (go on) or 1 (stop)", mode);
  }
  stream.failure_mode.store(mode);
  if (stream.worker) stream.worker->stop_on_failure(mode == ACL_STOP_ON_FAILURE);
}

void set_overflow_switch(Stream& stream, uint32_t flag) {
  if (flag > 1) refuse(ACL_ERROR_INVALID_PARAM, "overflow switch %u: expected 0 or 1", flag);
  stream.overflow_switch.store(flag);
}

void set_priority(Stream& stream, uint32_t priority) {
  if (priority > 7) refuse(ACL_ERROR_INVALID_PARAM, "priority=%u: expected 0 (most urgent) to 7", priority);
  stream.priority.store(priority);
}

}  // namespace

aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode) {
  return entry(__func__, [&] { set_failure_mode(stream_of(stream), mode); });
}

aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag) {
  return entry(__func__, [&] { set_overflow_switch(stream_of(stream), flag); });
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag) {
  return entry(__func__, [&] {
    require_pointer(flag, "flag");
    *flag = stream_of(stream).overflow_switch.load();
  });
}

aclError aclrtSetStreamAttribute(aclrtStream stream, aclrtStreamAttr attribute, aclrtStreamAttrValue* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    Stream& s = stream_of(stream);
    switch (attribute) {
      case ACL_STREAM_ATTR_FAILURE_MODE:
        return set_failure_mode(s, value->failureMode);
      case ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK:
        return set_overflow_switch(s, value->overflowSwitch);
      case ACL_STREAM_ATTR_USER_CUSTOM_TAG:
        return s.custom_tag.store(value->userCustomTag);
      case ACL_STREAM_ATTR_CACHE_OP_INFO:
        return s.cache_op_info.store(value->cacheOpInfoSwitch);
      case ACL_STREAM_ATTR_PRIORITY:
        return set_priority(s, value->streamPriority);
    }
    refuse(ACL_ERROR_INVALID_PARAM, "stmAttrType=%d is not an attribute of streams", attribute);
  });
}

aclError aclrtGetStreamAttribute(aclrtStream stream, aclrtStreamAttr attribute, aclrtStreamAttrValue* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    Stream& s = stream_of(stream);
    *value = {};
    switch (attribute) {
      case ACL_STREAM_ATTR_FAILURE_MODE:
        value->failureMode = s.failure_mode.load();
        return;
      case ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK:
        value->overflowSwitch = s.overflow_switch.load();
        return;
      case ACL_STREAM_ATTR_USER_CUSTOM_TAG:
        value->userCustomTag = s.custom_tag.load();
        return;
      case ACL_STREAM_ATTR_CACHE_OP_INFO:
        value->cacheOpInfoSwitch = s.cache_op_info.load();
        return;
      case ACL_STREAM_ATTR_PRIORITY:
        value->streamPriority = s.priority.load();
        return;
    }
    refuse(ACL_ERROR_INVALID_PARAM, "stmAttrType=%d is not an attribute of streams", attribute);
  });
}
