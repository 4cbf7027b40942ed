"""The report on a run is complete, fits wide and narrow screens, and is self-contained."""

import html
import itertools
import json
import re
import shutil
import subprocess
import types
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import ImageFont

import tallmc
from problems import labelled, linear, logistic
from tallmc._store import Folder, StoreError
from tallmc.report import plots, write_report
from tallmc.report.page import _noise
from tallmc.report.plots import HEIGHT, WIDTH, Chart, density, marginals, nice_ticks, tick_texts
from tallmc.subsample import Preferential, TargetNoise

LONG = "a_parameter_with_a_name_that_does_not_end_" * 4
NAMES = ["intercept", "age", LONG, "dose <mg>"]


@pytest.fixture(scope="module")
def posterior():
    return labelled(logistic(n_rows=300, dim=4), {"beta": NAMES})


@pytest.fixture(scope="module")
def store(tmp_path_factory, posterior):
    """A run with weights, a varying size, recorded noise, a failed chain and warnings."""
    path = tmp_path_factory.mktemp("report") / "run"
    method = tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(),
        subsample=Preferential("residual"),
        batch_size=TargetNoise(8, 0.5),
        step_size=0.01,
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    start = np.broadcast_to(np.asarray(anchor.position), (4, 4)).copy()
    start[2] = 1e11
    folder = Folder(path, about={"table": "patients.csv"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tallmc.sample(
            posterior,
            method,
            chains=4,
            n_draws=900,
            burn_in=20,
            start=start,
            anchor=anchor,
            store=folder,
        )
    return path


@pytest.fixture(scope="module")
def page(store, posterior, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report(store, out, posterior=posterior)
    return out


def test_everything_that_is_asked_for_is_on_the_page(page):
    text = page.read_text()
    for title in ("Posterior", "Traces", "Marginals", "Pairs", "Time", "What was run"):
        assert f"<h2>{title}</h2>" in text
    for title in (
        "Subsample size",
        "Gradient noise",
        "Kernel Stein discrepancy",
        "Share of draws, most drawn rows first",
    ):
        assert f"<figcaption>{title}</figcaption>" in text
    for name in NAMES:
        assert html.escape(name) in text
    assert "Read this before you use the draws." in text
    assert "1 of 4 chains ran away" in text and "Make the step size smaller" in text
    for words in (
        "R-hat",
        "ESS",
        "preparation",
        "compilation",
        "sampling",
        "300 rows",
        "patients.csv",
        "ControlVariate",
        "diverged",
    ):
        assert words in text
    hover = json.loads(re.search(r'id="hover">(.*?)</script>', text).group(1))
    assert list(hover) == [f"trace-{parameter}" for parameter in range(4)]
    assert len(hover["trace-0"]["y"]) == 4
    margins = re.findall(r'data-chart="trace-\d" data-left="(\d+)".*?<line [^>]*y1="10"', text)
    assert len(margins) == 4  # where the script puts its cursor depends on them


def test_the_table_has_the_numbers_of_the_draws(page, store):
    draws = tallmc.load(store)
    rows = re.findall(r"<tr><td[^>]*>[^<]*</td>(.*?)</tr>", page.read_text())
    found = np.array(
        [
            [float(cell.replace(",", "")) for cell in re.findall(r">([^<>]+)</td>", row)]
            for row in rows
        ]
    )
    summary = draws.summary()
    for column, name in enumerate(["mean", "sd", "q05", "median", "q95"]):
        assert (abs(found[:, column] - summary[name]) <= 0.0051 * summary["sd"]).all()
    decimals = {
        len(cell.partition(".")[2]) for cell in re.findall(r">(-?[\d.]+)</td>", rows[0])[:5]
    }
    assert len(decimals) == 1
    np.testing.assert_allclose(found[:, 5], summary["ess_bulk"], atol=0.51)
    np.testing.assert_allclose(found[:, 6], summary["rhat"], atol=6e-4)


def test_parameters_are_chosen_by_name(store, tmp_path):
    write_report(store, tmp_path / "page.html", parameters=["beta[dose <mg>]", "age"])
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r'data-chart="([^"]*)"', text) == ["trace-3", "trace-1"]
    assert text.count(" against ") > 0
    assert "Not computed: it needs the data" in text  # no posterior was passed
    with pytest.raises(
        tallmc.InvalidInput, match=r"--parameter must be one of beta.intercept., beta.age."
    ):
        write_report(store, tmp_path / "page.html", parameters=["weight"])


def test_another_posterior_and_a_place_that_cannot_be_written_are_refused(store, tmp_path):
    with pytest.raises(StoreError, match="with the posterior it was started with"):
        write_report(store, tmp_path / "page.html", posterior=linear())
    with pytest.raises(tallmc.InvalidInput, match="be a file that can be written"):
        write_report(store, tmp_path / "no" / "page.html")


@pytest.mark.slow
def test_the_noise_of_langevin_dynamics_is_computed_and_its_inflation_predicted(tmp_path):
    posterior = linear(n_rows=50)
    draws = tallmc.sample(
        posterior,
        tallmc.methods.sgld(1e-3, batch_size=5),
        chains=2,
        n_draws=50,
        store=tmp_path / "run",
    )
    write_report(tmp_path / "run", tmp_path / "page.html", posterior=posterior)
    text = (tmp_path / "page.html").read_text()
    trace = float(re.search(r"gradient estimate is ([\d.e+-]+)\.", text).group(1))
    kernel = tallmc.methods.sgld(1e-3, batch_size=5).prepare(posterior).kernel
    at = [draws.positions[0, draw] for draw in (9, 19, 29, 39, 49)]
    exact = np.mean([tallmc.diagnose.pseudo_variance(kernel, position) for position in at])
    assert trace == pytest.approx(exact, rel=0.01)
    inflation = float(re.search(r"variances ([\d.]+)% too large", text).group(1)) / 100
    assert inflation == pytest.approx(1e-3 * exact / 2 / 4, abs=1e-4)
    assert "every row is equally likely" in text and "Fixed: 5 rows" in text


FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"  # a wide font


def boxes(svg: str) -> list[tuple[str, float, float, float, float]]:
    """Text and corners of each tick and label of a chart: left, top, right, bottom."""
    found = []
    for kind, x, y, anchor, turned, text in re.findall(
        r'<text class="(\w+)" x="([-\d.]+)" y="([-\d.]+)" text-anchor="(\w+)"([^>]*)>(.*?)</text>',
        svg,
    ):
        text = html.unescape(text)
        font = ImageFont.truetype(FONT, {"tick": 11, "label": 11.5}[kind])
        _, above, _, below = font.getbbox(text, anchor="ls")
        width, at, base = font.getlength(text), float(x), float(y)
        if turned:
            found.append((text, at + above, base - width / 2, at + below, base + width / 2))
        else:
            start = at - width * {"middle": 0.5, "end": 1.0}[anchor]
            found.append((text, start, base + above, start + width, base + below))
    return found


def check_texts(svg: str) -> None:
    """No text of a chart is on another or beyond the edge, and each axis has two ticks."""
    found = boxes(svg)
    for text, left, top, right, bottom in found:
        assert left >= -0.5 and top >= -0.5 and right <= WIDTH + 0.5 and bottom <= HEIGHT + 0.5, (
            text
        )
    for first, second in itertools.combinations(found, 2):
        apart = (
            first[3] <= second[1]
            or second[3] <= first[1]
            or first[4] <= second[2]
            or second[4] <= first[2]
        )
        assert apart, (first, second)
    assert svg.count('text-anchor="end"') >= 2  # of the y axis
    assert svg.count('class="tick"') - svg.count('text-anchor="end"') >= 2


def test_no_text_of_a_chart_overprints_another(page):
    charts = re.findall(r"<svg.*?</svg>", page.read_text())
    assert len(charts) > 10
    for svg in charts:
        check_texts(svg)


RANGES = [
    (0.0, 1.0),
    (-1.02, -0.96),
    (-0.000271, 0.000113),
    (1e-9, 4e-7),
    (1_000_000.2, 1_000_000.9),
    (-2.5e6, 8e6),
    (3e11, 9e11),
    (499.0, 20_100.0),
]


@pytest.mark.parametrize("x", RANGES)
@pytest.mark.parametrize("y", RANGES)
def test_ticks_of_any_range_have_room(x, y):
    check_texts(Chart("title", x, y, x_label="a long label of x", y_label="label of y").rendered())


@pytest.mark.parametrize(
    "limits", [(1.0, 1.3), (40.0, 900.0), (3e4, 6e5), (0.19, 1.9), (1e-6, 1e5), (9.1, 98.0)]
)
def test_logarithmic_axes_have_two_ticks_or_more(limits):
    check_texts(Chart("title", limits, limits, y_label="KSD", log_x=True, log_y=True).rendered())


def test_ticks_of_an_axis_have_the_same_decimals():
    for low, high in RANGES:
        ticks = nice_ticks(low, high)
        texts = [text for text in tick_texts(ticks) if text != "0"]
        assert len({len(re.sub(r"[kMG]|e.*", "", text).partition(".")[2]) for text in texts}) == 1
        assert len(set(texts)) == len(texts)


def test_a_table_that_is_too_wide_says_so(page):
    text = page.read_text()
    assert '<p class="hint">Swipe or scroll the table sideways' in text
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", style)
    assert re.search(r"\.scroll \{[^}]*var\(--shadow\)", style)
    narrow = style[style.index("@media (max-width: 560px)") :]
    assert ".hint { display: block; }" in narrow


def test_the_device_is_named_once(page):
    device = re.search(r"<dt>device</dt><dd>(.*?)</dd>", page.read_text()).group(1)
    assert len(set(device.split())) == len(device.split())


def test_a_density_integrates_to_one():
    values = np.random.default_rng(0).gamma(3.0, size=20_000)
    at = np.linspace(-2, 25, 2000)
    assert np.trapezoid(density(values, at), at) == pytest.approx(1, abs=0.01)


def test_densities_count_draws_by_their_weights():
    draws = np.random.default_rng(0).gamma(3.0, size=(2, 40, 1))
    weights = np.tile(np.repeat([0.0, 1.0], 20), (2, 1))
    shown = types.SimpleNamespace(chosen=[0], names=["a"])
    weighted = types.SimpleNamespace(complete=draws, complete_weights=weights, **vars(shown))
    later = np.repeat(draws[:, 20:], 2, axis=1)
    alone = types.SimpleNamespace(complete=later, complete_weights=None, **vars(shown))
    assert marginals(weighted) == marginals(alone)


LOOK = """
<script>
addEventListener("load", () => {
  const out = [];
  const inside = (e) => e.closest(".scroll") !== null;
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    const beyond = box.right > innerWidth + 0.5 || box.left < -0.5;
    if (!inside(e) && box.width && beyond) out.push(e.tagName + "." + e.className);
  }
  for (const e of document.querySelectorAll("svg text")) {
    const [box, all] = [e.getBoundingClientRect(), e.closest("svg").getBoundingClientRect()];
    const sideways = box.right > all.right + 1 || box.left < all.left - 1;
    if (sideways || box.bottom > all.bottom + 1) out.push("text " + e.textContent);
  }
  const svg = document.querySelector("[data-chart] svg"), at = svg.getBoundingClientRect();
  const pointer = {clientX: at.left + at.width * 0.9, clientY: at.top + 20};
  svg.dispatchEvent(new PointerEvent("pointermove", pointer));
  const tip = document.querySelector(".tip"), place = tip.getBoundingClientRect();
  const heights = [...document.querySelectorAll("svg text")].map(
    (e) => e.getBoundingClientRect().height
  );
  const found = {width: innerWidth, scroll: document.documentElement.scrollWidth, out,
                 tip: tip.textContent,
                 tip_inside: place.left >= 0 && place.right <= innerWidth,
                 font: Math.min(...heights)};
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overflows_in_a_browser_and_pointing_at_a_trace_shows_its_values(
    page, width, tmp_path
):
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        pytest.skip("no Chromium to look at the page with")
    (tmp_path / "page.html").write_text(page.read_text().replace("</body>", f"{LOOK}</body>"))
    # The page is in a frame because a browser window is never narrower than 500 pixels.
    frame = f'<iframe src="page.html" style="border:0" width="{width}" height="900"></iframe>'
    heard = '<script>addEventListener("message", (event) => (document.title = event.data))</script>'
    looked = tmp_path / "frame.html"
    looked.write_text(f"<!doctype html><title></title>{heard}{frame}")
    arguments = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    arguments += [
        "--window-size=1400,1000",
        "--virtual-time-budget=5000",
        "--dump-dom",
        looked.as_uri(),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout).group(1)))
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["out"] == []
    assert found["tip"].startswith("draw ") and "chain 3" in found["tip"]
    assert found["tip_inside"]
    assert found["font"] >= 9  # pixels, legible on a telephone


def test_the_discrepancy_of_steps_without_rows_is_drawn_along_the_run():
    found = types.SimpleNamespace(rows=np.zeros(3), ksd=np.array([3.0, 2.0, 1.0]))
    chart = plots.discrepancies(types.SimpleNamespace(discrepancies=found)).rendered()
    assert "parts of the run" in chart and 'class="line strong" d="M' in chart


@pytest.mark.parametrize(
    ("part", "accepts", "words"),
    [
        ("SurrogateKernel", False, "None: every step uses the same hard rows and the series."),
        ("Kernel", True, "None: every step uses all rows."),
        ("Kernel", False, "This method does not measure gradient noise. Computing it needs the"),
    ],
)
def test_steps_without_gradient_noise_are_not_said_to_lack_the_data(part, accepts, words):
    setup = types.SimpleNamespace(content={"has_accept_step": accepts, "kernel": {"part": part}})
    draws = types.SimpleNamespace(sample_stats={}, report=types.SimpleNamespace(inflation=None))
    opened = types.SimpleNamespace(setup=setup)
    assert words in _noise(types.SimpleNamespace(draws=draws, noise=None, opened=opened))
