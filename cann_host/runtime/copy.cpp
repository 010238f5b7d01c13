// Copies and fills, at once or on a stream.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "capture.h"
#include "memory.h"
#include "stream.h"

namespace cann_host {
namespace {

/// Rows of `width` bytes; a flat copy has one.
struct Shape {
  size_t width, height, dst_pitch, src_pitch;

  size_t dst_extent() const { return height ? (height - 1) * dst_pitch + width : 0; }
  size_t src_extent() const { return height ? (height - 1) * src_pitch + width : 0; }
};

constexpr Shape flat(size_t count) { return {count, count ? size_t{1} : 0, count, count}; }

struct Copy {
  void* dst;
  const void* src;
  Shape shape;
  bool dst_on_device, src_on_device;

  void run() const {
    auto* to = static_cast<char*>(dst);
    auto* from = static_cast<const char*>(src);
    for (size_t row = 0; row < shape.height; ++row) {
      std::memmove(to + row * shape.dst_pitch, from + row * shape.src_pitch, shape.width);
    }
  }
};

bool on_device(const void* address) {
  auto range = memory_map().find(address);
  return range && range->place == Place::device;
}

void choose_places(Copy& copy, aclrtMemcpyKind kind) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_HOST:
      copy.src_on_device = false, copy.dst_on_device = false;
      return;
    case ACL_MEMCPY_HOST_TO_DEVICE:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
      copy.src_on_device = false, copy.dst_on_device = true;
      return;
    case ACL_MEMCPY_DEVICE_TO_HOST:
      copy.src_on_device = true, copy.dst_on_device = false;
      return;
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INNER_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INTER_DEVICE_TO_DEVICE:
      copy.src_on_device = true, copy.dst_on_device = true;
      return;
    case ACL_MEMCPY_DEFAULT:
      copy.src_on_device = on_device(copy.src), copy.dst_on_device = on_device(copy.dst);
      return;
  }
  refuse(ACL_ERROR_INVALID_PARAM, "kind=%d is not a kind of copy", kind);
}

void require_place(const char* argument, const void* address, size_t size, bool device) {
  device ? require_device_memory(argument, address, size) : require_host_memory(argument, address, size);
}

Copy make_copy(void* dst, const void* src, Shape shape, aclrtMemcpyKind kind) {
  require_pointer(dst, "dst");
  require_pointer(src, "src");
  Copy copy{dst, src, shape, false, false};
  choose_places(copy, kind);
  require_place("dst", dst, shape.dst_extent(), copy.dst_on_device);
  require_place("src", src, shape.src_extent(), copy.src_on_device);
  return copy;
}

Shape flat_shape(size_t room, size_t count) {
  if (count > room) refuse(ACL_ERROR_INVALID_PARAM, "count=%zu is more than destMax=%zu", count, room);
  return flat(count);
}

Shape pitched_shape(size_t dst_pitch, size_t src_pitch, size_t width, size_t height) {
  if (width > dst_pitch || width > src_pitch) {
    refuse(ACL_ERROR_INVALID_PARAM, "width=%zu is more than dpitch=%zu or spitch=%zu", width, dst_pitch,
           src_pitch);
  }
  return {width, height, dst_pitch, src_pitch};
}

class CopyTask : public Task {
 public:
  explicit CopyTask(const Copy& copy) : copy_(copy) {}

  /// Keeps the source's bytes, so that the caller may change them.
  void snapshot() {
    auto* from = static_cast<const char*>(copy_.src);
    bytes_.assign(from, from + copy_.shape.src_extent());
    copy_.src = bytes_.data();
  }

  aclError run() noexcept override {
    copy_.run();
    return ACL_SUCCESS;
  }

  std::string describe() const override {
    char text[160];
    std::snprintf(text, sizeof text, "copy of %zu bytes from %s %p to %s %p",
                  copy_.shape.width * copy_.shape.height, copy_.src_on_device ? "device" : "host", copy_.src,
                  copy_.dst_on_device ? "device" : "host", copy_.dst);
    return text;
  }

 private:
  Copy copy_;
  std::vector<char> bytes_;
};

void copy_now(const Copy& copy) {
  require_unsafe_call_allowed();
  current_device();
  copy.run();
}

/// Memory of the caller that is not page-locked cannot be read behind the caller's back: as on hardware, such
/// a copy is done with the source when the call returns (a small one from a snapshot), and with the target
/// too.
void copy_on_stream(const Copy& copy, aclrtMemcpyKind kind, Stream& stream) {
  if (stream.runs_inline()) return copy.run();
  auto task = std::make_unique<CopyTask>(copy);
  bool recorded = stream.capture.load() || stream.update.load();
  bool pageable_source = !copy.src_on_device && !is_pinned(copy.src);
  bool pageable_target = !copy.dst_on_device && !is_pinned(copy.dst);
  constexpr size_t small = 64 << 10;
  bool snapshot = kind == ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE ||
                  (!recorded && pageable_source && copy.shape.src_extent() <= small);
  if (snapshot) task->snapshot();
  stream.submit(std::move(task));
  if (!recorded && stream.worker && (pageable_target || (pageable_source && !snapshot)))
    stream.worker->wait({});
}

void require_fill(const void* pointer, size_t room, size_t count) {
  require_pointer(pointer, "devPtr");
  if (count > room) refuse(ACL_ERROR_INVALID_PARAM, "count=%zu is more than maxCount=%zu", count, room);
  require_place("devPtr", pointer, count, on_device(pointer));
}

class FillTask : public Task {
 public:
  FillTask(void* pointer, int value, size_t count) : pointer_(pointer), value_(value), count_(count) {}
  aclError run() noexcept override {
    std::memset(pointer_, value_, count_);
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "fill of " + std::to_string(count_) + " bytes"; }

 private:
  void* pointer_;
  int value_;
  size_t count_;
};

/// Calls `copy` for each of the pairs; on a refusal the index of the pair that it is about goes to `failed`.
template <class Function>
void for_each_pair(void** dsts, size_t* rooms, void** srcs, size_t* sizes, size_t count, size_t* failed,
                   Function&& copy) {
  require_pointer(dsts, "dsts");
  require_pointer(rooms, "destMax");
  require_pointer(srcs, "srcs");
  require_pointer(sizes, "sizes");
  for (size_t i = 0; i < count; ++i) {
    if (failed) *failed = i;
    copy(make_copy(dsts[i], srcs[i], flat_shape(rooms[i], sizes[i]), ACL_MEMCPY_DEFAULT));
  }
  if (failed) *failed = SIZE_MAX;
}

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclrtMemcpy(void* dst, size_t room, const void* src, size_t count, aclrtMemcpyKind kind) {
  return entry(__func__, [&] { copy_now(make_copy(dst, src, flat_shape(room, count), kind)); });
}

aclError aclrtMemcpyAsync(void* dst, size_t room, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return entry(__func__, [&] {
    copy_on_stream(make_copy(dst, src, flat_shape(room, count), kind), kind, stream_of(stream));
  });
}

aclError aclrtMemcpyAsyncWithCondition(void* dst, size_t room, const void* src, size_t count,
                                       aclrtMemcpyKind kind, aclrtStream stream) {
  return entry(__func__, [&] {
    copy_on_stream(make_copy(dst, src, flat_shape(room, count), kind), kind, stream_of(stream));
  });
}

aclError aclrtMemcpy2d(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                       size_t height, aclrtMemcpyKind kind) {
  return entry(__func__, [&] {
    copy_now(make_copy(dst, src, pitched_shape(dst_pitch, src_pitch, width, height), kind));
  });
}

aclError aclrtMemcpy2dAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                            size_t height, aclrtMemcpyKind kind, aclrtStream stream) {
  return entry(__func__, [&] {
    Shape shape = pitched_shape(dst_pitch, src_pitch, width, height);
    copy_on_stream(make_copy(dst, src, shape, kind), kind, stream_of(stream));
  });
}

aclError aclrtMemset(void* pointer, size_t room, int32_t value, size_t count) {
  return entry(__func__, [&] {
    require_fill(pointer, room, count);
    require_unsafe_call_allowed();
    std::memset(pointer, value, count);
  });
}

aclError aclrtMemsetAsync(void* pointer, size_t room, int32_t value, size_t count, aclrtStream stream) {
  return entry(__func__, [&] {
    require_fill(pointer, room, count);
    return stream_of(stream).submit(std::make_unique<FillTask>(pointer, value, count));
  });
}

aclError aclrtMemcpyBatch(void** dsts, size_t* rooms, void** srcs, size_t* sizes, size_t count,
                          aclrtMemcpyBatchAttr*, size_t*, size_t, size_t* failed) {
  return entry(__func__, [&] { for_each_pair(dsts, rooms, srcs, sizes, count, failed, copy_now); });
}

aclError aclrtMemcpyBatchAsync(void** dsts, size_t* rooms, void** srcs, size_t* sizes, size_t count,
                               aclrtMemcpyBatchAttr*, size_t*, size_t, size_t* failed, aclrtStream stream) {
  return entry(__func__, [&] {
    Stream& s = stream_of(stream);
    for_each_pair(dsts, rooms, srcs, sizes, count, failed,
                  [&](const Copy& copy) { copy_on_stream(copy, ACL_MEMCPY_DEFAULT, s); });
  });
}

aclError aclrtCmoAsync(void* src, size_t size, aclrtCmoType, aclrtStream stream) {
  return entry(__func__, [&] {
    require_device_memory("src", src, size);
    stream_of(
        stream);  // the host's caches look after themselves: the hint is taken and nothing follows from it
  });
}
