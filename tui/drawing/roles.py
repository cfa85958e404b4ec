"""What a piece of text is; widgets turn it into a style. Colour means something or is absent."""

from typing import Literal, get_args

Role = Literal[
    "text",  # ordinary
    "strong",  # what the eye should find: a title, the selected name
    "muted",  # labels, units, what is over
    "faint",  # axes
    "bad",  # needs a person now
    "warn",  # worth a look
    "good",  # said to be well
    "key",  # a key that can be pressed
    "line",  # first line of a chart
    "line2",
    "line3",
    "line4",
    "tick",  # a skipped step under the scale
    "cursor",  # the selected row of a table
    "cursor_line",  # the position in a chart that is read
]
ROLES: tuple[Role, ...] = get_args(Role)

Piece = tuple[str, Role]
Row = list[Piece]
