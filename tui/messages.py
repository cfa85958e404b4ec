"""What travels between the feed, the app and the widgets."""

from textual.message import Message

from tui.snapshot import Snapshot


class Looked(Message):
    """The reader has looked at the journals. Only the newest such message matters."""

    def __init__(self, snapshot: Snapshot):
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, Looked)
