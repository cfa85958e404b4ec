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
    Key(
        "question_mark",
        "app.help",
        "?",
        "keys",
        "Show all keys; any key but the arrows closes them.",
    ),
    Key("ctrl+p", "app.command_palette", "ctrl+p", "", "Find anything that can be done by name."),
    Key("v", "app.devices", "v", "devices", "GPUs and memory: who holds it, and what is left.", 5),
    Key("L", "app.lab", "L", "", "The lab: formats, a step, a scale and memory, to see and move."),
    Key("T", "app.next_theme", "T", "", "The next theme: dark, light, safe for colour-blind eyes."),
    Key("y", "app.copy", "y", "", "Copy what is shown as text; the terminal must allow it."),
    Key("w", "app.picture", "w", "", "Write what is shown to an SVG file in the current folder."),
    Key("ctrl+z", "app.suspend", "ctrl+z", "", "To the shell and, by fg there, back."),
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
    Key("", "", "⏎", "job", "All charts of the job, with zoom and cursor (or a double click).", 1),
    Key("space", "mark", "space", "", "Mark the job for a comparison, or take the mark off."),
    Key("c", "compare", "c", "compare", "The marked jobs, or the job and its float32 twin.", 4),
    Key("n", "numerics", "n", "numerics", "What each layer loses to underflow, over time.", 5),
    Key("R", "replay", "R", "replay", "Replay the job from its journal, with a time cursor.", 5),
    Key("i", "what_if", "i", "", "What another loss scale setting would have done."),
    Key("K", "app.stop", "K", "", "Stop the job: interrupt or terminate it; asks before."),
    Key("e", "export", "e", "", "Write the table to a CSV file in the current folder."),
    Key("a", "acknowledge", "a", "", "You have seen this job's NaN: stop saying there was one."),
    Key("d", "details", "d", "details", "Hide or show the charts and events of the job.", 5),
)

JOB: tuple[Key, ...] = (
    Key(
        "escape,backspace", "back", "esc", "jobs", "Back: from one chart to all, then to the jobs."
    ),
    Key("tab", "alone", "tab", "one chart", "One chart alone, the next one, and all again.", 2),
    Key("left", "cursor(-0.01)", "← →", "read", "Move the cursor; titles say the values there.", 1),
    Key("right", "cursor(0.01)", "", "", ""),
    Key("shift+left", "cursor(-0.1)", "⇧← ⇧→", "", "Move the cursor in larger steps."),
    Key("shift+right", "cursor(0.1)", "", "", ""),
    Key("plus,equals_sign", "zoom(0.5)", "+", "zoom", "Show half as much, around the cursor.", 1),
    Key("minus", "zoom(2.0)", "-", "", "Show twice as much; the wheel does both."),
    Key("comma", "pan(-0.25)", ", .", "", "Move what is shown back and on."),
    Key("full_stop", "pan(0.25)", "", "", ""),
    Key("0", "everything", "0", "all", "Show everything, and no cursor.", 3),
    Key("l", "log", "l", "log", "Value axis: as the values suggest, logarithmic, linear.", 4),
    Key("x", "by", "x", "time", "Along the base line: time instead of steps, or back.", 4),
    Key("m", "trend", "m", "", "Draw the trend over noisy lines, or the lines alone."),
    Key("n", "numerics", "n", "numerics", "What each layer loses to underflow, over time.", 4),
    Key("R", "replay", "R", "replay", "Replay the job from its journal, with a time cursor.", 5),
    Key("i", "what_if", "i", "", "What another loss scale setting would have done."),
    Key("K", "app.stop", "K", "", "Stop the job: interrupt or terminate it; asks before."),
    Key("up,k", "other(-1)", "↑↓", "", "The job above or below in the table."),
    Key("down,j", "other(1)", "", "", ""),
    Key("e", "export", "e", "", "Write the job's points to a CSV file in the current folder."),
    Key("a", "acknowledge", "a", "", "You have seen this job's NaN: stop saying there was one."),
)

COMPARE = (
    Key("escape,backspace", "back", "esc", "jobs", "Back to the jobs."),
    Key("left", "cursor(-0.01)", "← →", "read", "Move the cursor; titles say the values there.", 1),
    Key("right", "cursor(0.01)", "", "", ""),
    Key("shift+left", "cursor(-0.1)", "⇧← ⇧→", "", "Move the cursor in larger steps."),
    Key("shift+right", "cursor(0.1)", "", "", ""),
    Key("plus,equals_sign", "zoom(0.5)", "+", "zoom", "Show half as much, around the cursor.", 1),
    Key("minus", "zoom(2.0)", "-", "", "Show twice as much; the wheel does both."),
    Key("comma", "pan(-0.25)", ", .", "", "Move what is shown back and on."),
    Key("full_stop", "pan(0.25)", "", "", ""),
    Key("0", "everything", "0", "all", "Show everything, and no cursor.", 2),
    Key("l", "log", "l", "log", "Value axis: as the values suggest, logarithmic, linear.", 3),
    Key("m", "trend", "m", "trend", "Draw the trend over noisy lines, or the lines alone.", 4),
    Key("e", "export", "e", "", "Write the jobs' losses by step to a CSV file."),
)

DEVICES = (
    Key("", "", "↑↓", "select", "Select a job (also k j, Page up and down, Home, End, mouse)."),
    Key("", "", "⏎", "job", "All charts of the job."),
    Key("escape,backspace", "back", "esc", "jobs", "Back to the jobs."),
)

NUMERICS = (
    Key("", "", "↑↓", "layer", "Select a layer (also k j, Page up and down, Home, End, mouse)."),
    Key("left", "scale(-1)", "← →", "scale", "Half the loss scale, or twice: what would be lost?"),
    Key("right", "scale(1)", "", "", ""),
    Key("0", "own_scale", "0", "own scale", "The scale that the job itself used.", 3),
    Key("tab", "kind", "tab", "kind", "Gradients, weight gradients, activations.", 1),
    Key("f", "format", "f", "format", "As float16, bfloat16, float8_e5m2 or float8_e4m3.", 2),
    Key("m", "what", "m", "room", "The strips: share lost, or doublings left to overflow.", 2),
    Key("s", "worst", "s", "worst", "The worst first, or in the order of the forward pass.", 3),
    Key("e", "export", "e", "", "Write what is shown to a CSV file in the current folder."),
    Key("escape,backspace", "back", "esc", "back", "Back."),
)

REPLAY: tuple[Key, ...] = (
    Key(
        "escape,backspace", "back", "esc", "back", "Back: from one chart to all, then to the jobs."
    ),
    Key("space", "play", "space", "play", "Play on, or stand still."),
    Key("left", "move(-0.01)", "← →", "time", "A hundredth of the run back, or on.", 1),
    Key("right", "move(0.01)", "", "", ""),
    Key("shift+left", "move(-0.1)", "⇧← ⇧→", "", "A tenth of the run back, or on."),
    Key("shift+right", "move(0.1)", "", "", ""),
    Key("left_square_bracket", "event(-1)", "[ ]", "event", "The skipped step or alert before.", 1),
    Key("right_square_bracket", "event(1)", "", "", ""),
    Key("less_than_sign", "faster(-1)", "< >", "speed", "Play slower, or faster.", 2),
    Key("greater_than_sign", "faster(1)", "", "", ""),
    Key("home", "end(-1)", "home", "", "To the beginning; the end key goes to the end."),
    Key("end", "end(1)", "", "", ""),
    Key("i", "what_if", "i", "what if", "What another loss scale setting would have done.", 2),
    Key("n", "numerics", "n", "", "What each layer loses to underflow, over time."),
    Key("tab", "alone", "tab", "one chart", "One chart alone, the next one, and all again.", 4),
    Key("plus,equals_sign", "zoom(0.5)", "+", "zoom", "Show half as much, around the middle.", 4),
    Key("minus", "zoom(2.0)", "-", "", "Show twice as much; the wheel does both."),
    Key("comma", "pan(-0.25)", ", .", "", "Move what is shown back and on."),
    Key("full_stop", "pan(0.25)", "", "", ""),
    Key("0", "everything", "0", "", "Show everything."),
    Key("l", "log", "l", "log", "Value axis: as the values suggest, logarithmic, linear.", 5),
    Key("x", "by", "x", "", "Along the base line: time instead of steps, or back."),
    Key("m", "trend", "m", "", "Draw the trend over noisy lines, or the lines alone."),
)

WHAT_IF = (
    Key("escape,backspace", "back", "esc", "back", "Back."),
    Key("up,k", "field(-1)", "↑↓", "field", "Select a field of the setting."),
    Key("down,j", "field(1)", "", "", ""),
    Key("left,h", "change(-1)", "← →", "change", "Half of it, or twice; on or off."),
    Key("right,l", "change(1)", "", "", ""),
    Key("tab,p", "preset(1)", "tab", "preset", "The next preset: keras, torch, apex, megatron …"),
    Key("shift+tab,P", "preset(-1)", "⇧tab", "", "The preset before."),
    Key("0", "own", "0", "its own", "The run's own setting again.", 1),
)
