"""The exit codes, which scripts and schedulers rely on."""

from typing import Final

from .agent import ExitStatus

EXIT_CODES: Final = f"""\
exit codes:
  {ExitStatus.DONE.value}      done
  {ExitStatus.FAILED.value}      the command failed for good on this node
  {ExitStatus.UNUSABLE.value}      the command line cannot be used
  {ExitStatus.TIMED_OUT.value}      the rendezvous timed out
  {ExitStatus.CLOSED.value}      closed by another; the message says by whom and why
  {ExitStatus.SPARE.value}      the job is done, and this node was not needed: a spare, or one that came later
  {ExitStatus.UNREACHABLE.value}      the service could not be reached
  {ExitStatus.ERROR.value}      any other error
  {ExitStatus.DRAINED.value}      drained: this node has left as it was asked to; the others go on
  {ExitStatus.UNFIT.value}      this node is not fit: a check has failed; the message says which
  {ExitStatus.GAVE_UP.value}     given up: several consecutive rounds without progress; to start again is of no use
  {ExitStatus.UNKNOWN.value}     rdzv status: nothing is known of this run: no node has come yet, or its id is another
  128+N  ended by signal N
"""
