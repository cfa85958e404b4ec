"""The filter of the jobs table: words that a job must match, each in any column or in a named one.

``resnet`` matches a job with "resnet" in any column; ``policy:float16`` one whose policy contains
"float16"; ``state:running|slow`` is a regular expression, as every pattern is (one that is none is
taken literally). Several words must all match; ``-word`` must not.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from tui.job_columns import BY_KEY, COLUMNS
from tui.snapshot import JobView

_TITLES = {c.column.title: c.column.key for c in COLUMNS if c.column.title}


@dataclass(frozen=True)
class _Word:
    column: str | None
    pattern: re.Pattern[str]
    wanted: bool

    def matches(self, job: JobView) -> bool:
        columns = [BY_KEY[self.column]] if self.column else COLUMNS
        texts = [c.cell(job, False)[0] for c in columns]
        if self.column is None:
            texts += [job.meta.host if job.meta else "", job.place]
        return any(self.pattern.search(text) for text in texts) == self.wanted


def parse(text: str) -> Callable[[JobView], bool]:
    """The filter that ``text`` describes; an empty text matches every job."""
    words = [_word(word) for word in text.split()]
    return lambda job: all(word.matches(job) for word in words)


def _word(text: str) -> _Word:
    wanted = not text.startswith("-") or len(text) == 1
    body = text if wanted else text[1:]
    column, colon, pattern = body.partition(":")
    key = _TITLES.get(column, column if column in BY_KEY else None) if colon else None
    if key is None:
        pattern = body
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error:
        compiled = re.compile(re.escape(pattern), re.IGNORECASE)
    return _Word(key, compiled, wanted)
