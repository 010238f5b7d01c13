// What PyTorch's profiler shows of device npu: the operators that ran on it, as ProfilerActivity.PrivateUse1.
#define USE_KINETO  // torch's wheels have it; the headers hide the interface without
#define FMT_HEADER_ONLY

#include <ATen/record_function.h>
#include <ActivityType.h>
#include <c10/util/ApproximateClock.h>
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <map>
#include <mutex>
#include <vector>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/activity.h"

namespace torch_npu::device {
namespace {

/// The operators of PyTorch's that this thread is inside of, by the profiler's number.
thread_local std::vector<uint64_t> t_operators;
thread_local bool t_records_functions = true;  // outside of an activity

std::mutex mutex;
std::vector<Activity>& recorded() {
  static auto* activities = new std::vector<Activity>;  // outlives static destruction
  return *activities;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    const std::lock_guard lock(mutex);
    recorded().clear();
    detail::records_activities = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    detail::records_activities = false;
    const std::lock_guard lock(mutex);
    activities_.swap(recorded());
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t from, int64_t to) override {
    buffer_->span = libkineto::TraceSpan(from, to, "npu");
    for (const Activity& activity : activities_) {
      if (activity.begin < from || activity.end > to) continue;
      buffer_->emplace_activity(buffer_->span, libkineto::ActivityType::CONCURRENT_KERNEL, activity.name);
      libkineto::GenericTraceActivity& shown = *buffer_->activities.back();
      shown.startTime = activity.begin;
      shown.endTime = activity.end;
      shown.id = static_cast<int32_t>(activity.correlation);
      shown.device = activity.device;
      shown.resource = number_of(activity.device, activity.stream);
      shown.threadId = libkineto::threadId();
      shown.linked = linked(shown.id);
      shown.log(logger);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> streams;
    for (const auto& [stream, number] : numbers_) {
      streams.push_back({number, number, stream.first, "stream " + std::to_string(number)});
    }
    return streams;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { t_operators.push_back(id); }
  void popCorrelationId() override {
    if (!t_operators.empty()) t_operators.pop_back();
  }

 private:
  /// Streams are shown in the order of their first work.
  int32_t number_of(c10::DeviceIndex device, aclrtStream stream) {
    return numbers_.try_emplace({device, stream}, static_cast<int32_t>(numbers_.size())).first->second;
  }

  std::vector<Activity> activities_;
  std::map<std::pair<c10::DeviceIndex, aclrtStream>, int32_t> numbers_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
};

class NPUProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "npu";
    return name;
  }

  const std::set<libkineto::ActivityType>& availableActivities() const override {
    static const std::set<libkineto::ActivityType> types{libkineto::ActivityType::CONCURRENT_KERNEL};
    return types;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<libkineto::ActivityType>& types, const libkineto::Config&) override {
    if (!types.count(libkineto::ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>();
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<libkineto::ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }
};

const bool registered = [] {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<NPUProfiler>(); });
  return true;
}();

}  // namespace

int64_t detail::begin_activity(aclrtStream stream) {
  const auto& runs_inline = cann::api().cannHostStreamRunsInline;
  if (!runs_inline || runs_inline(stream) == 0) return 0;
  // The software CANN computes with ATen on this thread, which is no work of the program's on the CPU.
  t_records_functions = at::isRecordFunctionEnabled();
  at::enableRecordFunction(false);
  return c10::getTime();
}

void detail::end_activity(const char* name, c10::DeviceIndex device, aclrtStream stream, int64_t begin) {
  const int64_t end = c10::getTime();
  at::enableRecordFunction(t_records_functions);
  const std::lock_guard lock(mutex);
  recorded().push_back({name, device, stream, begin, end, t_operators.empty() ? 0 : t_operators.back()});
}

}  // namespace torch_npu::device
