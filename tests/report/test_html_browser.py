"""The page in a real browser: no error, figures in view at three widths, tables that sort, dark."""

import html
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from calib_jax.report import html_page, pictures, render

from .fabricated import scored

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium: apt-get install chromium"),
]
# Appended to the page: what a reader does, and what the browser then shows.
PROBE = """
<script>
window.addEventListener("load", () => {
  const figures = Array.from(document.querySelectorAll("figure svg"), (svg) => {
    const box = svg.getBoundingClientRect(), outer = svg.parentNode.getBoundingClientRect();
    return [box.width, box.height, outer.width].map(Math.round).join(" ");
  });
  const heading = document.querySelectorAll("#section-2 th button")[1];
  const order = () => Array.from(
    document.querySelectorAll("#section-2 tbody tr"), (row) => row.cells[1].textContent).join(" ");
  heading.click();
  const ascending = order();
  heading.click();
  const box = document.querySelector(".hover"), where = box.getBoundingClientRect();
  box.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: where.x + 2,
    clientY: where.y + 2}));
  const values = document.getElementById("values");
  const result = [figures.join(","), ascending, order(), values.hidden + ":" + values.textContent,
    document.documentElement.scrollWidth - document.documentElement.clientWidth,
    getComputedStyle(document.body).backgroundColor];
  document.title = "RESULT" + JSON.stringify(result);
  parent.postMessage(document.title, "*");
});
</script>
"""
# The window of a headless browser is at least 500 pixels wide, so the page stands in a frame.
FRAME = """<!DOCTYPE html><body style="margin:0"><pre></pre>
<iframe src="page.html" style="border:0;width:{}px;height:2400px"></iframe>
<script>addEventListener("message", (event) => {{
document.querySelector("pre").textContent = event.data; }});</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    report = scored()
    page = html_page.render(render.as_page(report, pictures(report)))
    (folder / "page.html").write_text(page.replace("</body>", PROBE + "</body>"))
    (folder / "plain.html").write_text(page)
    return folder


def browse(folder, file, *options):
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder}/profile", "--enable-logging=stderr", *options]
    done = subprocess.run([*command, f"file://{folder}/{file}"], capture_output=True, timeout=120)
    messages = done.stderr.decode(errors="replace")
    assert "CONSOLE" not in messages, messages
    return done.stdout.decode()


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_figures_tables_and_values(folder, width):
    (folder / "frame.html").write_text(FRAME.format(width))
    size = f"--window-size={max(width, 500)},2600"
    shown = browse(folder, "frame.html", "--dump-dom", "--virtual-time-budget=5000", size)
    (result,) = re.findall(r"RESULT(\[.*?\])</pre>", html.unescape(shown))
    figures, ascending, descending, values, overflow, _ = json.loads(result)
    assert ascending == "80 80 900 900 1,000 1,000"  # as numbers, not as text
    assert descending == "1,000 1,000 900 900 80 80"
    assert values.startswith("false:bin 0.200 to 0.400")
    assert "n = 4" in values
    assert overflow == 0  # figures and tables scroll, the page does not
    sizes = [tuple(map(int, figure.split())) for figure in figures.split(",")]
    assert len(sizes) == 3
    for wide, high, outer in sizes:
        assert wide >= 0.8 * 432  # letters stay readable; a narrow screen scrolls
        assert high > 100
        assert 300 < outer <= width


@pytest.mark.parametrize("dark", [False, True])
def test_colors_follow_the_screen(folder, dark):
    target = folder / "shot.png"
    theme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    browse(folder, "plain.html", f"--screenshot={target}", "--window-size=820,2600", *theme)
    pixels = np.asarray(Image.open(io.BytesIO(target.read_bytes())).convert("L"), float)
    # The figures are as dark or bright as the page around them.
    assert (np.median(pixels) < 60) == dark
    assert (np.median(pixels[1500:2300]) < 60) == dark
    assert pixels.std() > 10
