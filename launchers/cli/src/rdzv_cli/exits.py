"""The exit codes, which scripts and schedulers rely on."""

from typing import Final

from .agent import Outcome

__all__ = ["EXIT_CODES"]

EXIT_CODES: Final = f"""\
exit codes:
  {Outcome.DONE.value}      done
  {Outcome.FAILED.value}      the command failed for good on this node
  {Outcome.UNUSABLE.value}      the command line cannot be used
  {Outcome.TIMED_OUT.value}      the rendezvous timed out
  {Outcome.CLOSED.value}      closed by another; the message says by whom and why
  {Outcome.SPARE.value}      the job is done and this node, a spare, was not needed
  {Outcome.UNREACHABLE.value}      the service could not be reached
  {Outcome.ERROR.value}      any other error
  128+N  ended by signal N
"""
