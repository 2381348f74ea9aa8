"""The generated half of a fragment's library, as thin as it can be.

Stock AOTInductor writes the C interface, the model container and a model class into every library: three quarters of
what the C++ compiler then spends its time on. Here a fragment is one function and two numbers (`PRELUDE` declares
them), and the common object (`COMMON`), compiled once, is everything else.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.virtualized import V

from spyre_workers.errors import CompileError


class FragmentWrapper(CppWrapperCpu):  # type: ignore[misc]  # torch is untyped here
    """Inductor's C++ wrapper, writing the function of `prelude.h` instead of a model class."""

    @staticmethod
    def create(*_args: Any, **_kwargs: Any) -> FragmentWrapper:
        """What Inductor calls instead of the constructor."""
        return FragmentWrapper()

    def add_device_include(self, device: str) -> None:
        """The precompiled header has them all."""
        if device not in ("cpu", "meta"):
            raise CompileError("unsupported", f"a fragment runs on the CPU, but one of its values is on {device}")
        self.included_devices.add(device)

    def _write_aoti_interface_header(self) -> None:
        """The C interface is in the common object."""

    def _codegen_aoti_model_class(self) -> None:
        """Two numbers for the common object's model class; there are no constants and no device kernels."""
        self.prefix.splice(
            f"""
            using namespace torch::aot_inductor;
            namespace torch::aot_inductor {{
            extern const size_t spyre_fragment_inputs = {len(V.graph.graph_inputs)};
            extern const size_t spyre_fragment_outputs = {len(V.graph.graph_outputs)};
            }}
            """
        )

    def _write_aoti_entry_point_signature(self) -> None:
        """No checks of inputs: the program checks them once, and here they would cost compile time."""
        self.codegen_additional_funcs()
        self.prefix.splice_aot(
            """
            void spyre_fragment_run(
                AtenTensorHandle* input_handles,
                AtenTensorHandle* output_handles,
                DeviceStreamType stream,
                AOTIProxyExecutorHandle proxy_executor
            ) {
            """
        )

    def _write_entry_point_postamble(self) -> None:
        self.prefix.writeline_aot("inputs.clear();")

    def _codegen_assert_size_stride(self, *_args: Any, **_kwargs: Any) -> None:
        """As with the checks of inputs."""

    def codegen_device_idx(self, _device: Any, _device_id: Any) -> str:
        """The CPU has no index."""
        return "-1"
