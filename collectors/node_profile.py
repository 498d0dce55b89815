"""Measures a plan on this node with PyTorch: the one file to copy into a container.

    python node_profile.py --plan plan.json --out rows.jsonl --budget 600
    torchrun --nproc-per-node 8 node_profile.py --plan plan.json --out rows.jsonl --budget 600
    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 8 --master-addr HOST --master-port PORT ...

It needs the interpreter's torch (CUDA, ROCm or CPU) and the standard library, nothing else. Every
item is measured once a round, rounds go on until the budget is spent: repeats are interleaved, and
a run that is killed keeps what it has. The same command goes on where it stopped.

Time is taken by device events on GPUs and by the process clock else, after a warm-up, on random
non-zero data that is too large to stay in caches where the item allows it. All is in one file so
that one file is enough.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import time
import warnings
from typing import Any

SCHEMA_VERSION = 1
WARM_UP_S = 0.1
SAMPLE_S = {"cuda": 0.02, "cpu": 0.05}
"""Shortest time of one sample: short operators run many times in it."""
SAMPLES = 5
MAX_ROUNDS = 20
CACHE_BYTES = 512 * 2**20
MAX_COPIES = 8
ENVIRONMENT_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "HSA_ENABLE_SDMA", "GPU_MAX_HW_QUEUES"),
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "RCCL_MSCCL_ENABLE"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_BLAS_PREFER_HIPBLASLT", "PYTORCH_TUNABLEOP_ENABLED"),
)
"""Variables that are recorded; no others, for they may hold secrets."""


class Node:
    """The device of this process and its peers."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.kind = device
        if device == "auto":
            self.kind = "cuda" if torch.cuda.is_available() else "cpu"
        if self.kind == "cuda":
            torch.cuda.set_device(self.local_rank)
            self.device = torch.device("cuda", self.local_rank)
        else:
            self.device = torch.device("cpu")
        if self.world > 1:
            backend = "nccl" if self.kind == "cuda" else "gloo"
            torch.distributed.init_process_group(backend)

    def synchronise(self) -> None:
        """Waits for the device."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize()

    def agreed(self, value: float, largest: bool = True) -> float:
        """The largest (or smallest) value of all ranks."""
        if self.world == 1:
            return value
        distributed = self.torch.distributed
        held = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        how = distributed.ReduceOp.MAX if largest else distributed.ReduceOp.MIN
        distributed.all_reduce(held, op=how)
        return float(held.item())

    def describe(self) -> dict[str, Any]:
        """Device, versions, clocks and the variables that matter."""
        torch = self.torch
        found: dict[str, Any] = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": getattr(torch.version, "hip", None),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "world_size": self.world,
            "ranks_per_node": self.local_world,
            "threads": torch.get_num_threads(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "variables": {n: os.environ[n] for n in ENVIRONMENT_NAMES if n in os.environ},
            "device_kind": self.kind,
        }
        if self.kind == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            found["device_name"] = properties.name
            found["device_bytes"] = properties.total_memory
            found["processors"] = properties.multi_processor_count
            found["collectives"] = _version(torch)
        else:
            found["device_name"] = _cpu_name()
            found["processors"] = os.cpu_count()
        return found

    def clocks(self) -> dict[str, float]:
        """Clock in MHz, power in W and temperature in C, where the driver's library is there."""
        if self.kind != "cuda":
            return {}
        found = {}
        for name, ask in (
            ("clock_mhz", "clock_rate"),
            ("power_w", "power_draw"),
            ("temperature_c", "temperature"),
        ):
            try:
                value = float(getattr(self.torch.cuda, ask)(self.local_rank))
            except Exception:  # the driver library is optional, and each fails in its own way
                continue
            found[name] = value / 1000 if name == "power_w" else value
        return found


def _version(torch: Any) -> str:
    """Version of NCCL or RCCL."""
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return ""
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _cpu_name() -> str:
    """Model of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                if line.lower().startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


# ------------------------------------------------------------------ what is measured


class Work:
    """Something to time: ``forward`` and, where it has one, ``backward`` to its ``inputs``."""

    def __init__(self, forward: Any, backward: Any = None, inputs: tuple[Any, ...] = ()) -> None:
        self.forward = forward
        self.backward = backward
        self.inputs = inputs


def _copies(working_set: int) -> int:
    """Copies of the inputs to rotate over, so that none stays in a cache."""
    return max(1, min(MAX_COPIES, math.ceil(CACHE_BYTES / max(working_set, 1) / 4)))


def _random(node: Node, *shape: int, dtype: Any, scale: float = 1.0, grad: bool = False) -> Any:
    values = node.torch.randn(*shape, device=node.device, dtype=node.torch.float32) * scale
    return values.to(dtype).requires_grad_(grad)


def gemm(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """C[m, n] = A[m, k] B[n, k]^T, as a linear layer holds its weight."""
    del variant
    torch, m, n, k = node.torch, sizes["m"], sizes["n"], sizes["k"]
    count = _copies((m * k + n * k + m * n) * dtype.itemsize)
    pairs = [
        (_random(node, m, k, dtype=dtype), _random(node, n, k, dtype=dtype, scale=k**-0.5))
        for _ in range(count)
    ]
    turn = [0]

    def forward() -> Any:
        turn[0] = (turn[0] + 1) % count
        activation, weight = pairs[turn[0]]
        with torch.no_grad():
            return torch.nn.functional.linear(activation, weight)

    return Work(forward)


def _attend(torch: Any, query: Any, key: Any, value: Any) -> Any:
    """Causal attention with grouped keys, whatever release of PyTorch."""
    attention = torch.nn.functional.scaled_dot_product_attention
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        try:
            return attention(query, key, value, is_causal=True, enable_gqa=True)
        except TypeError:
            key = key.repeat_interleave(groups, dim=1)
            value = value.repeat_interleave(groups, dim=1)
    return attention(query, key, value, is_causal=True)


def attention(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """Core attention forward and backward; latent attention has a wider query than value."""
    del variant
    torch = node.torch
    batch, seq = sizes["batch"], sizes["seq"]

    def tensor(heads: str, width: str) -> Any:
        shape = (batch, sizes[heads], seq, sizes[width])
        return _random(node, *shape, dtype=dtype, grad=True)

    query, key = tensor("heads", "head_dim_qk"), tensor("kv_heads", "head_dim_qk")
    value = tensor("kv_heads", "head_dim_v")
    return _differentiated(torch, lambda: _attend(torch, query, key, value), (query, key, value))


def _differentiated(torch: Any, function: Any, inputs: tuple[Any, ...]) -> Work:
    """Forward, and backward through one graph that is kept."""
    held: list[Any] = []

    def backward() -> None:
        if not held:
            result = function()
            held.extend((result, torch.randn_like(result)))
        torch.autograd.grad(held[0], inputs, held[1], retain_graph=True)

    return Work(function, backward, inputs)


def _experts_forward(torch: Any, rows: Any, up: Any, down: Any, gated: bool) -> Any:
    """Both GEMMs of all experts on equal numbers of rows, with the activation between them."""
    experts = up.shape[0]
    grouped = rows.view(experts, -1, rows.shape[-1])
    inner = torch.bmm(grouped, up)
    if gated:
        gate, inner = inner.chunk(2, dim=-1)
        inner = torch.nn.functional.silu(gate) * inner
    else:
        inner = torch.nn.functional.gelu(inner)
    return torch.bmm(inner, down).view(rows.shape[0], -1)


def grouped_gemm(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """The routed MLP of one rank under balanced routing: ``rows`` in all over its experts."""
    del variant
    torch, hidden, ffn = node.torch, sizes["hidden"], sizes["ffn"]
    experts = sizes["experts"]
    rows_each = max(sizes["rows"] // experts, 1)
    wide = ffn * (2 if sizes["gated"] else 1)
    rows = _random(node, rows_each * experts, hidden, dtype=dtype, grad=True)
    up = _random(node, experts, hidden, wide, dtype=dtype, scale=hidden**-0.5, grad=True)
    down = _random(node, experts, ffn, hidden, dtype=dtype, scale=ffn**-0.5, grad=True)
    gated = bool(sizes["gated"])
    return _differentiated(
        torch, lambda: _experts_forward(torch, rows, up, down, gated), (rows, up, down)
    )


def elementwise(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """A residual addition: reads two tensors and writes one."""
    del variant
    torch, elements = node.torch, sizes["elements"]
    count = _copies(3 * elements * dtype.itemsize)
    sets = [tuple(_random(node, elements, dtype=dtype) for _ in range(3)) for _ in range(count)]
    turn = [0]

    def forward() -> None:
        turn[0] = (turn[0] + 1) % count
        first, second, out = sets[turn[0]]
        torch.add(first, second, out=out)

    return Work(forward)


def optimizer(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """A fused AdamW step over fp32 parameters: reads 16 bytes a parameter and writes 12."""
    del variant, dtype
    torch = node.torch
    parameter = torch.nn.Parameter(
        _random(node, sizes["parameters"], dtype=torch.float32, scale=0.02)
    )
    parameter.grad = _random(node, sizes["parameters"], dtype=torch.float32, scale=0.01)
    step = torch.optim.AdamW([parameter], lr=1e-5, fused=True).step
    return Work(step)


def collective(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """A collective over ``ranks`` processes; all of them call it."""
    torch, distributed = node.torch, node.torch.distributed
    ranks = sizes["ranks"]
    if ranks > node.world or ranks < 2:
        raise Unmeasurable(f"needs {ranks} processes, there are {node.world}")
    across = ranks > sizes["ranks_per_node"]
    if across and node.world == node.local_world:
        raise Unmeasurable("goes between nodes, but this run has one (--nodes 2)")
    group = distributed.new_group(list(range(ranks)))
    inside = node.rank < ranks
    # Every rank holds an equal part of the message.
    elements = max(sizes["message_bytes"] // dtype.itemsize // ranks, 1) * ranks
    whole = _random(node, elements, dtype=dtype)
    part = _random(node, elements // ranks, dtype=dtype)
    received = torch.empty_like(whole)

    def call() -> None:
        if not inside:
            return
        if variant == "all_reduce":
            distributed.all_reduce(received, group=group)
        elif variant == "all_gather":
            distributed.all_gather_into_tensor(received, part, group=group)
        elif variant == "reduce_scatter":
            distributed.reduce_scatter_tensor(part, whole, group=group)
        elif variant == "all_to_all":
            distributed.all_to_all_single(received, whole, group=group)
        else:
            _send_round(node, distributed, whole, received, ranks, group)

    return Work(call)


def _send_round(
    node: Node, distributed: Any, sent: Any, received: Any, ranks: int, group: Any
) -> None:
    """Every rank sends its tensor to the next one."""
    following, previous = (node.rank + 1) % ranks, (node.rank - 1) % ranks
    operations = [
        distributed.P2POp(distributed.isend, sent, following, group),
        distributed.P2POp(distributed.irecv, received, previous, group),
    ]
    for request in distributed.batch_isend_irecv(operations):
        request.wait()


def layer(node: Node, sizes: dict[str, int], dtype: Any, variant: str) -> Work:
    """A transformer layer at the sizes of one rank: norms, attention, and MLP or experts."""
    torch = node.torch
    weights: list[Any] = []

    def weight(*shape: int) -> Any:
        held = _random(node, *shape, dtype=dtype, scale=shape[-1] ** -0.5, grad=True)
        weights.append(held)
        return held

    batch, seq, hidden = sizes["batch"], sizes["seq"], sizes["hidden"]
    scales = [weight(hidden), weight(hidden)]
    attend = _latent_attention(node, sizes, weight) if sizes["kv_rank"] else None
    attend = attend or _grouped_attention(node, sizes, weight)
    feed = _experts(node, sizes, weight) if variant == "moe" else None
    feed = feed or _mlp(node, sizes["ffn"], hidden, bool(sizes["gated"]), weight)
    shared = None
    if variant == "moe" and sizes["shared_ffn"]:
        shared = _mlp(node, sizes["shared_ffn"], hidden, bool(sizes["gated"]), weight)
    data = _random(node, batch, seq, hidden, dtype=dtype, grad=True)

    def forward() -> Any:
        after = data + attend(_norm(torch, data, scales[0]))
        normed = _norm(torch, after, scales[1])
        out = after + feed(normed)
        return out + shared(normed) if shared is not None else out

    return _differentiated(torch, forward, (data, *weights))


def _norm(torch: Any, values: Any, scale: Any) -> Any:
    if hasattr(torch.nn.functional, "rms_norm"):
        return torch.nn.functional.rms_norm(values, (values.shape[-1],), scale)
    squares = values.float().pow(2).mean(-1, keepdim=True)
    return (values.float() * torch.rsqrt(squares + 1e-6)).to(values.dtype) * scale


def _grouped_attention(node: Node, sizes: dict[str, int], weight: Any) -> Any:
    """Query, key and value in one projection, and the way back."""
    torch = node.torch
    heads, groups, width = sizes["heads"], sizes["kv_heads"], sizes["head_dim_qk"]
    packed = weight((heads + 2 * groups) * width, sizes["hidden"])
    back = weight(sizes["hidden"], heads * width)

    def attend(values: Any) -> Any:
        batch, seq, _ = values.shape
        mixed = torch.nn.functional.linear(values, packed)
        mixed = mixed.view(batch, seq, heads + 2 * groups, width).transpose(1, 2)
        query, key, value = mixed.split((heads, groups, groups), dim=1)
        found = _attend(torch, query, key, value).transpose(1, 2).reshape(batch, seq, -1)
        return torch.nn.functional.linear(found, back)

    return attend


def _latent_attention(node: Node, sizes: dict[str, int], weight: Any) -> Any:
    """Multi-latent attention: low-rank projections down and up (arXiv 2405.04434)."""
    torch, linear = node.torch, node.torch.nn.functional.linear
    hidden, heads = sizes["hidden"], sizes["heads"]
    wide, value_dim, rope = sizes["head_dim_qk"], sizes["head_dim_v"], sizes["rope_dim"]
    plain = wide - rope
    q_rank, kv_rank = sizes["q_rank"], sizes["kv_rank"]
    q_down = weight(q_rank, hidden) if q_rank else None
    q_up = weight(heads * wide, q_rank or hidden)
    kv_down = weight(kv_rank + rope, hidden)
    kv_up = weight(heads * (plain + value_dim), kv_rank)
    back = weight(hidden, heads * value_dim)

    def attend(values: Any) -> Any:
        batch, seq, _ = values.shape
        latent = values if q_down is None else linear(values, q_down)
        query = linear(latent, q_up).view(batch, seq, heads, wide).transpose(1, 2)
        low, turned = linear(values, kv_down).split((kv_rank, rope), dim=-1)
        both = linear(low, kv_up).view(batch, seq, heads, plain + value_dim).transpose(1, 2)
        key, value = both.split((plain, value_dim), dim=-1)
        turned = turned.unsqueeze(1).expand(batch, heads, seq, rope)
        key = torch.cat((key, turned), dim=-1)
        found = _attend(torch, query, key, value).transpose(1, 2).reshape(batch, seq, -1)
        return linear(found, back)

    return attend


def _mlp(node: Node, ffn: int, hidden: int, gated: bool, weight: Any) -> Any:
    torch, linear = node.torch, node.torch.nn.functional.linear
    up, down = weight(ffn * (2 if gated else 1), hidden), weight(hidden, ffn)

    def feed(values: Any) -> Any:
        inner = linear(values, up)
        if gated:
            gate, inner = inner.chunk(2, dim=-1)
            inner = torch.nn.functional.silu(gate) * inner
        else:
            inner = torch.nn.functional.gelu(inner)
        return linear(inner, down)

    return feed


def _experts(node: Node, sizes: dict[str, int], weight: Any) -> Any:
    """Router, permutation, experts under balanced routing, and the weighted way back.

    ``experts`` are those of this rank; its tokens stand for those that the group would send.
    """
    torch, hidden, topk = node.torch, sizes["hidden"], sizes["topk"]
    experts, ffn, gated = sizes["experts"], sizes["expert_ffn"], bool(sizes["gated"])
    router = weight(experts, hidden)
    up, down = weight(experts, hidden, ffn * (2 if gated else 1)), weight(experts, ffn, hidden)
    copies = sizes["batch"] * sizes["seq"] * topk
    rows = copies - copies % experts
    order = torch.randperm(copies, device=node.device)[:rows]

    def feed(values: Any) -> Any:
        flat = values.reshape(-1, hidden)
        scores = torch.softmax(torch.nn.functional.linear(flat, router).float(), dim=-1)
        best = torch.topk(scores, min(topk, experts), dim=-1).values.mean(-1, keepdim=True)
        token = order // topk
        found = _experts_forward(torch, flat[token], up, down, gated)
        merged = torch.zeros_like(flat).index_add(0, token, found)
        return (merged * best.to(flat.dtype)).view_as(values)

    return feed


WORK = {
    "gemm": gemm,
    "attention": attention,
    "grouped_gemm": grouped_gemm,
    "elementwise": elementwise,
    "optimizer": optimizer,
    "collective": collective,
    "layer": layer,
}


class Unmeasurable(Exception):
    """This node cannot measure an item."""


# ------------------------------------------------------------------ how it is timed


def _timed(node: Node, call: Any, repeats: int) -> float:
    """Seconds a call, over ``repeats`` calls in a row."""
    if node.kind == "cuda":
        start = node.torch.cuda.Event(enable_timing=True)
        stop = node.torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000 / repeats
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def _samples(node: Node, call: Any, patience_s: float) -> list[float]:
    """Samples of seconds a call, after a warm-up; fewer where one call takes long."""
    began = time.perf_counter()
    call()
    node.synchronise()
    if node.agreed(time.perf_counter() - began) > patience_s / 3:
        return [node.agreed(_timed(node, call, 1))]
    began = time.perf_counter()
    once = _timed(node, call, 1)
    # All ranks must call a collective equally often: they agree on when they are warm.
    while node.agreed(time.perf_counter() - began) < min(WARM_UP_S, patience_s / 4):
        once = _timed(node, call, 1)
    once = max(node.agreed(once), 1e-7)
    repeats = max(1, min(10_000, math.ceil(SAMPLE_S[node.kind] / once)))
    count = max(1, min(SAMPLES, int(patience_s / (once * repeats))))
    return [node.agreed(_timed(node, call, repeats)) for _ in range(int(node.agreed(count)))]


def _saved_bytes(node: Node, work: Work) -> int | None:
    """Bytes that forward keeps for backward beside its inputs, every storage once."""
    if work.backward is None:
        return None
    seen: dict[int, int] = {}
    own = {tensor.untyped_storage().data_ptr() for tensor in work.inputs}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with node.torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = work.forward()
    del result
    return sum(seen.values())


def measure(node: Node, item: dict[str, Any], patience_s: float) -> dict[str, Any]:
    """One round of one item."""
    torch = node.torch
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[item["dtype"]]
    if node.kind == "cuda":
        torch.cuda.empty_cache()
    work = WORK[item["kind"]](node, item["sizes"], dtype, item["variant"])
    node.synchronise()
    before = torch.cuda.memory_allocated() if node.kind == "cuda" else 0
    if node.kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
    forward = _samples(node, work.forward, patience_s / 2)
    backward = _samples(node, work.backward, patience_s / 2) if work.backward else []
    peak = torch.cuda.max_memory_allocated() - before if node.kind == "cuda" else None
    middle = statistics.median(forward)
    return {
        "forward_s": middle,
        "backward_s": statistics.median(backward) if backward else None,
        "spread": (max(forward) - min(forward)) / middle,
        "samples": len(forward),
        "peak_bytes": peak,
        "saved_bytes": _saved_bytes(node, work),
        **node.clocks(),
    }


def _attempt(node: Node, item: dict[str, Any], patience_s: float) -> dict[str, Any]:
    """A round, or the reason why the item cannot be measured here."""
    error = ""
    found: dict[str, Any] = {}
    try:
        found = measure(node, item, patience_s)
    except Unmeasurable as reason:
        error = str(reason)
    except (RuntimeError, NotImplementedError, ValueError, MemoryError) as reason:
        error = (
            f"{type(reason).__name__}: {str(reason).splitlines()[0][:200] if str(reason) else ''}"
        )
    # In a group all must agree: one that failed would leave the others waiting.
    if node.agreed(1.0 if error else 0.0) > 0:
        return {"error": error or "failed on another rank"}
    return found


# ------------------------------------------------------------------ the run


def append(path: str, content: dict[str, Any]) -> None:
    """Adds one line in one write: a killed run leaves whole lines, but for the last at worst."""
    line = json.dumps(content, allow_nan=False) + "\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        if end and os.pread(handle, 1, end - 1) != b"\n":
            line = "\n" + line
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def finished(path: str) -> dict[str, int]:
    """Key -> rounds that a file already holds; items that failed count as done."""
    done: dict[str, int] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and isinstance(row.get("key"), str):
                    done[row["key"]] = MAX_ROUNDS if "error" in row else done.get(row["key"], 0) + 1
    except FileNotFoundError:
        pass
    return done


def progress(text: str, done: int, of: int, left_s: float) -> None:
    """One line on stderr, rewritten on a terminal."""
    minutes, seconds = divmod(max(int(left_s), 0), 60)
    filled = int(20 * done / max(of, 1))
    bar = "#" * filled + "." * (20 - filled)
    line = f"[{bar}] {done}/{of} {minutes}:{seconds:02d} left  {text}"
    end = "\r" if sys.stderr.isatty() else "\n"
    print(line[:110].ljust(110), end=end, file=sys.stderr, flush=True)


def run(plan: dict[str, Any], out: str, budget_s: float, device: str, rounds: int) -> int:
    """Measures the plan until the budget is spent; returns how many rounds of items were kept."""
    import torch

    warnings.simplefilter("ignore", FutureWarning)  # collectives get new names, old ones stay
    torch.manual_seed(1234 + int(os.environ.get("RANK", "0")))
    node = Node(torch, device)
    began = time.monotonic()
    items = plan["items"]
    done = finished(out)
    if node.rank == 0:
        append(out, {"schema_version": SCHEMA_VERSION, "environment": node.describe()})
    kept = 0
    for number in range(rounds):
        for place, item in enumerate(items):
            left = budget_s - (time.monotonic() - began)
            # All ranks must do the same: the one with the least time left decides.
            left = node.agreed(left, largest=False)
            if left <= 0:
                return _end(node, kept)
            if node.agreed(float(done.get(item["key"], 0))) > number:
                continue
            if node.rank == 0:
                progress(f"round {number + 1}: {item['key']}", place, len(items), left)
            started = time.monotonic()
            patience = node.agreed(max(min(left / 4, budget_s / max(len(items), 1)), 0.2))
            found = _attempt(node, item, patience)
            took = time.monotonic() - started
            done[item["key"]] = MAX_ROUNDS if "error" in found else done.get(item["key"], 0) + 1
            kept += 1
            if node.rank == 0:
                named = {n: item[n] for n in ("key", "kind", "variant", "dtype", "sizes")}
                append(out, {**named, "round": number, "took_s": took, **found})
    return _end(node, kept)


def _end(node: Node, kept: int) -> int:
    if node.rank == 0 and sys.stderr.isatty():
        print(file=sys.stderr)
    if node.world > 1:
        node.torch.distributed.destroy_process_group()
    return kept


def main(arguments: list[str] | None = None) -> int:
    """The command line; exit code 2 for a plan that cannot be read or a missing PyTorch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plan", required=True, help="plan written by foretune profile")
    parser.add_argument("--out", required=True, help="rows as JSON lines; appended to")
    parser.add_argument("--budget", type=float, default=600.0, help="seconds")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--rounds", type=int, default=5, help="most rounds")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print(f"node_profile: {sys.executable} has no PyTorch; use one that has", file=sys.stderr)
        return 2
    try:
        with open(options.plan, encoding="utf-8") as file:  # noqa: PTH123
            plan = json.load(file)
        if plan.get("schema_version") != SCHEMA_VERSION or not isinstance(plan["items"], list):
            raise ValueError("it is of another version")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        print(f"node_profile: cannot read the plan {options.plan}: {error}", file=sys.stderr)
        return 2
    run(plan, options.out, options.budget, options.device, min(options.rounds, MAX_ROUNDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
