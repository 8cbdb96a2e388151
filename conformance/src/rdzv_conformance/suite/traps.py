"""Where to look when a test fails: the headings of the page "Writing a backend" that say what is usually behind it."""

from typing import Final

LOOK_AT: Final[dict[str, tuple[str, ...]]] = {
    "capabilities": ("What it declares",),
    "register": ("A register backend", "Tokens"),
    "fencing": ("Writing", "Tokens"),
    "deleting": ("Writing", "Tokens"),
    "creating": ("Writing", "Large values"),
    "keys": ("Names", "Large values", "Stale reads"),
    "order": ("Creation order",),
    "waiting": ("A wait that misses a change", "Waits that hold up others"),
    "leases": ("Leases",),
    "store": ("Writing", "Names"),
    "concurrency": ("Writing", "Reading", "Stale reads"),
    "fork": ("Fork",),
    "lifecycle": ("Close",),
    "entry": ("The entry point",),
    "handler": ("Writing", "Stale reads", "A wait that misses a change", "Leases"),
    "admission": ("Writing", "Stale reads", "A wait that misses a change"),
    "fitness": ("Writing", "Stale reads", "A wait that misses a change"),
    "addresses": ("A key-value backend",),
    "endings": ("Close", "Timeouts"),
    "outages": ("Timeouts", "Writing", "Errors that are two things"),
    "security": ("Where every call happens",),
    "cluster": ("Stale reads", "Timeouts"),
    "network": ("Errors that are two things", "Timeouts", "What a service sends"),
    # Where a test is about something else than the rest of its topic.
    "test_construction_is_cheap": ("What it declares",),
    "test_closed_client_refuses": ("Where every call happens",),
    "test_put_of_unknown_outcome_goes_to_no_other_endpoint": ("Writing",),
    "test_put_whose_reply_is_lost_is_unknown": ("Writing", "Errors that are two things"),
    "test_run_id_may_be_any_text": ("Names",),
    "test_runs_do_not_see_each_other": ("Names",),
    "test_too_large_a_value_is_refused_before_it_is_sent": ("Large values",),
    "test_one_client_serves_many_threads": ("Waits that hold up others",),
    "test_list_of_endpoints_is_refused": ("What it declares",),
    "test_lease_belongs_to_no_process": ("Fork", "Leases"),
    "test_lease_is_true_to_its_word_after_a_restart": ("Leases",),
    "test_owner_that_is_cut_off_loses_its_lease": ("Leases",),
    "test_reader_cannot_write": ("Where every call happens",),
}
"""By topic; by the name of a test where it is about something else than its topic."""
