// Light or dark: as the address says, else as chosen before, else as the system prefers.
(function () {
  "use strict";
  // Only what a person chose is kept: a system may turn dark in the evening.
  const KEY = "diagnose-theme";
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.scheme = {
    choose: function (clicks, search, now) {
      const keep = window.dash_clientside.no_update;
      const asked = new URLSearchParams(search || "");
      const theme = asked.get("theme");
      const named = theme === "light" || theme === "dark";
      const by = window.dash_clientside.callback_context.triggered_id;
      if (by === "switch-theme" && clicks) {
        const chosen = now === "dark" ? "light" : "dark";
        window.localStorage.setItem(KEY, chosen);
        if (!named) {
          return [chosen, keep];
        }
        // An address that names a theme would turn it back on the next page.
        return [chosen, search.replace(/([?&]theme=)(light|dark)/g, "$1" + chosen)];
      }
      if (named) {
        return [now === theme ? keep : theme, keep];
      }
      if (now === "light" || now === "dark") {
        return [keep, keep];
      }
      const before = window.localStorage.getItem(KEY);
      if (before === "light" || before === "dark") {
        return [before, keep];
      }
      const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
      return [dark ? "dark" : "light", keep];
    },
    apply: function (now) {
      return now || "light";
    },
    entitle: function (title) {
      if (title) {
        document.title = title;
      }
      return window.dash_clientside.no_update;
    },
  };
})();
