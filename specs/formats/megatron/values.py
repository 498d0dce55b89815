"""Values: typed look-up in a flat dict of Megatron arguments; what is wrong is one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specs.errors import InputError

_LARGEST = 2**40


class Values:
    """A flat dict of Megatron arguments (destination name -> value) and where it came from.

    ``notes`` collects sentences about what readers assumed, ignored or found contradictory.
    """

    def __init__(self, arguments: Mapping[str, Any], where: str) -> None:
        self.arguments = dict(arguments)
        self.where = where
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        """Keeps a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def fail(self, sentence: str) -> InputError:
        """The error to raise: the sentence after the name of the file."""
        return InputError(f"{self.where}: {sentence}")

    def given(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.arguments.get(key) is not None

    def integer(self, key: str, smallest: int = 0) -> int | None:
        """A whole number, None where the key is missing or null.

        Raises:
            InputError: the value is no whole number or too small.
        """
        value = self.arguments.get(key)
        if value is None:
            return None
        number = _integer(value)
        if number is None:
            raise self.fail(f"{key} is {_shown(value)}; use a whole number.")
        if not smallest <= number <= _LARGEST:
            raise self.fail(f"{key} is {number}; use a whole number of at least {smallest}.")
        return number

    def required(self, key: str, smallest: int = 1) -> int:
        """A whole number that must be there.

        Raises:
            InputError: it is missing, no whole number or too small.
        """
        number = self.integer(key, smallest)
        if number is None:
            raise self.fail(f"{key} is missing; add it.")
        return number

    def number(self, key: str, smallest: float = 0.0) -> float | None:
        """A finite number, None where the key is missing or null.

        Raises:
            InputError: the value is no number or too small.
        """
        value = self.arguments.get(key)
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, bool) else float("nan")
        except (TypeError, ValueError):
            number = float("nan")
        if not smallest <= number < float("inf"):
            raise self.fail(f"{key} is {_shown(value)}; use a number of at least {smallest:g}.")
        return number

    def flag(self, key: str) -> bool:
        """A switch; missing or null is off.

        Raises:
            InputError: the value is neither true nor false.
        """
        value = self.arguments.get(key)
        text = str(value).strip().lower()
        if value is None or text in ("false", "0", "no", "off"):
            return False
        if text in ("true", "1", "yes", "on"):
            return True
        raise self.fail(f"{key} is {_shown(value)}; use true or false.")

    def text(self, key: str, default: str = "") -> str:
        """A text, ``default`` where the key is missing or null.

        Raises:
            InputError: the value is a list or a mapping.
        """
        value = self.arguments.get(key)
        if value is None:
            return default
        if isinstance(value, dict | list | tuple):
            raise self.fail(f"{key} is {_shown(value)}; use a single word.")
        return str(value).strip()

    def choice(self, key: str, values: Mapping[str, Any], default: str) -> Any:
        """What the text of ``key`` stands for.

        Raises:
            InputError: the text is not among ``values``.
        """
        text = self.text(key, default)
        if text not in values:
            raise self.fail(f"{key} is {text!r}; use one of {', '.join(values)}.")
        return values[text]

    def integers(self, key: str) -> tuple[int, ...]:
        """Whole numbers from a list or a comma-separated text; empty where missing.

        Raises:
            InputError: an entry is no whole number of at least 0.
        """
        value = self.arguments.get(key)
        if value is None or value == "":
            return ()
        parts = value.split(",") if isinstance(value, str) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        numbers = [_integer(part) for part in parts]
        if any(number is None or not 0 <= number <= _LARGEST for number in numbers):
            raise self.fail(f"{key} is {_shown(value)}; use a list of whole numbers.")
        return tuple(number for number in numbers if number is not None)

    def words(self, key: str) -> Sequence[str] | None:
        """Words from a list or a comma- or space-separated text; None where missing.

        Raises:
            InputError: the value is neither.
        """
        value = self.arguments.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            return value.replace(",", " ").split()
        if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            return list(value)
        raise self.fail(f"{key} is {_shown(value)}; use a list of names.")


def _integer(value: Any) -> int | None:
    """``value`` as a whole number, None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _shown(value: Any) -> str:
    """A value as it is shown in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
