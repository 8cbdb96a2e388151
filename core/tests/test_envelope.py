"""What an envelope tells of its value."""

from rdzv.envelope import Envelope


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
