"""Standard streams that are closed, as a daemon's may be: the next file that is opened would get the number of one."""

import os


def fill() -> None:
    """Have each that is closed be the null device, here and for what is started: nothing else takes its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is given first.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
