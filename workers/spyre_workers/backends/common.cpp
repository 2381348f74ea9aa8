// What is the same in every fragment's library: AOTInductor's model class, which calls the fragment's one function. Its
// container and C interface (torch's own interface.cpp) are appended to this file when it is compiled.
#include <torch/csrc/inductor/aoti_include/cpu.h>

// A fragment has no constants; the model container wants the symbols all the same.
alignas(64) uint8_t _binary_constants_bin_start[1] = {0};
uint8_t _binary_constants_bin_end[1] = {0};

namespace torch::aot_inductor {
extern const size_t spyre_fragment_inputs;
extern const size_t spyre_fragment_outputs;
void spyre_fragment_run(AtenTensorHandle*, AtenTensorHandle*, DeviceStreamType, AOTIProxyExecutorHandle);

AOTInductorModel::AOTInductorModel(
    std::shared_ptr<ConstantMap> constants_map,
    std::shared_ptr<std::vector<ConstantHandle>> constants_array,
    const std::string& device_str,
    std::optional<std::string> cubin_dir)
    : AOTInductorModelBase(
          spyre_fragment_inputs,
          spyre_fragment_outputs,
          0,
          device_str,
          std::move(cubin_dir),
          true) {
  for (auto& input : inputs_info_) {
    input.name = "input";
  }
  for (auto& output : outputs_info_) {
    output.name = "output";
  }
  update_constants_map(std::move(constants_map));
  update_constants_array(std::move(constants_array));
}

std::unordered_map<std::string, AtenTensorHandle> AOTInductorModel::const_run_impl(
    DeviceStreamType,
    AOTIProxyExecutorHandle,
    bool) {
  return {};
}

void AOTInductorModel::_const_run_impl(std::vector<AtenTensorHandle>&, DeviceStreamType, AOTIProxyExecutorHandle) {}

void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles,
    AtenTensorHandle* output_handles,
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor) {
  spyre_fragment_run(input_handles, output_handles, stream, proxy_executor);
}
} // namespace torch::aot_inductor

