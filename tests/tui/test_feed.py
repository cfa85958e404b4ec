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


def test_a_feed_that_never_started_can_be_stopped():
    Feed(Reader([]), print, fps=1).stop()


def test_only_the_newest_snapshot_waits():
    old, new = Looked(Snapshot(time=1.0)), Looked(Snapshot(time=2.0))
    assert old.can_replace(new)


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
