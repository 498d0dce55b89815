"""Which GPU of the catalog a log or trace comes from."""

from __future__ import annotations

from collections.abc import Mapping

from specs import catalog
from specs.errors import InputError
from specs.gpu import Gpu


def gpu_of(
    stated: str, printed: str, path_gpu: str, gpus: Mapping[str, Gpu] | None = None
) -> tuple[str, str]:
    """The GPU as stated, as the file prints it, or as its path names it, in this order.

    A variant is another product: an A100-PCIE taken for an A100 is a wrong measurement, so what
    the file prints and the catalog lacks is left empty, whatever the path says.

    Args:
        stated: name or alias by the user, or empty.
        printed: what the file prints of its device, or empty.
        path_gpu: name that the path holds, or empty.
        gpus: GPUs beside the catalog's, by name.

    Returns:
        Name of a known GPU or empty, and a note for the reader or empty.

    Raises:
        InputError: there is no GPU of the stated name.
    """
    if stated:
        return catalog.gpu(stated, gpus).name, ""
    if printed:
        try:
            return catalog.gpu(printed, gpus).name, ""
        except InputError as error:
            return "", f"gpu is left empty: {error} --set gpu=NAME states which it is."
    if path_gpu:
        return path_gpu, f"no GPU is named inside; {path_gpu} is read from the path"
    return "", ""
