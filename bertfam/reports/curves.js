"use strict";
// Readout of the curves: the drawings themselves need no script.
const page = JSON.parse(document.getElementById("data").textContent);

// The place of the value of `list`, which is sorted, that is nearest to `x`.
function nearest(list, x) {
  let low = 0, high = list.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - list[low - 1] < list[low] - x ? low - 1 : low;
}

for (const figure of document.querySelectorAll("figure.chart")) {
  const chart = page.charts[figure.dataset.chart], svg = figure.querySelector("svg"), output = figure.querySelector("output");
  const [left, width, low, high] = ["left", "width", "low", "high"].map((name) => Number(svg.dataset[name]));
  const every = [...new Set(chart.lines.flatMap((line) => line.x))].sort((one, other) => one - other);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  let place = -1;
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", svg.dataset.top);
  cursor.setAttribute("y2", svg.dataset.bottom);

  function show(index) {
    place = Math.min(Math.max(index, 0), every.length - 1);
    const x = every[place], across = left + width * (x - low) / (high - low);
    cursor.setAttribute("x1", across);
    cursor.setAttribute("x2", across);
    svg.append(cursor);
    const words = [];
    for (const line of chart.lines) {
      const box = document.getElementById(`show-${line.run}`), near = nearest(line.x, x);
      if (line.y[near] !== null && (!box || box.checked) && line.x[near] === x) {
        words.push(`${line.name} ${Number(line.y[near].toPrecision(4))}`);
      }
    }
    output.textContent = `${chart.x_name} ${x.toLocaleString("en", { maximumFractionDigits: 0 })}: ${words.join("; ")}`;
  }

  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect(), across = (event.clientX - frame.left) * svg.viewBox.baseVal.width / frame.width;
    show(nearest(every, low + (across - left) / width * (high - low)));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10 }[event.key];
    if (step || event.key === "Home" || event.key === "End") {
      event.preventDefault();
      show(event.key === "Home" ? 0 : event.key === "End" ? every.length - 1 : place + step);
    }
  });
  svg.addEventListener("blur", () => { cursor.remove(); output.textContent = ""; place = -1; });
  svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) { cursor.remove(); output.textContent = ""; } });
}
