"""A model made ready to run in a worker, and what can be observed of how it really executes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from studies.toolbox.generation import Generator
from studies.toolbox.workload import Generation

Tensor = Any


@dataclass(frozen=True, slots=True)
class Host:
    """What a tool must know of machine and model before it is tried.

    ``dtype`` is that of most parameters; ``gpu`` the name of the GPU, empty on a CPU.
    """

    device: str
    gpu: str
    rocm: bool
    dtype: str
    attention: str
    compiler: bool
    vocab_size: int

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """How a model was seen to execute: evidence, not settings.

    Attributes:
        parameter_bytes: bytes of parameters and buffers by dtype.
        int8_layers: linear layers that multiply by int8 weights.
        attention: implementation that the model's config names.
        attention_ops: attention operators in a trace of prefill and one decode step.
        cache: class of the KV cache and of its layers.
        cache_tokens: tokens that the cache has room for in advance; None where it grows.
        fed_tokens: prompt tokens fed to the model, padding included.
        graphs: graphs that were compiled; ``late_graphs`` those compiled after warm-up.
        matmul_changed: whether a float32 linear layer of the model gives other bits under the
            chosen matmul precision than under full precision.
        tuned_gemms: GEMMs that TunableOp has tuned.
        preferred_blas: GEMM library that torch prefers.
    """

    parameter_bytes: dict[str, int]
    int8_layers: int
    attention: str
    attention_ops: tuple[str, ...]
    cache: str
    cache_tokens: int | None
    fed_tokens: int
    graphs: int = 0
    late_graphs: int = 0
    matmul_changed: bool = False
    tuned_gemms: int = 0
    preferred_blas: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self) | {"attention_ops": list(self.attention_ops)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Observation:
        """What ``as_json`` wrote."""
        return cls(**{**content, "attention_ops": tuple(content["attention_ops"])})


@dataclass
class Runtime:
    """A loaded model, its workload and the choices that tools make beside the model itself."""

    model: Any
    device: str
    work: Generation
    cache: str = "dynamic"
    pad_multiple: int = 1
    compile_options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._generator: Generator | None = None

    @property
    def generator(self) -> Generator:
        """The loop over this model; made once, after all tools are applied."""
        if self._generator is None:
            self._generator = Generator(self.model, self.cache, self.pad_multiple)
        return self._generator

    def compile(self) -> None:
        """Compiles the forward pass as a tool asked for."""
        import torch

        if self.compile_options is not None:
            self.model.forward = torch.compile(self.model.forward, **self.compile_options)

    def prompts(self) -> tuple[Tensor, Tensor]:
        """Ids and mask of the workload on the device."""
        import torch

        ids, mask = self.work.prompts(int(self.model.config.vocab_size))
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)

    def sync(self) -> None:
        """Waits until the device has done what was asked of it."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()


def host_of(model: Any, device: str) -> Host:
    """The facts of a loaded model on this machine."""
    import shutil

    import torch

    sizes: dict[str, int] = {}
    for parameter in model.parameters():
        name = dtype_name(parameter.dtype)
        sizes[name] = sizes.get(name, 0) + parameter.numel()
    on_gpu = device == "cuda"
    return Host(
        device=device,
        gpu=torch.cuda.get_device_name(0) if on_gpu else "",
        rocm=bool(torch.version.hip),
        dtype=max(sizes, key=lambda name: sizes[name]),
        attention=str(getattr(model.config, "_attn_implementation", "")),
        compiler=on_gpu or any(shutil.which(name) for name in ("g++", "clang++", "c++")),
        vocab_size=int(model.config.vocab_size),
    )


def dtype_name(dtype: Any) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def graphs_compiled() -> int:
    """Graphs that dynamo has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def trace_attention(runtime: Runtime) -> tuple[str, ...]:
    """Attention operators that run in a prefill and a decode step, before anything is compiled."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    ids, mask = runtime.prompts()
    generator = Generator(runtime.model, runtime.cache, runtime.pad_multiple)
    with profile(activities=[ProfilerActivity.CPU]) as trace, torch.inference_mode():
        generator.start(ids, mask, 2)
        generator.step(generator.prefill().argmax(-1))
    names = {event.key for event in trace.key_averages()}
    found = {name for name in names if "attention" in name or name == "aten::_softmax"}
    return tuple(sorted(found))


def observe(runtime: Runtime, attention_ops: tuple[str, ...]) -> Observation:
    """What a runtime that has generated looks like; ``attention_ops`` come from its trace."""
    generator = runtime.generator
    cache = generator.cache
    layers = getattr(cache, "layers", [])
    layer = type(layers[0]).__name__ if layers else ""
    length = cache.get_max_length() if hasattr(cache, "get_max_length") else None
    sizes: dict[str, int] = {}
    int8 = 0
    for module in runtime.model.modules():
        int8 += bool(getattr(module, "multiplies_int8", False))
        int8 += "quantized" in type(module).__module__ and hasattr(module, "weight")
    for tensor in [*runtime.model.parameters(), *runtime.model.buffers()]:
        name = dtype_name(tensor.dtype)
        sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
    return Observation(
        parameter_bytes=sizes,
        int8_layers=int8,
        attention=str(getattr(runtime.model.config, "_attn_implementation", "")),
        attention_ops=attention_ops,
        cache=f"{type(cache).__name__}[{layer}]",
        cache_tokens=int(length) if runtime.cache == "static" and length else None,
        fed_tokens=generator.fed_tokens,
        graphs=graphs_compiled(),
        matmul_changed=matmul_changed(runtime.model),
        tuned_gemms=tuned_gemms(runtime.device),
        preferred_blas=preferred_blas(runtime.device),
    )


def matmul_changed(model: Any) -> bool:
    """Whether the matmul precision in force changes the bits of a linear layer of the model."""
    import torch

    chosen = torch.get_float32_matmul_precision()
    if chosen == "highest":
        return False
    shapes: dict[tuple[int, int, bool], Any] = {}
    for module in model.modules():
        int8 = bool(getattr(module, "multiplies_int8", False))
        held = module.scale if int8 else getattr(module, "weight", None)
        linear = int8 or type(module) is torch.nn.Linear
        if linear and held is not None and held.dtype == torch.float32:
            shapes.setdefault((*module.weight.shape, module.bias is not None), module)
    changed = False
    with torch.inference_mode():
        for layer in shapes.values():
            width = layer.weight.shape[1]
            inputs = torch.linspace(-1, 1, 64 * width, device=layer.weight.device)
            inputs = (inputs * 1e3).sin().reshape(64, width)
            torch.set_float32_matmul_precision(chosen)
            reduced = layer(inputs)
            torch.set_float32_matmul_precision("highest")
            changed |= not bool(torch.equal(reduced, layer(inputs)))
    torch.set_float32_matmul_precision(chosen)
    return changed


def tuned_gemms(device: str) -> int:
    """GEMMs with a tuned solution; 0 where TunableOp is off."""
    import torch

    if device != "cuda" or not torch.cuda.tunable.is_enabled():
        return 0
    return len(torch.cuda.tunable.get_results())


def preferred_blas(device: str) -> str:
    """The GEMM library that torch prefers on this device; empty on a CPU."""
    import torch

    return str(torch.backends.cuda.preferred_blas_library()) if device == "cuda" else ""
