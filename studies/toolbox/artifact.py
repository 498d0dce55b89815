"""The kept stack as code: a program as the model comes, the same with the stack, and the diff.

Both programs stand alone: they need torch and transformers (and the module of a factory), carry the
loop that was measured, and run as they are.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from specs.text import LONGEST_COMMENT, one_line
from studies.files import write_atomically
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.models import ModelSource
from studies.toolbox.tools import TOOLBOX, Code
from studies.toolbox.workload import Generation

HERE = Path(__file__).parent
NAMES = ("baseline_model.py", "optimised_model.py", "optimised_model.diff")
RUN_LIMIT_S = 900.0

_MAIN = '''

def main() -> None:
    """Generates from random prompts and prints how fast."""
    import argparse
    import time

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="{device}")
    parser.add_argument("--batch", type=int, default={batch})
    parser.add_argument("--prompt", type=int, default={prompt})
    parser.add_argument("--new-tokens", type=int, default={new_tokens})
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    generator = load(asked.device)
    size = (asked.batch, asked.prompt)
    ids = torch.randint(0, generator.model.config.vocab_size, size, device=asked.device)
    mask = torch.ones_like(ids)
    for run in range(asked.runs):
        started = time.perf_counter()
        generator.generate(ids, mask, asked.new_tokens).cpu()
        seconds = time.perf_counter() - started
        speed = asked.batch * asked.new_tokens / seconds
        print(f"run {{run + 1}}: {{speed:,.1f}} tokens/s")


if __name__ == "__main__":
    main()
'''


def program(source: ModelSource, dtype: str, work: Generation, device: str, bundle: Bundle) -> str:
    """A program that loads the model, applies a bundle and generates."""
    codes = [tool.code(bundle.get(name)) for name, tool in TOOLBOX.items() if name in bundle]
    arguments = {name: value for code in codes for name, value in code.arguments.items()}
    call = "".join(f", {name}={value}" for name, value in arguments.items())
    lines = [f"    {line}" for code in codes for line in code.lines]
    parts = [
        docstring(_title(source, bundle)),
        "",
        "from __future__ import annotations",
        "",
        "import inspect",
        "import os",
        "from typing import Any",
        "",
        *_environment(codes),
        "import torch",
        "",
        "Tensor = Any",
        "",
        "",
        *(_source(name) for name in sorted({file for code in codes for file in code.files})),
        _source("generation.py"),
        'def load(device: str = "cpu") -> Generator:',
        '    """The model, ready to generate."""',
        *(f"    {line}".rstrip() for line in _load_lines(source, dtype)),
        "    model = model.to(device).eval().requires_grad_(False)",
        *lines,
        f"    return Generator(model{call})",
    ]
    return (
        "\n".join(parts)
        + "\n"
        + _MAIN.format(
            device=device, batch=work.batch, prompt=work.prompt_tokens, new_tokens=work.new_tokens
        )
    )


def write_artifact(
    folder: Path, source: ModelSource, dtype: str, work: Generation, device: str, bundle: Bundle
) -> list[Path]:
    """Writes both programs and the unified diff between them."""
    before = program(source, dtype, work, device, BASELINE)
    after = program(source, dtype, work, device, bundle)
    diff = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{NAMES[0]}",
            f"b/{NAMES[1]}",
        )
    )
    texts = zip(NAMES, (before, after, diff), strict=True)
    return [write_atomically(folder / name, text) for name, text in texts]


def run_program(path: Path, new_tokens: int, limit_s: float = RUN_LIMIT_S) -> str:
    """Runs a written program once; what it printed last, or the sentence that it failed with."""
    command = [sys.executable, str(path), "--runs", "1", "--new-tokens", str(new_tokens)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not end within {limit_s:,.0f} s."
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = said[-1] if said else "nothing"
    return last if done.returncode == 0 else f"it failed with exit code {done.returncode}: {last}"


def _title(source: ModelSource, bundle: Bundle) -> str:
    kept = f"with {bundle}" if len(bundle) else "as it comes"
    return f"{source.text} {kept}."


def docstring(sentence: str) -> str:
    """A sentence as the docstring of a program, whatever it quotes of paths and names."""
    plain = one_line(sentence, LONGEST_COMMENT).replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{plain}"""'


def _environment(codes: Iterable[Code]) -> list[str]:
    """Variables that must be set before torch is imported."""
    pairs = {name: value for code in codes for name, value in code.environment.items()}
    lines = [f'os.environ["{name}"] = "{value}"' for name, value in sorted(pairs.items())]
    return [*lines, ""] if lines else []


def _load_lines(source: ModelSource, dtype: str) -> list[str]:
    """Statements that make ``model``."""
    if source.kind == "factory":
        module, _, name = source.text.partition(":")
        lines = [f"from {module} import {name}", f"model = {name}()"]
        if dtype != "checkpoint":
            lines += [
                "for parameter in model.parameters():",
                f"    parameter.data = parameter.data.to(torch.{dtype})",
            ]
        return lines
    wanted = "config.dtype or torch.float32" if dtype == "checkpoint" else f"torch.{dtype}"
    if source.kind == "config":
        return [
            "from transformers import AutoConfig, AutoModelForCausalLM",
            "",
            f"config = AutoConfig.from_pretrained({source.text!r})",
            f"model = AutoModelForCausalLM.from_config(config, dtype={wanted})",
        ]
    held = '"auto"' if dtype == "checkpoint" else f"torch.{dtype}"
    return [
        "from transformers import AutoModelForCausalLM",
        "",
        f"model = AutoModelForCausalLM.from_pretrained({source.text!r}, dtype={held})",
    ]


def _source(name: str) -> str:
    """The classes and functions of one of our modules, without its head."""
    text = (HERE / name).read_text(encoding="utf-8")
    start = min(text.index(word) for word in ("\nclass ", "\ndef ") if word in text)
    return text[start:].strip() + "\n\n"
