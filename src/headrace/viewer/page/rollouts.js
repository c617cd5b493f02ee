"use strict";
// Samples are in script elements of JSON, and become elements only when they come into view: text is never parsed as HTML.
const VERSIONS = ["#9ecae9", "#f2cf5b", "#88d27a", "#ffbf79", "#d6a5c9", "#83bcb6", "#ff9d98", "#bab0ac"];
const read = id => JSON.parse(document.getElementById(id).textContent);
const by = document.getElementById("by");

function spread(runs) { // [[value, count], ...]
  const all = [];
  for (const [value, count] of runs) for (let i = 0; i < count; i++) all.push(value);
  return all;
}

function shade(value, most) { // blue below 0, red above
  const strength = Math.min(Math.abs(value) / most, 1);
  return strength < 0.02 ? "" : `rgba(${value > 0 ? "214,69,65" : "49,120,198"},${(0.15 + 0.55 * strength).toFixed(2)})`;
}

function colour(sample, i, what) {
  if (sample.mask[i] === "0") return "";
  if (what === "version") return VERSIONS[sample.versions[i] % VERSIONS.length] + "99";
  if (what === "gap") return sample.gap ? shade(sample.gap[i], 0.5) : "";
  if (what === "advantage") return sample.advantage ? shade(-sample.advantage[i], 2) : "";
  return sample.mask[i] === "2" ? "rgba(88,170,110,.35)" : "rgba(214,69,65,.35)";
}

function said(sample, i) {
  if (sample.mask[i] === "0") return "given to the policy";
  const parts = [`version ${sample.versions[i]}`, sample.mask[i] === "2" ? "trained" : "not trained"];
  if (sample.gap) parts.push(`trainer - engine ${sample.gap[i] ?? "not finite"}`);
  if (sample.advantage) parts.push(`advantage ${sample.advantage[i] ?? "not finite"}`);
  return parts.join(", ");
}

function paint(card) {
  const sample = read(card.dataset.id), what = by.value;
  sample.versions = spread(sample.versions);
  if (sample.advantage) sample.advantage = spread(sample.advantage);
  const shown = document.createElement("pre");
  let at = 0, run = null, key = null;
  sample.lengths.forEach((length, i) => {
    const text = sample.text.slice(at, at += length);
    if (i < sample.skip) return;
    const paint = colour(sample, i, what), title = said(sample, i), next = paint + title;
    if (next !== key) { // neighbours that look and say the same are one element
      run = document.createElement("span");
      run.style.backgroundColor = paint;
      run.title = title;
      if (sample.mask[i] === "0") run.className = "given";
      shown.append(run);
      key = next;
    }
    run.append(text);
  });
  card.querySelector("pre").replaceWith(shown);
  card.dataset.painted = what;
}

const near = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) if (isIntersecting && target.dataset.painted !== by.value) paint(target);
}, { rootMargin: "300px" });
document.querySelectorAll("article").forEach(card => near.observe(card));

by.addEventListener("change", () => {
  document.querySelectorAll("article").forEach(card => { near.unobserve(card); near.observe(card); });
  legend();
});

function legend() {
  const words = {
    version: "each version of the weights has a colour",
    gap: "the trainer finds the token less (blue) or more (red) likely than the engine did",
    advantage: "pushed up (blue) or down (red)",
    mask: "trained (green) or left out of the loss (red)",
  };
  document.getElementById("legend").textContent = words[by.value];
}
legend();
