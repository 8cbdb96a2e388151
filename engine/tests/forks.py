"""What a fork of this process says."""

import os
from collections.abc import Callable
from typing import Any


def said_in_fork(call: Callable[[], Any]) -> str:
    """What a call returns, or its error says, that is made in a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, f"returned {call()}".encode())
        except BaseException as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as said:
        return said.read().decode()
