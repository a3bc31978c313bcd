"use strict";
// The theme follows the system until the button says otherwise; nothing is stored.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const told = () => document.dispatchEvent(new CustomEvent("theme"));
  window.reportIsDark = isDark;
  system.addEventListener("change", told);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      told();
    });
  });
  // Paper shows what a click would open, except for tables that repeat a figure.
  const opened = [];
  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details:not([open]):not(.tables):not(.name)")) {
      one.open = true;
      opened.push(one);
    }
  });
  window.addEventListener("afterprint", () => {
    while (opened.length) opened.pop().open = false;
  });
})();
