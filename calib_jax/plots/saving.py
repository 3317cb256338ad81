"""Figures as files, and as SVG elements of a page with values under the pointer."""

import html
import io
import os
import re
from pathlib import Path

from calib_jax.core import checks, texts
from calib_jax.plots import style

# Time stamps would differ between runs; None omits them.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
# A page for dark screens replaces colors of the figures by these; all other colors stay.
DARK_COLORS = {
    "#ffffff": "#15181d",
    style.BLACK: "#e6e6e6",
    style.GREY: "#9aa0a8",
    "#e4e4e4": "#2d323a",
    style.BLUE: "#58aee8",
    style.VERMILLION: "#ff8a4c",
    style.GREEN: "#35c79c",
    style.WINE: "#d9669f",
    style.BROWN: "#c39a6b",
    "#fbe3d3": "#46291a",
    "#d6f0e7": "#143a2f",
    "#d9d9d9": "#3d434c",
    style.SKY: "#2b6f96",
}


def save(figure: style.Figure, path: str | os.PathLike[str], *, dpi: int = 200) -> None:
    """Save a figure as PNG, SVG or PDF, according to the ending of the path.

    Equal figures give equal files, without time stamps or random identifiers. The fonts of a PDF
    are embedded as TrueType, because some conferences reject matplotlib's default Type 3.

    Args:
      figure: figure to save; any figure is saved with this subpackage's settings.
      path: path that ends in .png, .svg or .pdf, in an existing folder.
      dpi: dots per inch of a PNG.
    """
    path = Path(path)
    checks.at_least("dpi", dpi, 1)
    ending = path.suffix.lower()
    if ending not in _METADATA:
        raise ValueError(
            f"save: {path.name!r} has the ending {ending!r}: end it in .png, .svg or .pdf."
        )
    with style.settings(**{"svg.hashsalt": "calib_jax", "pdf.fonttype": 42}):
        figure.savefig(path, format=ending[1:], dpi=dpi, metadata=_METADATA[ending])


def inline_svg(figure: style.Figure, name: str, *, description: str) -> str:
    """Return a figure as an `<svg>` element for an HTML page; equal figures give equal text.

    Text stays text. Every color is a CSS variable with the color as its default, `--c0072b2` for
    #0072b2, so that a page can replace it: see `DARK_COLORS`. Boxes of class `hover` cover bins
    and epochs, and their `<title>` holds the values.

    Args:
      figure: figure of this subpackage.
      name: unique on the page, of letters, digits, "_", "-" and "."; the prefix of identifiers.
      description: text for readers who cannot see the figure.

    >>> from calib_jax import plots
    >>> table = plots.Bins([0, 0.5], [0.5, 1], [2, 8], [0.4, 0.9], [0.5, 0.75])
    >>> figure = plots.reliability_diagram(table)
    >>> svg = plots.inline_svg(figure, "model", description="Reliability of the model.")
    >>> svg.startswith("<svg "), "<title>bin 0.500 to 1.000" in svg
    (True, True)
    """
    if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        raise ValueError(f"name must consist of letters, digits, '_', '-' and '.', got {name!r}.")
    buffer = io.StringIO()
    with style.settings(**{"svg.hashsalt": "calib_jax", "svg.fonttype": "none"}):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=metadata)
    _, _, body = buffer.getvalue().partition("<svg")
    _, _, body = body.partition(">")
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.S)
    body = body.replace("xlink:href=", "href=")
    # Only in tags: a name in the figure may contain text that looks like a color.
    body = re.sub(r"<[^>]*>", lambda tag: _with_variables(tag[0]), body)
    body = _with_prefixed_ids(body, name)  # afterwards, because a name may look like a color
    body = re.sub(r"(font: [^;\"']*px) '[^;\"]*", r"\1 'DejaVu Sans', Verdana, sans-serif", body)
    width, height = (72 * inches for inches in figure.get_size_inches())
    label = html.escape(texts.printable(description))
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
    boxes = "".join(_hover_box(figure, box) for box in vars(figure).get("hover_boxes", []))
    return head + re.sub(r"\s*\n\s*", "\n", body).strip().removesuffix("</svg>") + boxes + "</svg>"


def _with_prefixed_ids(body: str, name: str) -> str:
    """Drop unreferenced identifiers, and prefix the others with the figure's name."""
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", body))

    def identifier(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in used else ""

    def prefixed(tag: re.Match[str]) -> str:
        text = re.sub(r' id="([^"]*)"', identifier, tag[0])
        return re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", text)

    return re.sub(r"<[^>]*>", prefixed, body)


def _with_variables(tag: str) -> str:
    """Replace colors by CSS variables, which work in style attributes only."""
    tag = re.sub(r' (fill|stroke)="(#[0-9a-f]{6})"', r' style="\1: \2"', tag)
    return re.sub(r"#([0-9a-f]{6})\b", r"var(--c\1, #\1)", tag)


def _hover_box(figure: style.Figure, box: style.HoverBox) -> str:
    """Write an invisible rectangle with its text, in points from the upper left corner."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    to_figure = box.axes.transData + figure.transFigure.inverted()

    def within(low: float | None, high: float | None, limits: tuple[float, float]) -> list[float]:
        least, most = sorted(limits)
        low, high = least if low is None else low, most if high is None else high
        return [max(low, least), min(high, most)]

    left, right = within(box.left, box.right, box.axes.get_xlim())
    bottom, top = within(box.bottom, box.top, box.axes.get_ylim())
    corners = to_figure.transform([(left, bottom), (right, top)])
    (x0, x1), (y0, y1) = sorted(width * corners[:, 0]), sorted(height * (1 - corners[:, 1]))
    return (
        f'<rect class="hover" x="{x0:.1f}" y="{y0:.1f}" width="{x1 - x0:.1f}"'
        f' height="{y1 - y0:.1f}"><title>{html.escape(box.text)}</title></rect>\n'
    )
