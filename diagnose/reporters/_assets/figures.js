"use strict";
// Draws the figures from the data block of the page, and again when theme or paper changes.
(() => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const paper = { width: 680 };

  const recolored = (value) => {
    if (typeof value === "string") return data.dark[value] || value;
    if (Array.isArray(value)) return value.map(recolored);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, recolored(one)]));
  };
  const copy = (value) => JSON.parse(JSON.stringify(value));

  const draw = (key, printing) => {
    const box = document.getElementById(`figure-${key}`);
    const dark = !printing && window.reportIsDark();
    const figure = dark ? recolored(data.figures[key]) : copy(data.figures[key]);
    if (printing) Object.assign(figure.layout, paper);
    return Plotly.react(box, figure.data, figure.layout, config);
  };
  const drawAll = (printing) => Object.keys(data.figures).map((key) => draw(key, printing));

  document.addEventListener("theme", () => drawAll(false));
  window.addEventListener("beforeprint", () => drawAll(true));
  window.addEventListener("afterprint", () => drawAll(false));
  Promise.all(drawAll(false)).then(() => {
    document.documentElement.dataset.drawn = String(Object.keys(data.figures).length);
  });
})();
