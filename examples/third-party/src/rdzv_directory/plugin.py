"""The entry point: how rdzv finds this backend."""

from pathlib import Path

from rdzv_core import (
    BackendPlugin,
    Option,
    RendezvousParameterError,
    RendezvousParameters,
    parse_options,
)

from .backend import DirectoryBackend

_OPTIONS = (
    Option(
        "prefix",
        "text",
        "rdzv",
        "What the names of every run begin with; runs with different ones "
        "never meet.",
    ),
)


def _create_backend(
    params: RendezvousParameters,
) -> tuple[DirectoryBackend, None]:
    options = parse_options(params.config, _OPTIONS)
    if not Path(params.endpoint).is_dir():
        # At once, as for every parameter: one that is unmounted later is
        # waited for, as a service that is away.
        raise RendezvousParameterError(
            f"The directory '{params.endpoint}' is not there: make or mount it."
        )
    # None: the rounds' stores are kept on the backend itself.
    return DirectoryBackend(
        params.endpoint, params.run_id, prefix=options["prefix"]
    ), None


BACKEND = BackendPlugin(
    summary="a directory of files, for processes that share it; no server",
    options=_OPTIONS,
    create_backend=_create_backend,
    backend_type=DirectoryBackend,
    example_endpoint="/var/lib/job",
    contract=1,
)
