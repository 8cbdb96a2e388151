"""What tools of the system say, such as ``nvidia-smi``, which may hang so that not even SIGKILL ends them."""

import contextlib
import subprocess
from collections.abc import Sequence

from rdzv.programs import public_environment

from ..programs.guard import KILLED


def output_of(command: Sequence[str], timeout: float) -> str:
    """The output of a tool that knows nothing of rdzv.

    Args:
        command: The tool and its arguments.
        timeout: Seconds that it may take. (`subprocess.run` would then wait for its end, however long that takes.)

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It fails, or takes longer.
    """
    tool = subprocess.Popen(
        command, env=public_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        said, _ = tool.communicate(timeout=timeout)
    except BaseException:
        tool.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.wait(KILLED)
        raise
    finally:
        if tool.stdout is not None:
            tool.stdout.close()
    if tool.returncode:
        raise subprocess.CalledProcessError(tool.returncode, tool.args)
    return said
