"""The contents of an HTML page as Markdown, and as text for a terminal."""

from collections.abc import Iterable

from calib_jax.core.files import escaping
from calib_jax.report import html_page, tables


def as_text(head: str, sections: Iterable[tuple[str, tables.Table]], notes: Iterable[str]) -> str:
    """Format titled tables between a head and notes for a terminal."""
    line = escaping.one_line
    shown = [f"{line(title)}\n{tables.aligned(table)}" for title, table in sections]
    return "\n\n".join([line(head), *shown, *map(line, notes)])


def as_markdown(page: html_page.Page) -> str:
    """Format a page as Markdown, with links to its figures."""
    escaped = escaping.in_markdown
    parts = [f"# {escaped(page.title)}", escaped(page.head)]
    for title, table in page.sections:
        parts += [f"## {escaped(title)}", tables.in_markdown(table)]
    parts += map(escaped, page.notes)
    parts += [f"![{name}]({name}.png)" for name in page.figures]
    return "\n\n".join(parts) + "\n"
