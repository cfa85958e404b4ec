import threading

from helpers.dashboard import RECORDED, row_of

from tui.app import MonitorApp
from tui.feed import Feed
from tui.messages import Looked
from tui.reader import Reader
from tui.snapshot import Snapshot


def test_the_feed_only_posts_and_ends_when_told():
    posted, here = [], threading.Event()

    def post(snapshot):
        posted.append((threading.current_thread().name, snapshot))
        here.set()

    feed = Feed(Reader([str(RECORDED)]), post, fps=50)
    feed.start()
    assert here.wait(5)
    feed.stop()
    count = len(posted)
    assert posted[0][0] == "keras-mp feed"
    assert isinstance(posted[0][1], Snapshot)
    assert not any(t.name == "keras-mp feed" for t in threading.enumerate())
    assert len(posted) == count


class FakeReader:
    """Counts its looks; the first waits until it may."""

    behind = False

    def __init__(self):
        self.looks, self.may_look = 0, threading.Event()

    def look(self, seconds=0.2):
        self.looks += 1
        self.may_look.wait(60)
        return Snapshot(time=float(self.looks))

    def close(self):
        pass


def test_the_history_waits_for_the_first_frame(monkeypatch):
    monkeypatch.setattr("tui.feed.FIRST_FRAME", 60.0)
    monkeypatch.setattr("tui.feed.FIRST_WAIT", 60.0)
    reader, posted, here = FakeReader(), [], threading.Event()
    reader.may_look.set()
    feed = Feed(reader, lambda snapshot: (posted.append(snapshot), here.set()), fps=50)
    feed.start()
    assert feed.first().time == 1.0 and reader.looks == 1 and not posted
    feed.go_on()
    assert here.wait(60) and posted[0].time == 2.0
    feed.stop()


def test_a_disk_that_hangs_does_not_hold_up_the_first_frame(monkeypatch):
    monkeypatch.setattr("tui.feed.FIRST_FRAME", 0.0)
    monkeypatch.setattr("tui.feed.FIRST_WAIT", 0.01)
    reader, here = FakeReader(), threading.Event()
    feed = Feed(reader, lambda snapshot: here.set(), fps=50)
    feed.start()
    assert feed.first() is None
    reader.may_look.set()
    assert here.wait(60), "it answers after all"
    feed.stop()


def test_a_feed_that_never_started_can_be_stopped():
    Feed(Reader([]), print, fps=1).stop()


def test_only_the_newest_snapshot_waits():
    old, new = Looked(Snapshot(time=1.0)), Looked(Snapshot(time=2.0))
    assert old.can_replace(new)


async def test_the_first_frame_has_the_jobs_in_it(runs, monkeypatch):
    monkeypatch.setattr("tui.feed.FIRST_WAIT", 60.0)
    monkeypatch.setattr(MonitorApp, "on_looked", lambda self, message: None)  # nothing comes later
    app = MonitorApp([str(runs.add("float32").path)], fps=50)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert " done " in row_of(app, "float32")


async def test_the_app_follows_its_feed(runs):
    app = MonitorApp([str(runs.path)], fps=50)
    async with app.run_test(size=(100, 30)) as pilot:
        runs.add("float32")
        for _ in range(200):
            await pilot.pause(0.02)
            if app.snapshot and app.snapshot.jobs:
                break
        await pilot.pause()
        assert " done " in row_of(app, "float32")
    assert not any(t.name == "keras-mp feed" for t in threading.enumerate())
