"""Messages and progress bars, on a terminal and elsewhere."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abag.core.messages import (
    USUAL_WIDTH,
    Forecast,
    align,
    bar,
    counted,
    detail,
    duration_text,
    note,
    reporting,
    say,
    screen_width,
    size_text,
    wrap,
)

SCRIPT = """
import time
from abag.core.messages import bar, reporting, say
with reporting(bars=True):
    for k in bar(iterable=range(4), desc="training"):
        time.sleep(0.3)
        if k == 1:
            say("a message")
"""


def on_terminal(script, columns=80, code=0, stdout=None):
    """Return what a script writes to a terminal, as stderr only if `stdout` is another file."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=stdout or theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end was closed
                break
    os.close(ours)
    assert process.returncode == code, shown
    return shown.decode()


@pytest.mark.parametrize("columns", [80, 0])
def test_a_terminal_shows_a_bar_that_disappears(columns):
    shown = on_terminal(SCRIPT, columns)
    frames = [frame for frame in shown.replace("\n", "\r").split("\r") if frame.strip()]
    bars = [frame for frame in frames if frame.startswith("training")]
    assert "a message" in frames
    assert all(len(frame) <= 80 for frame in frames)
    shares = [int(frame.split("%")[0].split()[-1]) for frame in bars]
    assert shares == sorted(shares)
    assert shares[-1] > 50
    assert " left" in bars[-1]
    assert not shown.rstrip("\r").split("\r")[-1].strip()  # the bar is wiped out


INTERRUPTED = """
import os, signal
from tqdm.std import TqdmDefaultWriteLock
from abag.core.messages import bar, reporting, say

def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)

TqdmDefaultWriteLock.{moment} = interrupted
try:
    say("a message")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("moment", ["create_mp_lock", "acquire"])
def test_a_signal_in_the_first_message_stops_the_work(moment):
    command = [sys.executable, "-c", INTERRUPTED.format(moment=moment)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


AT_ONCE = {"line_interval_s": 0, "line_delay_s": 0}


def train(**lines):
    with reporting(bars=True), bar(total=10, desc="fold 1", unit="step", **lines) as drawn:
        for _ in range(10):
            drawn.update()


def test_elsewhere_progress_is_a_line_now_and_then(capsys):
    train()
    assert capsys.readouterr().err == ""
    train(**AT_ONCE)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("fold 1 100%, 00:00, 00:00 left")
    assert all("|" not in line for line in lines)


def test_bars_of_known_and_unknown_length_are_lines_without_a_terminal(capsys):
    with reporting(bars=True):
        with bar(desc="reading", unit=" rows", **AT_ONCE) as drawn:
            drawn.update(1500)
        with bar(total=3, desc="scoring", **AT_ONCE) as drawn:
            drawn.set_postfix_str("fast")
            drawn.update(3)
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("reading 1500 rows") for line in lines)
    assert any(line.startswith("scoring 100%") and line.endswith(", fast") for line in lines)


def left_at(share, seconds_of_steps, monkeypatch, **options):
    """Return the line of a bar after a share of its steps, by a clock that these steps move."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    lines = []
    with (
        reporting(bars=True),
        bar(total=len(seconds_of_steps), desc="fit", **AT_ONCE, **options) as drawn,
    ):
        for seconds in seconds_of_steps[: round(share * len(seconds_of_steps))]:
            now[0] += seconds
            drawn.update()
        lines.append(str(drawn))
    return lines[0]


def test_the_time_left_is_right_where_steps_are_unequal(monkeypatch):
    seconds = [0.2] * 9 + [7.2]  # 9 s per 10 steps: every tenth validates, or so
    for share in (0.1, 0.2, 0.5, 0.9):
        line = left_at(share, seconds * 40, monkeypatch)
        minutes, seconds_left = re.search(r", (\d+):(\d+) left", line).groups()
        left = 60 * int(minutes) + int(seconds_left)
        assert left == pytest.approx(sum(seconds) * 40 * (1 - share), abs=2)


def test_all_is_done_at_100_percent_only(monkeypatch):
    line = left_at(0.999, [1] * 1000, monkeypatch)
    assert line.startswith("fit 99%, 16:39, 00:01 left")
    assert left_at(1, [1] * 1000, monkeypatch).startswith("fit 100%, 16:40, 00:00 left")
    assert "? left" in left_at(0, [1] * 10, monkeypatch)


def test_a_forecast_is_the_time_left_and_its_share_that_of_the_time(monkeypatch):
    forecasts = [Forecast(150.0, 0.0)]
    line = left_at(0.5, [1] * 100, monkeypatch, forecast=lambda: forecasts[-1])
    assert "25%, 00:50, 02:30 left" in line
    forecasts.append(Forecast(100.0, 50.0))
    assert "50%, 00:50, 01:40 left" in left_at(
        0.5, [1] * 100, monkeypatch, forecast=lambda: forecasts[-1]
    )
    assert "0%, 00:50, ? left" in left_at(0.5, [1] * 100, monkeypatch, forecast=lambda: None)


def test_a_forecast_follows_from_the_share_of_this_session():
    assert Forecast.of(10.0, 0.0) is None
    assert Forecast.of(10.0, 0.5, before=0.5) is None
    assert Forecast.of(10.0, 0.5, before=0.25) == (20.0, 10.0)


@pytest.mark.parametrize("details", [True, False])
def test_details_are_left_out_on_request_but_neither_messages_nor_notes(details):
    said = []
    with reporting(said.append, details=details), reporting(bars=False):
        say("message")
        detail("detail")
        note("note")
    assert said == ["message", *["detail"] * details, "note: note"]


def test_a_number_and_its_noun_agree():
    assert [counted(n, "antibody") for n in (0, 1, 2000)] == [
        "0 antibodies",
        "1 antibody",
        "2,000 antibodies",
    ]
    assert counted(1, "unique antigen") == "1 unique antigen"


CELLS = st.text(alphabet="ab 0[,", max_size=12).map(str.strip)


@given(st.data(), st.integers(1, 90), st.integers(1, 5))
def test_a_table_is_no_wider_than_the_screen_and_shows_every_cell(data, width, n_columns):
    row = st.lists(CELLS, min_size=n_columns, max_size=n_columns)
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        lines = align(rows)
    words = [word for cells in rows for cell in cells for word in cell.split()]
    assert max(map(len, lines), default=0) <= max([width, *(2 + len(word) for word in words)])
    shown = "\n".join(lines).split()
    assert all(shown.count(word) >= words.count(word) for word in words)


def test_columns_that_do_not_fit_follow_below_behind_the_first_again(monkeypatch):
    rows = [["", "known", "new"], ["RMSE", "0.94", "0.99"]]
    monkeypatch.setenv("COLUMNS", "18")
    assert align(rows) == ["      known  new", "RMSE  0.94   0.99"]
    monkeypatch.setenv("COLUMNS", "12")
    assert align(rows) == ["      known", "RMSE  0.94", "", "      new", "RMSE  0.99"]
    monkeypatch.setenv("COLUMNS", "7")
    assert align(rows) == ["known", "RMSE", "  0.94", "", "new", "RMSE", "  0.99"]


@pytest.mark.parametrize("columns", ["", "0", "-3", "wide", "1" * 5000])
def test_without_a_terminal_and_a_width_a_screen_is_as_wide_as_usual(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", None)
    assert screen_width() == USUAL_WIDTH


WIDTH = """
from abag.core.messages import screen_width, wrap
print(screen_width(), wrap("a sentence that does not fit into a line: /a/path-that-stays-whole"))
print(wrap("embed      abag embed TABLE --store DIR"))
"""


def test_a_terminal_wraps_sentences_at_words_and_keeps_paths_and_commands_whole(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = on_terminal(WIDTH, columns=30).splitlines()
    sentence = ["30 a sentence that does not fit", "  into a line:", "  /a/path-that-stays-whole"]
    command = ["embed      abag embed TABLE --store DIR"]  # which can be copied
    assert lines == [*sentence, *command]


def test_messages_fit_into_the_terminal_while_stdout_is_redirected(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    script = "from abag.core.messages import say\nsay('a sentence that does not fit into a line')"
    lines = on_terminal(script, columns=30, stdout=subprocess.DEVNULL).splitlines()
    assert lines == ["a sentence that does not fit", "  into a line"]


@pytest.mark.parametrize(("size", "text"), [
    (0, "0.0 kB"), (512, "0.5 kB"), (99_949, "99.9 kB"), (100_000, "0.1 MB"), (2.5e9, "2.5 GB"),
])  # fmt: skip
def test_a_size_is_written_in_a_unit_that_shows_it(size, text):
    assert size_text(size) == text


DOCTOR = """
import sys
from abag.cli import main
sys.stdout = sys.stderr
main(["doctor", "--antibody-encoder", "composition", "--antigen-encoder", "composition"])
"""


def test_a_check_of_the_machine_fits_into_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = on_terminal(DOCTOR, columns=60).splitlines()
    assert any(line.startswith("PASS versions: ") for line in lines)
    assert max(len(line) for line in lines if "/" not in line) <= 60  # paths stay whole


SAID = """
from abag.cli import main
from abag.core.messages import say
say("a message that does not fit into a line of the terminal")
main(["predict", "--run", "x", "a.csv"])
"""


def test_a_terminal_wraps_messages_and_errors(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = on_terminal(SAID, columns=40, code=1).splitlines()
    assert lines[:2] == ["a message that does not fit into a line", "  of the terminal"]
    assert lines[2] == "Error: Give a TABLE and --out FILE, or"
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("columns", ["", "20"])
def test_a_file_gets_whole_sentences(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert wrap("word " * 40) == "word " * 40


def test_bars_are_watched_by_few_threads_however_many_there_are():
    before = threading.active_count()
    with reporting(bars=True):
        for _ in range(50):
            with bar(total=2) as drawn:
                drawn.update()
    assert threading.active_count() <= before + 2


def test_a_bar_of_nothing_is_drawn_as_done(capsys):
    with reporting(bars=True), bar(total=0, desc="rows", line_delay_s=0.0):
        pass
    assert "rows 100%, 00:00, 00:00 left" in capsys.readouterr().err


def test_durations_are_formatted_in_their_two_largest_units():
    durations = ["12 s", "10 min", "2 h 1 min", "100 h", "12 d"]
    assert [duration_text(s) for s in (12, 600, 7260, 360_600, 1_036_800)] == durations
    assert [duration_text(s) for s in (59.4, 59.6, 3599)] == ["59 s", "1 min", "1 h 0 min"]
