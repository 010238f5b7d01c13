#include "capture.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "settings.h"
#include "stream.h"

namespace cann_host {

constinit HandleTable<Model, 1 << 16> models{"a captured model"};
constinit HandleTable<TaskGroup, 1 << 16> task_groups{"a task group"};

namespace {

std::atomic<uint32_t> next_model_id{1};
std::atomic<uint64_t> next_capture_id{1};
std::atomic<int> active_count{0};
thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

struct ActiveCaptures {
  std::mutex mutex;
  std::vector<std::unique_ptr<Capture>> all;
};

ActiveCaptures& active() {
  static auto* captures = new ActiveCaptures;
  return *captures;
}

aclError run_all(const std::vector<std::unique_ptr<Task>>& tasks) noexcept {
  if (settings().trace) [[unlikely]] {
    for (const auto& task : tasks) std::fprintf(stderr, "[cann_host] run %s\n", task->describe().c_str());
  }
  for (const auto& task : tasks) {
    if (aclError code = task->run()) [[unlikely]] {
      set_last_error(task->describe() + ": " + take_last_error());
      return code;
    }
  }
  return ACL_SUCCESS;
}

class GroupTask : public Task {
 public:
  explicit GroupTask(TaskGroup* group) : group_(group) {}
  ~GroupTask() override { task_groups.destroy(*group_); }
  aclError run() noexcept override { return run_all(group_->tasks); }
  std::string describe() const override {
    std::string text = "group of " + std::to_string(group_->tasks.size());
    for (const auto& task : group_->tasks) text += "; " + task->describe();
    return text;
  }

 private:
  TaskGroup* group_;
};

class RunModelTask : public Task {
 public:
  explicit RunModelTask(Model& model) : model_(model) { model_.queued_runs.fetch_add(1); }
  ~RunModelTask() override { model_.queued_runs.fetch_sub(1); }
  aclError run() noexcept override { return model_.run(); }
  std::string describe() const override { return "model " + std::to_string(model_.id); }

 private:
  Model& model_;
};

void cover(CaptureClock& clock, const CaptureClock& other) {
  for (auto [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

}  // namespace

aclError Model::run() noexcept { return run_all(tasks); }

Capture::Capture(uint64_t id, Model& model, Stream& origin, aclmdlRICaptureMode mode)
    : id(id), model(model), origin(origin), mode(mode) {
  join(origin, {});
}

Capture::Member& Capture::member(Stream& stream) { return members_.at(stream.id); }

void Capture::record(Stream& stream, std::unique_ptr<Task> task) {
  std::lock_guard lock(mutex_);
  Member& m = member(stream);
  ++m.clock[stream.id];
  if (m.open_group) {
    m.open_group->tasks.push_back(std::move(task));
    return;
  }
  model.tasks.push_back(std::move(task));
  model.stream_ids.push_back(stream.id);
}

void Capture::join(Stream& stream, const CaptureClock& clock) {
  std::lock_guard lock(mutex_);
  members_[stream.id] = {&stream, clock};
  stream.set_capture(this);
}

void Capture::merge(Stream& stream, const CaptureClock& clock) {
  std::lock_guard lock(mutex_);
  cover(member(stream).clock, clock);
}

CaptureClock Capture::clock_of(Stream& stream) {
  std::lock_guard lock(mutex_);
  return member(stream).clock;
}

void Capture::end() {
  std::lock_guard lock(mutex_);
  const CaptureClock& covered = member(origin).clock;
  std::string unjoined, grouped;
  for (auto& [id, m] : members_) {
    auto own = m.clock.find(id);
    auto seen = covered.find(id);
    uint64_t tasks = own == m.clock.end() ? 0 : own->second;
    if (tasks > (seen == covered.end() ? 0 : seen->second)) (unjoined += ' ') += std::to_string(id);
    if (m.open_group) (grouped += ' ') += std::to_string(id);
    m.stream->set_capture(nullptr);
  }
  if (!grouped.empty()) {
    refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS,
           "streams with an open task group:%s; call aclmdlRICaptureTaskGrpEnd", grouped.c_str());
  }
  if (!unjoined.empty()) {
    refuse(ACL_ERROR_RT_STREAM_UNJOINED,
           "stream %d, whose capture ends, does not wait for the last work of stream%s: record an event "
           "there and wait "
           "for it before the end",
           origin.id, unjoined.c_str());
  }
}

void Capture::begin_group(Stream& stream) {
  std::lock_guard lock(mutex_);
  Member& m = member(stream);
  if (m.open_group) refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "stream %d has an open task group", stream.id);
  m.open_group = task_groups.create();
  model.tasks.push_back(std::make_unique<GroupTask>(m.open_group));
  model.stream_ids.push_back(stream.id);
}

TaskGroup* Capture::end_group(Stream& stream) {
  std::lock_guard lock(mutex_);
  TaskGroup* group = std::exchange(member(stream).open_group, nullptr);
  if (!group) refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "stream %d has no open task group", stream.id);
  return group;
}

Capture* active_capture(uint64_t id) {
  if (active_count.load() == 0) return nullptr;
  std::lock_guard lock(active().mutex);
  for (const auto& capture : active().all) {
    if (capture->id == id) return capture.get();
  }
  return nullptr;
}

void require_unsafe_call_allowed() {
  if (active_count.load(std::memory_order_relaxed) == 0 || thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
    return;
  std::lock_guard lock(active().mutex);
  for (const auto& capture : active().all) {
    bool concerns_all =
        capture->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
    bool concerns_thread =
        capture->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && capture->thread == std::this_thread::get_id();
    if (concerns_all || concerns_thread) {
      refuse(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
             "stream %d is being captured, and this call would run at once instead of being recorded; make "
             "it outside "
             "of the capture, or exchange the thread's capture mode to ACL_MODEL_RI_CAPTURE_MODE_RELAXED "
             "around it",
             capture->origin.id);
    }
  }
}

namespace {

void begin_capture(Stream& stream, aclmdlRICaptureMode mode) {
  if (stream.is_default()) {
    refuse(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream cannot be captured; create a stream");
  }
  if (stream.capture.load())
    refuse(ACL_ERROR_RT_STREAM_CAPTURED, "stream %d is being captured already", stream.id);
  if (mode < ACL_MODEL_RI_CAPTURE_MODE_GLOBAL || mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED) {
    refuse(ACL_ERROR_INVALID_PARAM, "mode=%d is not a capture mode", mode);
  }
  Model* model = models.create(next_model_id.fetch_add(1));
  std::lock_guard lock(active().mutex);
  active().all.push_back(std::make_unique<Capture>(next_capture_id.fetch_add(1), *model, stream, mode));
  active_count.fetch_add(1);
}

Capture& capture_of(Stream& stream) {
  Capture* capture = stream.capture.load();
  if (!capture) refuse(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "stream %d is not being captured", stream.id);
  return *capture;
}

std::unique_ptr<Capture> remove_active(Capture& capture) {
  std::lock_guard lock(active().mutex);
  auto& all = active().all;
  auto found = std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.get() == &capture; });
  std::unique_ptr<Capture> removed = std::move(*found);
  all.erase(found);
  active_count.fetch_sub(1);
  return removed;
}

Model& end_capture(Stream& stream) {
  Capture& capture = capture_of(stream);
  if (&capture.origin != &stream) {
    refuse(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED,
           "the capture that stream %d joined began on stream %d; end it there", stream.id,
           capture.origin.id);
  }
  if (capture.mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && capture.thread != std::this_thread::get_id()) {
    refuse(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD,
           "the capture began on another thread, and its mode is not relaxed");
  }
  std::unique_ptr<Capture> ended = remove_active(capture);
  try {
    ended->end();
  } catch (...) {
    models.destroy(ended->model);
    throw;
  }
  ended->model.complete = true;
  return ended->model;
}

Model& complete_model(aclmdlRI handle) {
  Model& model = models.get(handle, "modelRI");
  if (!model.complete) refuse(ACL_ERROR_RT_MODEL_CAPTURED, "model %u is still being captured", model.id);
  return model;
}

void launch(Model& model, Stream& stream) {
  if (!stream.runs_inline()) {
    stream.submit(std::make_unique<RunModelTask>(model));
    return;
  }
  if (aclError code = model.run()) {
    throw Error(code, "model " + std::to_string(model.id) + ": " + take_last_error());
  }
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// Trace events, as chrome://tracing and clients read them: a row for each stream, a unit of time for each
/// task.
void write_json(const Model& model, const char* path) {
  std::ofstream file(path);
  file << "[";
  for (size_t i = 0; i < model.tasks.size(); ++i) {
    const int32_t stream = model.stream_ids[i];
    file << (i ? ",\n " : "\n ") << "{\"name\": " << json_string(model.tasks[i]->describe())
         << ", \"ph\": \"X\", \"ts\": " << i << ", \"dur\": 1, \"pid\": " << json_string(model.name)
         << ", \"tid\": \"stream" << stream << "\", \"args\": {\"Model Id\": " << model.id
         << ", \"Stream Id\": " << stream << ", \"Task Id\": " << i << "}}";
  }
  file << "\n]\n";
  if (!file.flush()) refuse(ACL_ERROR_RT_FILE_WRITE, "path=%s cannot be written", path);
}

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
  return entry(__func__, [&] { begin_capture(stream_of(stream), mode); });
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  return entry(__func__, [&] {
    require_pointer(status, "status");
    Capture* capture = stream_of(stream).capture.load();
    *status = capture ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (model) *model = capture ? &capture->model : nullptr;
  });
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
  return entry(__func__, [&] {
    require_pointer(model, "modelRI");
    *model = nullptr;
    *model = &end_capture(stream_of(stream));
  });
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  return entry(__func__, [&] {
    require_pointer(mode, "mode");
    if (*mode < ACL_MODEL_RI_CAPTURE_MODE_GLOBAL || *mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED) {
      refuse(ACL_ERROR_INVALID_PARAM, "mode=%d is not a capture mode", *mode);
    }
    std::swap(*mode, thread_mode);
  });
}

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  return entry(__func__, [&] { launch(complete_model(model), stream_of(stream)); });
}

aclError aclmdlRIExecute(aclmdlRI model, int32_t timeout) {
  return entry(__func__, [&] {
    Deadline deadline = deadline_after(timeout);
    Model& m = complete_model(model);
    Stream& stream = stream_of(nullptr);
    launch(m, stream);
    stream.synchronize(deadline);
  });
}

aclError aclmdlRIDestroy(aclmdlRI model) {
  return entry(__func__, [&] {
    Model& m = complete_model(model);
    if (m.queued_runs.load()) {
      refuse(ACL_ERROR_RT_MODEL_RUNNING, "model %u is running, or will; synchronise its stream first", m.id);
    }
    models.destroy(m);
  });
}

aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  return entry(__func__, [&] {
    require_pointer(id, "modelRIId");
    *id = models.get(model, "modelRI").id;
  });
}

aclError aclmdlRISetName(aclmdlRI model, const char* name) {
  return entry(__func__, [&] {
    require_pointer(name, "name");
    models.get(model, "modelRI").name = name;
  });
}

aclError aclmdlRIGetName(aclmdlRI model, uint32_t capacity, char* name) {
  return entry(__func__, [&] {
    require_pointer(name, "name");
    const std::string& text = models.get(model, "modelRI").name;
    if (text.size() >= capacity) {
      refuse(ACL_ERROR_INVALID_PARAM, "maxLen=%u: the name needs %zu bytes", capacity, text.size() + 1);
    }
    std::memcpy(name, text.c_str(), text.size() + 1);
  });
}

aclError aclmdlRIDebugPrint(aclmdlRI model) {
  return entry(__func__, [&] {
    Model& m = complete_model(model);
    std::printf("model %u%s%s: %zu tasks\n", m.id, m.name.empty() ? "" : " ", m.name.c_str(), m.tasks.size());
    for (size_t i = 0; i < m.tasks.size(); ++i) {
      std::printf("  %zu: stream %d: %s\n", i, m.stream_ids[i], m.tasks[i]->describe().c_str());
    }
    std::fflush(stdout);
  });
}

aclError aclmdlRIDebugJsonPrint(aclmdlRI model, const char* path, uint32_t) {
  return entry(__func__, [&] {
    require_pointer(path, "path");
    write_json(complete_model(model), path);
  });
}

aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
  return entry(__func__, [&] {
    Stream& s = stream_of(stream);
    capture_of(s).begin_group(s);
  });
}

aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp* handle) {
  return entry(__func__, [&] {
    require_pointer(handle, "handle");
    Stream& s = stream_of(stream);
    *handle = capture_of(s).end_group(s);
  });
}

aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp handle) {
  return entry(__func__, [&] {
    Stream& s = stream_of(stream);
    TaskGroup& group = task_groups.get(handle, "handle");
    if (s.capture.load() || s.update.load()) {
      refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "stream %d is capturing or updating already", s.id);
    }
    group.replaced = std::exchange(group.tasks, {});
    s.set_update(&group);
  });
}

aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
  return entry(__func__, [&] {
    Stream& s = stream_of(stream);
    TaskGroup* group = s.update.load();
    if (!group) refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "stream %d is not updating a task group", s.id);
    s.set_update(nullptr);
    auto old = std::exchange(group->replaced, {});
    if (old.size() != group->tasks.size()) {
      size_t given = group->tasks.size(), expected = old.size();
      group->tasks = std::move(old);
      refuse(ACL_ERROR_STREAM_TASK_GROUP_STATUS,
             "the group has %zu tasks, the update gave %zu; it stays as it was", expected, given);
    }
  });
}
