"""What a toolbox study is asked: a model or a study YAML, with command line options over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.errors import InputError
from specs.files import is_file, path_exists
from specs.formats.yaml_files import read_yaml
from studies.files import checked_name, name_from
from studies.toolbox.bundle import Bundle
from studies.toolbox.decision import Rule
from studies.toolbox.models import ModelSource
from studies.toolbox.planners import make_planner
from studies.toolbox.space import checked_axes
from studies.toolbox.workload import Generation

SHIPPED_PREFIX = "toolbox_"
"""File names of shipped toolbox studies begin so; other YAMLs beside them train."""


class Request(BaseModel):
    """A toolbox study. Fields are those of its YAML; times in seconds, ratios as fractions."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = ""
    model: str
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["checkpoint", "float32", "bfloat16", "float16"] = "checkpoint"
    batch: int = 8
    prompt: int = 256
    new_tokens: int = 512
    ragged: bool = False
    threads: int = Field(default=1, ge=1)
    tools: dict[str, list[str]] | None = None
    beside: list[dict[str, str]] = Field(default=[], description="bundles measured in any case")
    planner: str = "acquisition"
    trials: int = Field(default=16, ge=1)
    threshold: float = Rule().threshold
    confidence: float = Rule().confidence
    pairs: int = Rule().pairs
    min_blocks: int = Rule().min_blocks
    max_blocks: int = Rule().max_blocks
    lossy_budget: float | None = Field(
        default=None, gt=0, description="KL that lossy tools may cost, in units of bfloat16's"
    )
    metric: Literal["auto", "wall_s", "cpu_s", "device_s"] = "auto"
    timeout_s: float = Field(default=1800.0, gt=0, description="longest answer of a worker")
    seed: int = Field(default=0, ge=0)

    @property
    def source(self) -> ModelSource:
        """Where the model comes from."""
        return ModelSource.of(self.model)

    @property
    def work(self) -> Generation:
        """What is generated."""
        return Generation(self.batch, self.prompt, self.new_tokens, self.ragged, self.seed)

    @property
    def rule(self) -> Rule:
        """The keep rule."""
        return Rule(self.threshold, self.confidence, self.pairs, self.min_blocks, self.max_blocks)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Settings per tool."""
        return checked_axes(self.tools)

    @property
    def beside_bundles(self) -> tuple[Bundle, ...]:
        """Bundles that are measured whatever the planner wants."""
        return tuple(Bundle.of(settings) for settings in self.beside)

    @property
    def study_name(self) -> str:
        """The name of the study."""
        if self.name:
            return checked_name(self.name)
        return name_from(f"toolbox_{Path(self.model).stem}_{self.device}")


def read_request(text: str, options: Mapping[str, Any]) -> Request:
    """The request of MODEL, which may be a study YAML or the name of a shipped one.

    ``options`` are the fields that the command line sets; None leaves a field as it is.

    Raises:
        InputError: a field does not exist or cannot be used.
    """
    fields = _fields(text)
    fields |= {name: value for name, value in options.items() if value is not None}
    try:
        request = Request(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{text}: {where}: {first['msg']}.") from None
    # Everything that can be refused is refused before a process is started.
    _ = request.source, request.work, request.rule, request.axes, request.study_name
    make_planner(request.planner, request.seed, request.threshold)
    for bundle in request.beside_bundles:
        checked_axes({tool: [setting] for tool, setting in bundle})
    return request


def shipped_requests() -> dict[str, Path]:
    """Shipped toolbox studies by name."""
    folder = Path(__file__).resolve().parents[1]
    return {path.stem: path for path in sorted(folder.glob(f"{SHIPPED_PREFIX}*.yaml"))}


def _fields(text: str) -> dict[str, Any]:
    path = shipped_requests().get(text, Path(text))
    if path.suffix not in (".yaml", ".yml"):
        return {"model": text}
    if not is_file(path):
        raise InputError(f"the study {text!r} does not exist.")
    content = read_yaml(path)
    if not isinstance(content.get("model"), str):
        raise InputError(f"{path} is no toolbox study: it needs fields, with a model among them.")
    fields: dict[str, Any] = {"name": path.stem} | content
    beside = path.parent / fields["model"]
    if path_exists(beside):  # paths in a study are relative to it
        fields["model"] = str(beside)
    return fields
