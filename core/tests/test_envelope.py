"""What an envelope tells of its value."""

from rdzv_core.envelope import NONCE_HISTORY, Envelope


def chain(length: int) -> list[Envelope]:
    """Values that were written one after the other."""
    written = [Envelope.wrap(b"", writer="a")]
    while len(written) < length:
        written.append(Envelope.wrap(b"", writer="a", previous=written[-1]))
    return written


class TestNews:
    def test_what_was_written_later_is_news(self) -> None:
        before, previous = chain(2)
        assert previous.supersedes(before)

    def test_what_was_written_before_is_none(self) -> None:
        *before, last = chain(5)
        assert not any(old.supersedes(last) for old in [*before, last])

    def test_what_was_written_anew_supersedes_what_was_forgotten(self) -> None:
        assert chain(2)[-1].supersedes(chain(5)[-1])


class TestPast:
    def test_every_earlier_write_is_remembered_while_there_are_few(self) -> None:
        written = chain(NONCE_HISTORY + 1)
        for number, one in enumerate(written):
            assert one.recent_nonces == tuple(before.nonce for before in reversed(written[:number]))

    def test_of_many_writes_the_latest_and_the_first_are_remembered(self) -> None:
        first, *before, last = chain(NONCE_HISTORY + 5)
        latest = [one.nonce for one in reversed(before)][: NONCE_HISTORY - 1]
        assert last.recent_nonces == (*latest, first.nonce)
