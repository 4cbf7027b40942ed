"use strict";
// Pointing at a trace shows the draw and the value of every chain there.
const data = JSON.parse(document.getElementById("hover").textContent);
const [WIDTH, RIGHT, TOP, BOTTOM] = [360, 10, 10, 172];

for (const card of document.querySelectorAll("[data-chart]")) {
  const series = data[card.dataset.chart];
  if (!series) continue;
  const left = Number(card.dataset.left);
  const svg = card.querySelector("svg");
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", TOP);
  cursor.setAttribute("y2", BOTTOM);
  const tip = document.createElement("div");
  tip.className = "tip";

  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const [first, last] = [1, series.x[series.x.length - 1]];
    const wanted = first + ((x - left) / (WIDTH - left - RIGHT)) * (last - first);
    let nearest = 0;
    series.x.forEach((draw, k) => {
      if (Math.abs(draw - wanted) < Math.abs(series.x[nearest] - wanted)) nearest = k;
    });
    const at = left + ((series.x[nearest] - first) / Math.max(last - first, 1)) * (WIDTH - left - RIGHT);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    svg.append(cursor);
    tip.replaceChildren(`draw ${series.x[nearest].toLocaleString("en")}`);
    series.y.forEach((values, chain) => {
      const row = document.createElement("div");
      const dot = document.createElement("i");
      dot.style.background = `var(--c${chain % 8})`;
      row.append(dot, `chain ${chain}: ${values[nearest] === null ? "–" : values[nearest]}`);
      tip.append(row);
    });
    card.append(tip);
    const place = (at / WIDTH) * box.width;
    tip.style.left = place < box.width / 2 ? `${place + 18}px` : "auto";
    tip.style.right = place < box.width / 2 ? "auto" : `${box.width - place + 18}px`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", () => {
    cursor.remove();
    tip.remove();
  });
}
