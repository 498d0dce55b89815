"""YAML and JSON files that users hand in: read safely, with environment values and ``extends``.

Nothing in a file can run code: tags other than YAML's own are refused. Sizes, nesting and aliases
are bounded, so that a hostile or mistaken file ends in one sentence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from specs.errors import InputError
from specs.files import input_file, is_file

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 40
MAX_NODES = 100_000
MAX_DIGITS = 18
MAX_FILES = 100
BASE_KEYS = ("extends", "bases", "includes")

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>[^{}]*))?\}")
READ_PREFIX = "PRIMUS_"
READ_VARIABLES = (
    *("CONTI_PARAMS", "EVAL_INTERVAL", "EVAL_ITERS", "GBS", "LOG_INTERVAL", "LR_WARMUP_ITERS"),
    *("MBS", "SEED", "TRAIN_ITERS", "USE_TURBO_RMS_NORM"),
)
"""Settings without the prefix that experiments of Primus' own repository read (its examples)."""
_SECRET = re.compile(r"KEY|TOKEN(?!IZE)|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
"""Words in names of variables that hold secrets; tokenizers are none."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """SafeLoader that refuses a key given twice, which plain YAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in keys:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} repeats", line)
            if isinstance(key, Hashable):
                keys.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int | float | str:
        """A number; 2:08, which YAML 1.1 counts in sixties as 128, stays text, as in YAML 1.2."""
        text = str(self.construct_scalar(node))
        if ":" in text:
            return text
        read = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        number: int | float = read(node)
        return number


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def read_text(path: Path) -> str:
    """The text of a small file.

    Raises:
        InputError: the file is missing, unreadable, too large or not UTF-8.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give a file.")
        size = input_file(path).stat().st_size
        if size > MAX_BYTES:
            raise InputError(
                f"{path} has {size / 1e6:,.0f} MB, but a configuration file has at most "
                f"{MAX_BYTES / 1e6:.0f} MB; give the configuration, not data or weights."
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{path} is longer than {MAX_BYTES / 1e6:.0f} MB.")
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file (UTF-8).") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {path}: {reason}.") from None


def parse_yaml(text: str, where: str) -> Any:
    """The content of a YAML text.

    Raises:
        InputError: it is no YAML, uses tags, repeats a key, or is nested or aliased without bound.
    """
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if isinstance(mark, yaml.Mark) else ""
        problem = " ".join(str(error.problem or "not YAML").split())
        raise InputError(f"{where}{line} is not valid YAML: {problem}.") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{where} is not valid YAML: {problem[:200]}.") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply.") from None
    except (ValueError, TypeError, OverflowError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{where} has a value that YAML cannot read: {problem[:200]}.") from None
    _check_bounds(content, where)
    return content


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds, as written (environment values not yet filled in).

    Raises:
        InputError: the file cannot be read or does not hold a mapping with text keys.
    """
    return as_mapping(parse_yaml(read_text(path), str(path)), str(path))


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        InputError: the file cannot be read or does not hold a JSON object.
    """
    text = read_text(path)
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{path} is not valid JSON: {problem[:200]}.") from None
    _check_bounds(content, str(path))
    return as_mapping(content, str(path))


def as_mapping(content: Any, where: str) -> dict[str, Any]:
    """``content`` if it is a mapping with text keys; nothing at all counts as an empty one.

    Raises:
        InputError: it is something else.
    """
    if content is None:
        return {}
    if not isinstance(content, dict):
        kind = {"list": "list", "str": "text"}.get(type(content).__name__, "single value")
        raise InputError(f"{where} holds a {kind} where a mapping of keys to values is expected.")
    for key in content:
        if not isinstance(key, str):
            raise InputError(f"{where} has the key {key!r}, which is not a name.")
    return content


def _check_bounds(content: Any, where: str) -> None:
    """Refuses nesting, aliases and integers that no configuration needs."""
    pending: list[tuple[Any, int]] = [(content, 0)]
    seen = 0
    while pending:
        node, depth = pending.pop()
        seen += 1
        if depth > MAX_DEPTH:
            raise InputError(f"{where} is nested more than {MAX_DEPTH} levels deep.")
        if seen > MAX_NODES:
            raise InputError(f"{where} has more than {MAX_NODES:,} values, aliases written out.")
        if isinstance(node, dict):
            pending += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, list | tuple | set):
            pending += [(value, depth + 1) for value in node]
        elif isinstance(node, int) and abs(node) >= 10**MAX_DIGITS:
            raise InputError(f"{where} has a number of more than {MAX_DIGITS} digits.")


def fill_environment(content: Any, where: str, environment: Mapping[str, str] | None = None) -> Any:
    """``content`` with each ``${NAME:default}`` replaced and its text read as a YAML scalar.

    A file may come from anybody and what it says is stored and shown, so only variables that are
    settings of Primus are read (``is_read``); of every other one the default is taken.

    Raises:
        InputError: a variable without a default is not set, or is none that is read.
    """
    variables = os.environ if environment is None else environment
    if isinstance(content, dict):
        return {key: fill_environment(value, where, variables) for key, value in content.items()}
    if isinstance(content, list):
        return [fill_environment(value, where, variables) for value in content]
    if not isinstance(content, str) or "${" not in content:
        return content

    def value_of(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        value = variables.get(name, default) if is_read(name) else default
        if value is not None:
            return value
        if is_read(name):
            raise InputError(f"{where} needs the environment variable {name}; set it.")
        raise InputError(
            f"{where} asks for the environment variable {name}, which is not read: it might hold a "
            f"secret; write the value, a default (${{{name}:...}}) or a variable {READ_PREFIX}..."
        )

    return _typed(_VARIABLE.sub(value_of, content))


def is_read(name: str) -> bool:
    """Whether files may have this environment variable filled in: a setting and no secret."""
    setting = name.startswith(READ_PREFIX) or name in READ_VARIABLES
    return setting and not _SECRET.search(name)


def _typed(text: str) -> Any:
    """The scalar or flat list that YAML reads in ``text``; the text itself where it is neither."""
    try:
        value = parse_yaml(text, "value")
    except InputError:
        return text
    return text if isinstance(value, dict) else value


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below`` with the values of ``above``; mappings are merged, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = deep_merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def read_chain(path: Path) -> dict[str, Any]:
    """A YAML file merged over the files that it extends, as written.

    Bases are named relative to the file; a later base wins over an earlier one and the file wins
    over all of them.

    Raises:
        InputError: a file extends itself, a base is missing, or a file cannot be read.
    """
    return _read_chain(path, (path.resolve(),), [])


def _read_chain(path: Path, chain: tuple[Path, ...], read: list[Path]) -> dict[str, Any]:
    """``path`` over its bases; ``chain`` leads to it and ``read`` lists every file read so far."""
    read.append(path)
    if len(read) > MAX_FILES or len(chain) > MAX_DEPTH:
        raise InputError(f"{chain[0]} extends more than {MAX_FILES} files; merge some of them.")
    content = dict(read_yaml(path))
    merged: dict[str, Any] = {}
    for base in _bases(content, path):
        if not is_file(base):
            raise InputError(f"{path} extends {base}, which does not exist.")
        resolved = base.resolve()
        if resolved in chain:
            names = " -> ".join(step.name for step in (*chain, resolved))
            raise InputError(f"{path} extends itself ({names}); break the circle.")
        merged = deep_merge(merged, _read_chain(base, (*chain, resolved), read))
    return deep_merge(merged, content)


def _bases(content: dict[str, Any], path: Path) -> list[Path]:
    """Files named by ``extends`` and its synonyms, which are taken out of ``content``."""
    bases: list[Path] = []
    for key in BASE_KEYS:
        names = content.pop(key, None) or []
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{path}: {key} must be a file name or a list of file names.")
        bases += [path.parent / name for name in names]
    return bases
