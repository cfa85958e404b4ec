"""Every key of the dashboard, once: the bindings, the footer and the help are made from this."""

from dataclasses import dataclass

from textual.binding import Binding

from tui.widgets.key_bar import Hint


@dataclass(frozen=True)
class Key:
    """A key.

    Attributes:
        keys: As Textual names them, separated by commas. action: What it does; "" where the
            focused widget binds it itself.
        shown: As the user reads it. word: For the footer; "" keeps it out of there.
        text: A sentence for the help.
        rank: The higher, the earlier it leaves a narrow footer.
    """

    keys: str
    action: str
    shown: str
    word: str
    text: str
    rank: int = 0


def bindings(keys: tuple[Key, ...]) -> list[Binding]:
    return [Binding(k.keys, k.action, k.word or k.text, show=False) for k in keys if k.action]


def hints(keys: tuple[Key, ...]) -> list[Hint]:
    return [Hint(k.shown, k.word, k.action, k.rank) for k in keys if k.word]


EVERYWHERE = (
    Key("question_mark", "app.help", "?", "keys", "Show all keys; any key closes it."),
    Key("ctrl+p", "app.command_palette", "ctrl+p", "", "Find anything that can be done by name."),
    Key("T", "app.next_theme", "T", "", "The next theme: dark, light, safe for colour-blind eyes."),
    Key("q,ctrl+c", "app.quit", "q", "quit", "Leave. The jobs go on."),
)

JOBS = (
    Key("", "", "↑↓", "select", "Select a job (also k j, Page up and down, Home, End, mouse).", 1),
    Key("slash", "filter", "/", "filter", "Show the jobs that match: words, or column:pattern.", 2),
    Key("s", "sort(1)", "s", "sort", "Sort by the next column; a click on a title does it too.", 3),
    Key("S", "sort(-1)", "S", "", "Sort by the column before."),
    Key("r", "reverse", "r", "", "Turn the order round."),
    Key("t", "trouble", "t", "", "Back to the first order: who needs you comes first."),
    Key("p", "pin", "p", "pin", "Pin the job above all others, or let it go.", 4),
    Key("h", "hide", "h", "hide ended", "Leave out the jobs that are over, or show them again.", 6),
    Key("o", "group", "o", "", "Keep the jobs of a folder or host together."),
    Key(
        "a", "acknowledge", "a", "", "You have seen this job's NaN: stop saying that there was one."
    ),
    Key("d", "details", "d", "details", "Hide or show the charts and events of the job.", 5),
)
