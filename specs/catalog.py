"""The catalog: GPUs and models by name, from the YAML files in ``catalog/`` and from a user's own.

Names are matched without regard to case, blanks, ``-`` or ``_``. A user's file has the format of
the shipped ones (``gpus:`` or ``models:`` at the top) and may extend what is shipped.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from specs.errors import InputError
from specs.formats.yaml_files import read_yaml
from specs.gpu import Gpu
from specs.model import Model, unsupported

FOLDER = Path(__file__).parent / "catalog"

MAX_CHAIN = 40
MAX_LAYERS = 100_000

Entries = dict[str, dict[str, Any]]
Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True)
class _Shelf:
    """Entries of one kind as read from YAML: fields by name, and which name an alias stands for."""

    entries: Entries = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)


def gpu(name: str, extra: Mapping[str, Gpu] | None = None) -> Gpu:
    """The GPU with this name or alias; ``extra`` (see ``read_gpus``) comes first.

    Raises:
        InputError: there is no such GPU; near names and how to add one are in the message.
    """
    shelf = _gpu_shelf()
    for spelling in (name, device_name(name)):
        found = _look_up(spelling, extra)
        if found is not None:
            return found
        key = shelf.names.get(normalised(spelling))
        if key is not None:
            return _built_gpu(key)
    raise InputError(
        f"there is no GPU {name!r} in the catalog{_near(name, shelf, extra)}; "
        "add it with --gpu-file FILE or under gpus: in the YAML of a study or plan."
    )


def device_name(printed: str) -> str:
    """What PyTorch, nvidia-smi or rocm-smi print of a GPU, without brand and without module words.

    ``NVIDIA A100-SXM4-80GB`` is ``A100-SXM4-80GB``, ``AMD Instinct MI300X OAM`` is ``MI300X``. What
    tells two products apart (memory, PCIe, NVL) stays: an unknown variant is not taken for another.
    """
    words = printed.replace("(TM)", " ").replace("(R)", " ").split()
    while len(words) > 1 and words[0].lower() in _BRANDS:
        words = words[1:]
    while len(words) > 1 and words[-1].lower() in _MODULES:
        words = words[:-1]
    return " ".join(words)


_BRANDS = ("nvidia", "amd", "tesla", "geforce", "instinct")
_MODULES = ("oam", "vf")
"""``VF``: a whole GPU handed to a virtual machine."""


def model(name: str, extra: Mapping[str, Model] | None = None) -> Model:
    """The model with this name or alias; ``extra`` (see ``read_models``) comes first.

    Raises:
        InputError: there is no such model (with near names and how to add one), or its architecture
            is one that foretune does not project.
    """
    found = _look_up(name, extra)
    if found is not None:
        return found
    shelf = _model_shelf()
    key = shelf.names.get(normalised(name))
    if key is None:
        raise InputError(
            f"there is no model {name!r} in the catalog{_near(name, shelf, extra)}; "
            "give its config.json, or describe it under model: in the study YAML."
        )
    if key in shelf.unsupported:
        raise unsupported(shelf.unsupported[key], key)
    return _built_model(key)


def gpu_names() -> tuple[str, ...]:
    """Names of all shipped GPUs."""
    return tuple(_gpu_shelf().entries)


def model_names() -> tuple[str, ...]:
    """Names of all shipped models that can be projected."""
    return tuple(_model_shelf().entries)


def unsupported_models() -> dict[str, str]:
    """Names of models that are known but not projected, and what they are."""
    return dict(_model_shelf().unsupported)


def read_gpus(path: Path | None) -> dict[str, Gpu]:
    """GPUs of a user's YAML file, by name and alias; none without a file.

    Raises:
        InputError: the file cannot be used.
    """
    if path is None:
        return {}
    raw = read_yaml(path)
    return gpus_of(raw.get("gpus"), raw.get("sources"), str(path))


def gpus_of(entries: object, sources: object, where: str) -> dict[str, Gpu]:
    """GPUs from the ``gpus`` and ``sources`` sections of a YAML file, by name and alias.

    Raises:
        InputError: an entry cannot be used.
    """
    shelf = _shelf(_section(entries, "gpus", where), _quantities(sources), _gpu_shelf().entries)
    return _with_aliases({key: _build_gpu(key, shelf.entries, where) for key in shelf.entries})


def read_models(path: Path) -> dict[str, Model]:
    """Models of a user's YAML file, by name and alias.

    Raises:
        InputError: the file cannot be used.
    """
    return models_of(read_yaml(path).get("models"), str(path))


def models_of(entries: object, where: str) -> dict[str, Model]:
    """Models from the ``models`` section of a YAML file, by name and alias.

    Raises:
        InputError: an entry cannot be used.
    """
    shelf = _shelf(_section(entries, "models", where), lambda e: e, _model_shelf().entries)
    built = {key: _build_model(key, shelf.entries, where) for key in shelf.entries}
    aliases = {alias: built[key] for alias, key in shelf.names.items()}
    return {**aliases, **built}


def normalised(name: str) -> str:
    """A name as it is compared: lower case, ``-`` for blanks and underscores."""
    return "-".join(name.strip().lower().replace("_", " ").replace("-", " ").split())


def _look_up(name: str, extra: Mapping[str, Item] | None) -> Item | None:
    wanted = normalised(name)
    return next((item for key, item in (extra or {}).items() if normalised(key) == wanted), None)


def _near(name: str, shelf: _Shelf, extra: Mapping[str, Any] | None) -> str:
    """``" (near names: ...)"`` or nothing."""
    known = {**{normalised(key): key for key in extra or {}}, **shelf.names}
    wanted = normalised(name)
    near = [key for key in known if wanted and wanted in key]
    near += difflib.get_close_matches(wanted, known, n=6, cutoff=0.5)
    names = list(dict.fromkeys(known[key] for key in near))[:4]
    return f" (near names: {', '.join(names)})" if names else ""


def _with_aliases(gpus: dict[str, Gpu]) -> dict[str, Gpu]:
    return {**{alias: item for item in gpus.values() for alias in item.aliases}, **gpus}


@cache
def _gpu_shelf() -> _Shelf:
    merged = _Shelf()
    for raw in _shipped("gpus*.yaml"):
        shelf = _shelf(raw["gpus"], _quantities(raw.get("sources")), merged.entries)
        merged.entries.update(shelf.entries)
        merged.names.update(shelf.names)
    return merged


@cache
def _model_shelf() -> _Shelf:
    merged = _Shelf()
    for raw in _shipped("models*.yaml"):
        shelf = _shelf(raw["models"], lambda e: e, merged.entries)
        merged.entries.update(shelf.entries)
        merged.names.update(shelf.names)
        merged.unsupported.update(raw.get("unsupported", {}))
    merged.names.update({normalised(key): key for key in merged.unsupported})
    return merged


@cache
def _built_gpu(key: str) -> Gpu:
    return _build_gpu(key, _gpu_shelf().entries, "catalog")


@cache
def _built_model(key: str) -> Model:
    return _build_model(key, _model_shelf().entries, "catalog")


def _shelf(
    raw: Entries, convert: Callable[[dict[str, Any]], dict[str, Any]], base: Entries
) -> _Shelf:
    """Entries with ``extends`` resolved against this file and ``base``, and all their names."""
    shelf = _Shelf()
    for key, own in raw.items():
        fields, seen = _resolved(key, own, raw, base, ())
        shelf.entries[key] = convert(fields)
        for name in (key, *seen):
            shelf.names[normalised(name)] = key
    return shelf


def _resolved(
    key: str, own: dict[str, Any], raw: Entries, base: Entries, path: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(fields with those of the entry it extends filled in, aliases of the entry itself)."""
    if key in path:
        raise InputError(f"{key} extends itself ({' -> '.join((*path, key))}); break the circle.")
    if len(path) > MAX_CHAIN:
        raise InputError(f"{key} is more than {MAX_CHAIN} steps of extends away from its base.")
    fields = dict(own)
    aliases = fields.pop("aliases", ())
    if not isinstance(aliases, list | tuple) or not all(isinstance(n, str) for n in aliases):
        raise InputError(f"{key}: aliases must be a list of names.")
    aliases = tuple(aliases)
    parent = fields.pop("extends", None)
    if parent is not None:
        parent = str(parent)
        if parent in raw and parent != key:
            inherited, _ = _resolved(parent, raw[parent], raw, base, (*path, key))
        elif parent in base:
            inherited = base[parent]
        else:
            raise InputError(
                f"{key} extends {parent!r}, which is not in the catalog; name one that is."
            )
        fields = {**{k: v for k, v in inherited.items() if k != "aliases"}, **fields}
    if aliases:
        fields["aliases"] = aliases
    return fields, aliases


def _quantities(sources: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Writes ``[value, kind, source]`` out as the fields of a Quantity."""
    table = sources if isinstance(sources, dict) else {}

    def expand(value: Any) -> Any:
        if isinstance(value, dict) and "value" not in value:
            return {key: expand(part) for key, part in value.items()}
        if isinstance(value, list) and len(value) == 3 and str(value[1]) in _KINDS:
            number, kind, source = value
            return {"value": number, "kind": kind, "source": str(table.get(str(source), source))}
        return value

    return lambda entry: {key: expand(value) for key, value in entry.items()}


_KINDS = ("measured", "vendor", "assumed")


def _build_gpu(key: str, entries: Entries, where: str) -> Gpu:
    return _validated(Gpu, {"name": key, **entries[key]}, f"GPU {key} of {where}")


def _build_model(key: str, entries: Entries, where: str) -> Model:
    fields = {k: v for k, v in entries[key].items() if k != "aliases"}
    every = fields.pop("moe_every", None)
    if every is not None:
        count = fields.get("num_layers", 0)
        if type(every) is not int or type(count) is not int or every < 1 or count > MAX_LAYERS:
            raise InputError(
                f"model {key} of {where}: moe_every and num_layers: use whole numbers."
            )
        fields["moe_layers"] = tuple((i + 1) % every == 0 for i in range(count))
    return _validated(Model, {"name": key, **fields}, f"model {key} of {where}")


def _validated(kind: type[Item], fields: dict[str, Any], what: str) -> Item:
    """The entry as its class; the first fault as one sentence."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "entry"
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{what}: {place}: {message}; correct this field.") from None


def _section(entries: object, name: str, where: str) -> Entries:
    if not isinstance(entries, dict) or not entries:
        raise InputError(f"{where} has no {name}: section; list them as {name}: {{NAME: fields}}.")
    for key, value in entries.items():
        if not isinstance(value, dict):
            raise InputError(f"{where}: {name}: {key} holds no fields; write one field a line.")
    return {str(key): value for key, value in entries.items()}


def _shipped(pattern: str) -> list[dict[str, Any]]:
    """Contents of shipped files, read with the fast loader: they need no checks of a stranger's."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    paths = sorted(FOLDER.glob(pattern))
    return [yaml.load(path.read_text(encoding="utf-8"), Loader=loader) for path in paths]
