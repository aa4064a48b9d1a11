"""Find out now what would fail later: runs every check of the machine, encoders and disks.

The checks try things out: a graph is compiled, a file is renamed, sequences are encoded twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from abag import AbagError
from abag.core.device import plan_device
from abag.embed.doctor.check import Check
from abag.embed.doctor.disk_checks import check_store, check_temporary_folder
from abag.embed.doctor.encoder_checks import (
    check_attention,
    check_parity,
    check_weights,
    find_local_checkpoint,
)
from abag.embed.doctor.machine_checks import (
    check_compiler,
    check_device,
    check_faesm,
    check_precision,
    check_versions,
)
from abag.embed.doctor.speed import check_speed
from abag.embed.sequences.chains import Kind


def examine(
    *,
    store: Path | None = None,
    antibody_encoder: str = "igt5",
    antigen_encoder: str = "esm2-650m",
    device: str = "auto",
    bench: bool = False,
) -> Iterator[Check]:
    """Check everything that embedding and fitting will need; yields each result as it is found.

    Nothing is downloaded: if weights are not on disk, their size is looked up on the hub.
    With `bench`, speeds are measured and kept in the cache folder.
    """
    names: dict[Kind, str] = {"antibody": antibody_encoder, "antigen": antigen_encoder}
    encoders = [(kind, name, find_local_checkpoint(name)) for kind, name in names.items()]
    yield check_versions()
    yield check_temporary_folder()
    if store is not None:
        yield from check_store(store)
    for encoder in encoders:
        yield check_weights(*encoder)
    try:
        plan = plan_device(device)
    except AbagError as error:
        yield Check("device", "FAIL", str(error))
        return
    yield check_device(plan, requested=device)
    yield check_precision(plan)
    for encoder in encoders:
        yield check_attention(plan, *encoder)
    yield check_faesm()
    yield check_compiler(plan)
    for encoder in encoders:
        yield check_parity(plan, *encoder)
    if bench:
        for encoder in encoders:
            yield check_speed(plan, *encoder)
