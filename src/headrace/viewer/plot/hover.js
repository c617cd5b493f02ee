// Shows the values under the pointer. Names come from the data alone, and become text, never markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const svg = document.querySelector("svg");
  const tip = document.getElementById("tip");
  const rule = document.createElementNS(svg.namespaceURI, "line");
  rule.setAttribute("class", "muted line");
  rule.setAttribute("visibility", "hidden");
  svg.append(rule);

  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  };
  const digits = (value) => String(Number(value.toPrecision(4)));
  const add = (parent, kind, words, style) => {
    const made = document.createElement(kind);
    made.textContent = words;
    if (style) made.className = style;
    parent.append(made);
    return made;
  };
  const hide = () => {
    tip.hidden = true;
    rule.setAttribute("visibility", "hidden");
  };

  const show = (event) => {
    const box = svg.getBoundingClientRect();
    const zoom = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * zoom, y = (event.clientY - box.top) * zoom;
    const plot = data.plots.find(
      (p) => x >= p.left - 4 && x <= p.left + p.width + 4 && y >= p.top - 8 && y <= p.top + p.height + 8
    );
    if (!plot) return hide();
    const wanted = ((x - plot.left) / plot.width) * data.last;
    const found = plot.lines.map((line) => [line, nearest(line.points, wanted)]);
    const at = found
      .map(([, point]) => point[0])
      .reduce((best, other) => (Math.abs(other - wanted) < Math.abs(best - wanted) ? other : best));
    const place = plot.left + (at / data.last) * plot.width;
    for (const [name, value] of [["x1", place], ["x2", place], ["y1", plot.top], ["y2", plot.top + plot.height]])
      rule.setAttribute(name, value);
    rule.setAttribute("visibility", "visible");

    tip.replaceChildren();
    add(tip, "b", plot.title + (plot.unit ? ", " + plot.unit : ""));
    add(tip, "div", digits(at / data.xUnit) + " " + data.xName, "muted");
    for (const [line, [x, value, low, high]] of found) {
      const row = add(tip, "div", "", "row");
      add(row, "span", "", "swatch e" + line.entry);
      add(row, "span", data.entries[line.entry] + (line.measure ? ", " + line.measure : ""), "name");
      const band = low === null ? "" : " (" + digits(low) + " to " + digits(high) + ")";
      add(row, "span", digits(value) + band + (x === at ? "" : " at " + digits(x / data.xUnit)), "value");
    }
    tip.hidden = false;
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = Math.max(left, 4) + scrollX + "px";
    tip.style.top = Math.max(Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 4), 4) + scrollY + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("pointerleave", hide);
})();
