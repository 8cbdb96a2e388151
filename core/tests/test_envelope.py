"""What an envelope tells of its value."""

from rdzv.engine.envelope import REMEMBERED, Envelope


def chain(length: int) -> list[Envelope]:
    """Values that were written one after the other."""
    written = [Envelope.seal(b"", writer="a")]
    while len(written) < length:
        written.append(Envelope.seal(b"", writer="a", after=written[-1]))
    return written


class TestNews:
    def test_what_was_written_later_is_news(self) -> None:
        before, after = chain(2)
        assert after.is_news_to(before)

    def test_what_was_written_before_is_none(self) -> None:
        *before, last = chain(5)
        assert not any(old.is_news_to(last) for old in [*before, last])

    def test_what_was_written_anew_is_news_to_whoever_knows_what_was_forgotten(self) -> None:
        assert chain(2)[-1].is_news_to(chain(5)[-1])


class TestPast:
    def test_every_earlier_write_is_remembered_while_there_are_few(self) -> None:
        written = chain(REMEMBERED + 1)
        for number, one in enumerate(written):
            assert one.past == tuple(before.nonce for before in reversed(written[:number]))

    def test_of_many_writes_the_latest_and_the_first_are_remembered(self) -> None:
        first, *before, last = chain(REMEMBERED + 5)
        latest = [one.nonce for one in reversed(before)][: REMEMBERED - 1]
        assert last.past == (*latest, first.nonce)
