"""The demo on every service, and the picture of it."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rdzv_conformance.servers import SERVERS, LocalService, TcpStoreServer, require_service
from tools.terminal import PICTURE, draw, record

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, type[LocalService]] = {**SERVERS, "c10d": TcpStoreServer}
CHAPTER = re.compile(
    r"(?:Four agents start|node\d, which has|node\d arrives|They finish|Every agent ended|no step was).*"
)


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as dev.py does."""
    command = [sys.executable, "-m", "examples.demo", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def chapters(lines: list[str]) -> list[str]:
    """What happens, whichever node it happens to."""
    return [re.sub(r"node\d", "node", line) for line in lines if CHAPTER.fullmatch(line)]


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["sqlite", *SERVICES])
def test_it_is_played_on_each_service_and_its_picture_shows_it(backend: str) -> None:
    if backend in SERVICES:
        require_service(SERVICES[backend])
    done = demo("--backend", backend)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"backend {backend}, endpoint" in done.stdout
    drawn = re.sub("<style>.*?</style>|<title>.*?</title>", "", PICTURE.read_text(), flags=re.DOTALL)
    pictured = [html.unescape(re.sub("<[^>]+>", "", line)) for line in drawn.splitlines()]
    assert len(chapters(pictured)) == 6
    assert chapters(done.stdout.splitlines()) == chapters(pictured)


def test_a_service_that_is_not_known_is_asked_for() -> None:
    done = demo("--backend", "ours")
    assert done.returncode == 1
    assert done.stderr == "No service is known for the backend 'ours': name one with --endpoint.\n"


def test_the_picture_is_light() -> None:
    assert PICTURE.stat().st_size < 12_000


def test_a_picture_has_what_was_written_in_its_colours_and_at_its_time() -> None:
    program = "import sys, time; print('\\x1b[36ma < b\\x1b[0m | c', sys.stdout.isatty()); time.sleep(0.2); print('d')"
    first, second = record([sys.executable, "-c", program])
    assert first.text == "\x1b[36ma < b\x1b[0m | c True"
    assert second.text == "d"
    assert second.at > first.at
    drawn = draw("it", [first, second])
    assert '<tspan x="16" textLength="39" class="c36">a &lt; b</tspan><tspan x="55"' in drawn
    assert f"animation-delay:{second.at:.1f}s" in drawn


def test_a_program_that_fails_gives_no_picture() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        record([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    assert (failed.value.returncode, failed.value.output) == (3, "why")
