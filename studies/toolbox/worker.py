"""The process in which one arm lives: loads the model once, applies a bundle, runs when told.

It reads one JSON command a line from standard input and answers with one JSON line on what was
standard output; everything that libraries print goes to standard error. It ends when its input
ends, so it never outlives the study that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from specs.errors import InputError
from studies.toolbox.bundle import Bundle
from studies.toolbox.models import (
    ModelSource,
    check_causal,
    first_line,
    is_out_of_memory,
    load_model,
)
from studies.toolbox.runtime import (
    Host,
    Runtime,
    graphs_compiled,
    host_of,
    observe,
    trace_attention,
)
from studies.toolbox.tools import TOOLBOX
from studies.toolbox.workload import Generation

STEADY_RUNS = 3
STEADY_SPREAD = 0.05
"""Warm-up ends when the last runs lie within this fraction and none compiled a graph (assumed)."""
MAX_WARM_UP_RUNS = 12
PARENT_CHECK_S = 2.0
"""Seconds between looks at whether the study still lives."""


class Arm:
    """The state of a worker: a runtime and what was seen of it."""

    runtime: Runtime
    host: Host
    attention_ops: tuple[str, ...] = ()
    warm_graphs: int = 0

    def load(
        self, source: dict[str, str], dtype: str, device: str, work: dict[str, Any], threads: int,
        seed: int,
    ) -> dict[str, Any]:  # fmt: skip
        """Loads the model; nothing is applied yet."""
        import torch

        torch.set_num_threads(threads)
        started = time.perf_counter()
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("torch sees no GPU; take --device cpu or a torch built for the GPU.")
        model = load_model(ModelSource(**source), dtype, device, seed)  # type: ignore[arg-type]
        check_causal(model, device)
        self.runtime = Runtime(model, device, Generation(**work))
        self.host = host_of(model, device)
        return {
            "host": self.host.as_json(),
            "load_s": time.perf_counter() - started,
            "shape": model_shape(model),
            "versions": versions(),
        }

    def apply(self, bundle: dict[str, str]) -> dict[str, Any]:
        """Applies a bundle, tool by tool; compiling comes last."""
        chosen = Bundle.of(bundle)
        for tool in TOOLBOX.values():
            if tool.name in chosen:
                tool.apply(self.runtime, chosen.get(tool.name))
        self.attention_ops = trace_attention(self.runtime)
        self.runtime.compile()
        return {}

    def warm_up(self) -> dict[str, Any]:
        """Runs until no graph is new and times are steady; the first calls carry compiling.

        On a CPU that others use wall time never is: there it suffices that process time is.
        """
        times: list[float] = []
        busy: list[float] = []
        graphs = [graphs_compiled()]
        while len(times) < MAX_WARM_UP_RUNS:
            reading = self.run()
            times.append(reading["wall_s"])
            busy.append(reading["cpu_s" if self.runtime.device == "cpu" else "wall_s"])
            graphs.append(graphs_compiled())
            still = len(times) >= STEADY_RUNS and graphs[-1] == graphs[-STEADY_RUNS]
            if still and (_steady(times) or _steady(busy)):
                break
        self.warm_graphs = graphs_compiled()
        usual = sorted(times[-STEADY_RUNS:])[STEADY_RUNS // 2]
        return {"times_s": times, "compile_s": sum(max(t - usual, 0.0) for t in times[:2])}

    def run(self) -> dict[str, Any]:
        """One run of the workload: wall, process and device seconds, prefill and decode apart."""
        import torch

        runtime, generator = self.runtime, self.runtime.generator
        ids, mask = runtime.prompts()
        clock = _Clock(runtime)
        with torch.inference_mode():
            generator.start(ids, mask, runtime.work.new_tokens)
            tokens = generator.prefill().argmax(-1)
            clock.mark()
            for _ in range(runtime.work.new_tokens - 1):
                tokens = generator.step(tokens).argmax(-1)
            clock.mark()
        return clock.reading() | {
            "late_graphs": graphs_compiled() - self.warm_graphs,
            "peak_bytes": _peak_bytes(runtime.device),
            "load_average": os.getloadavg()[0],
        }

    def observe(self) -> dict[str, Any]:
        """Evidence of how the model executes, after runs."""
        seen = observe(self.runtime, self.attention_ops)
        late = seen.graphs - self.warm_graphs
        return replace(seen, late_graphs=late).as_json()

    def write_reference(self, folder: str) -> dict[str, Any]:
        """Keeps this arm's logits as the reference of all checks."""
        from studies.toolbox.correctness import write_reference

        runtime = self.runtime
        write_reference(runtime.generator, self.host.vocab_size, runtime.device, Path(folder))
        return {}

    def check(self, folder: str) -> dict[str, Any]:
        """Differences from the reference."""
        from studies.toolbox.correctness import compare_with_reference

        runtime = self.runtime
        found = compare_with_reference(
            runtime.generator, self.host.vocab_size, runtime.device, Path(folder)
        )
        return {name: asdict(item) for name, item in found.items()}

    def profile(self) -> dict[str, Any]:
        """A trace of prefill and of decoding, operator by operator."""
        from studies.toolbox.profiling import profile_runtime

        return profile_runtime(self.runtime)

    def peaks(self, working_bytes: int) -> dict[str, Any]:
        """Bandwidth and FLOP/s that this device reaches, where no catalog knows them."""
        from studies.toolbox.roofline import measured_peaks

        return measured_peaks(working_bytes, self.runtime.device)


def _steady(times: list[float]) -> bool:
    last = times[-STEADY_RUNS:]
    return max(last) <= min(last) * (1 + STEADY_SPREAD)


class _Clock:
    """Wall, process and device time of the parts of a run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._marks: list[tuple[float, float, Any]] = []
        self.mark()

    def mark(self) -> None:
        """Ends a part; waits for the device."""
        event = None
        if self._runtime.device == "cuda":
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._runtime.sync()
        self._marks.append((time.perf_counter(), time.process_time(), event))

    def reading(self) -> dict[str, Any]:
        """Seconds of prefill, of decode and of both."""
        start, middle, end = self._marks
        reading: dict[str, Any] = {}
        for prefix, first, last in (("", start, end), ("prefill_", start, middle)):
            reading[f"{prefix}wall_s"] = last[0] - first[0]
            reading[f"{prefix}cpu_s"] = last[1] - first[1]
            if first[2] is not None:
                reading[f"{prefix}device_s"] = first[2].elapsed_time(last[2]) / 1e3
        for name in [name for name in reading if name.startswith("prefill_")]:
            whole = name.removeprefix("prefill_")
            reading[f"decode_{whole}"] = reading[whole] - reading[name]
        return reading


def model_shape(model: Any) -> dict[str, Any]:
    """Sizes that the roofline needs."""
    config = model.config
    heads = int(config.num_attention_heads)
    embedding = model.get_input_embeddings().weight.numel()
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    parameters = sum(p.numel() for p in model.parameters())
    width = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
    return {
        "layers": int(config.num_hidden_layers),
        "heads": heads,
        "kv_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": int(width),
        "parameters": parameters,
        # A tied embedding is the output layer and is multiplied; an untied one is only looked up.
        "multiplied_parameters": parameters if tied else parameters - embedding,
    }


def versions() -> dict[str, str]:
    """Versions of what runs here."""
    import platform

    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": platform.processor() or platform.machine(),
        "system": platform.platform(),
        "hip": torch.version.hip or "",
        "cuda": torch.version.cuda or "",
    }


def _peak_bytes(device: str) -> int:
    import resource

    import torch

    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def failure(error: BaseException) -> dict[str, str]:
    """What the study must know of an error: its kind and one sentence."""
    text = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, InputError):
        return {"kind": "input", "text": str(error)}
    if is_out_of_memory(error):
        return {"kind": "out_of_memory", "text": text}
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return {"kind": "compile", "text": text}
    return {"kind": "raised", "text": text}


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answers commands until the input ends."""
    arm = Arm()
    table: dict[str, Callable[..., dict[str, Any]]] = {
        name: getattr(arm, name)
        for name in ("load", "apply", "warm_up", "run", "observe", "write_reference", "check")
    }
    table |= {"profile": arm.profile, "peaks": arm.peaks}
    for line in commands:
        command = json.loads(line)
        try:
            answer = {"ok": table[command["name"]](**command["arguments"])}
        except Exception as error:  # the boundary of the process: the study decides what it means
            traceback.print_exc()
            answer = {"error": failure(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def end_with(parent: int) -> None:
    """Ends this process once its parent is gone, whatever it is doing: compiling takes minutes."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Entry point of ``python -m studies.toolbox.worker``."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
