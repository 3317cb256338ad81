"""The contents of an HTML page as Markdown, as text for a terminal, and as files."""

import pathlib
from collections.abc import Iterable, Mapping

from calib_jax.core import texts
from calib_jax.report import html_page, render


def as_text(head: str, sections: Iterable[tuple[str, render.Table]], notes: Iterable[str]) -> str:
    """Format titled tables between a head and notes for a terminal."""
    line = texts.one_line
    shown = [f"{line(title)}\n{render.aligned(table)}" for title, table in sections]
    return "\n\n".join([line(head), *shown, *map(line, notes)])


def as_markdown(page: html_page.Page, pictures: str = "") -> str:
    """Format a page as Markdown, with links to its figures and to the Markdown of other pages.

    Args:
      page: the contents.
      pictures: the folder of the figures, which ends in a slash.
    """
    escaped = texts.in_markdown
    parts = [f"# {escaped(page.title)}", *map(escaped, page.head.split("\n\n"))]
    for title, table in page.sections:
        parts += [f"## {escaped(title)}", render.in_markdown(table)]
    parts += map(escaped, page.notes)
    parts += [f"![{name}]({pictures}{name}.png)" for name in page.figures]
    links = [
        f"[{escaped(title)}]({target.removesuffix('.html')}.md)"
        for title, target in page.links.items()
    ]
    if links:
        parts.append(f"More pages: {', '.join(links)}.")
    for title, text in page.texts.items():
        parts += [f"## {escaped(title)}", f"```\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def save(
    folder: pathlib.Path,
    name: str,
    page: html_page.Page,
    others: Mapping[str, str] | None = None,
    pictures: str = "",
) -> list[str]:
    """Write a page as Markdown and HTML, and its figures; return the file names.

    Args:
      folder: the folder of the files.
      name: the name of the page, without an ending.
      page: the contents.
      others: texts of more files, by their names.
      pictures: the folder of the figures inside `folder`, which ends in a slash.
    """
    texts = {f"{name}.md": as_markdown(page, pictures), f"{name}.html": html_page.render(page)}
    figures = {f"{pictures}{each}": figure for each, figure in page.figures.items()}
    return render.write(folder, texts | dict(others or {}), figures)
