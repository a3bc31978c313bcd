// What hands do on the timeline. Movement is shown at once and reported when it pauses; the
// server answers with an address, and the address with a picture.
(function () {
  "use strict";
  window.dash_clientside = window.dash_clientside || {};
  const MOVES = {
    w: [0.25, -0.25], s: [-0.5, 0.5], a: [-0.25, -0.25], d: [0.25, 0.25],
    ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25],
  };
  const PAUSE_MS = 120, LONGEST_MS = 400, OUTSTANDING_MS = 3000, CLICK_PIXELS = 4;
  let number = 0, timer = 0, since = 0, moved = null, measuring = false, first = null, down = null;

  const graph = (id) => document.querySelector("#" + id + " .js-plotly-plot");
  const axisOf = (drawn) => drawn && drawn._fullLayout && drawn._fullLayout.xaxis;
  const rangeOf = (drawn) => axisOf(drawn).range.slice();
  const click = (id) => { const one = document.getElementById(id); if (one) { one.click(); } };

  // What comes next was asked for by other means: it is shown as it comes.
  function forget() {
    window.clearTimeout(timer);
    timer = since = 0;
    moved = null;
  }

  function ask(what) {
    number += 1;
    if (what.do !== "move") { forget(); }
    window.dash_clientside.set_props("asked", { data: Object.assign({ number: number }, what) });
  }

  // Movement -------------------------------------------------------------------------------
  function follow(range) {
    const head = graph("time-axis");
    if (axisOf(head)) { window.Plotly.relayout(head, { "xaxis.range": range }); }
  }

  function report() {
    window.clearTimeout(timer);
    timer = since = 0;
    if (moved) {
      moved.sent = Date.now();
      ask({ do: "move", from: moved.range[0], to: moved.range[1] });
    }
  }

  function onMoved(drawn) {
    const range = rangeOf(drawn);
    moved = { range: range, sent: 0 };
    follow(range);
    since = since || Date.now();
    window.clearTimeout(timer);
    timer = window.setTimeout(report, Date.now() - since > LONGEST_MS ? 0 : PAUSE_MS);
  }

  function shift(share) {
    const drawn = graph("timeline");
    if (!axisOf(drawn)) { return; }
    const range = rangeOf(drawn), width = range[1] - range[0], axis = axisOf(drawn);
    let low = range[0] + share[0] * width, high = range[1] + share[1] * width;
    // At an end of the recording a movement stops; it does not narrow the view.
    if (share[0] === share[1]) {
      const over = Math.max(axis.minallowed - low, 0) || Math.min(axis.maxallowed - high, 0) || 0;
      low += over;
      high += over;
    }
    window.Plotly.relayout(drawn, { "xaxis.range": [low, high] });
  }

  function watch(drawn) {
    if (drawn.watched) { return; }
    drawn.watched = true;
    drawn.on("plotly_relayout", (what) => {
      if (Object.keys(what).some((key) => key.startsWith("xaxis.range"))) { onMoved(drawn); }
    });
    drawn.on("plotly_relayouting", () => follow(rangeOf(drawn)));
    drawn.on("plotly_click", (event) => {
      const key = event.points && event.points[0] && event.points[0].customdata;
      if (key && !measuring) { ask({ do: "select", key: key }); }
    });
    drawn.on("plotly_doubleclick", () => ask({ do: "whole" }));
    let told = 0;
    new ResizeObserver(() => {
      window.clearTimeout(told);
      told = window.setTimeout(() => {
        const width = Math.round(drawn.getBoundingClientRect().width);
        if (width > 0 && drawn.isConnected) {
          window.dash_clientside.set_props("plot-width", { data: width });
        }
      }, PAUSE_MS);
    }).observe(drawn);
  }

  function watchSoon(tries) {
    const drawn = graph("timeline");
    if (drawn && drawn.on) {
      watch(drawn);
    } else if (tries > 0) {
      window.setTimeout(() => watchSoon(tries - 1), 30);
    }
  }

  window.dash_clientside.timeline = {
    // A picture that comes while a hand is already further on must not pull the view back.
    show: function (figures) {
      const none = window.dash_clientside.no_update;
      if (!figures) { return [none, none]; }
      watchSoon(100);
      const came = figures[0].layout.xaxis.range;
      if (moved) {
        const width = moved.range[1] - moved.range[0];
        const same = Math.abs(came[0] - moved.range[0]) + Math.abs(came[1] - moved.range[1]);
        const late = moved.sent && Date.now() - moved.sent > OUTSTANDING_MS;
        if (same <= 1e-3 * width + 1e-5 || late) {
          moved = null;
        } else {
          figures.forEach((one) => { one.layout.xaxis.range = moved.range.slice(); });
        }
      }
      return figures;
    },
  };

  // Ruler ----------------------------------------------------------------------------------
  function setMeasuring(on) {
    measuring = on;
    first = down = null;
    hideBand();
    const stage = document.querySelector(".stage");
    if (stage) { stage.classList.toggle("measuring", on); }
    const button = document.getElementById("ruler-switch");
    if (button) { button.setAttribute("aria-pressed", String(on)); }
  }

  function timeAt(x) {
    const drawn = graph("timeline"), axis = axisOf(drawn);
    return axis.p2l(x - drawn.getBoundingClientRect().left - axis._offset);
  }

  function length(ms) {
    const units = [["s", 1e3], ["ms", 1], ["us", 1e-3]];
    const unit = units.find((one) => ms >= one[1]) || ["ns", 1e-6];
    return (ms / unit[1]).toFixed(unit[0] === "ns" ? 0 : 3) + " " + unit[0];
  }

  function showBand(from, to) {
    const drawn = graph("timeline"), axis = axisOf(drawn);
    let band = document.getElementById("ruler-band");
    if (!band) {
      band = document.createElement("div");
      band.id = "ruler-band";
      band.appendChild(document.createElement("span"));
      document.getElementById("timeline").appendChild(band);
    }
    const low = axis._offset + axis.l2p(Math.min(from, to));
    band.style.left = low + "px";
    band.style.width = axis._offset + axis.l2p(Math.max(from, to)) - low + "px";
    band.style.display = "block";
    band.firstChild.textContent = length(Math.abs(to - from));
  }

  function hideBand() {
    const band = document.getElementById("ruler-band");
    if (band) { band.style.display = "none"; }
  }

  const overPlot = (event) =>
    event.target.closest && event.target.closest("#timeline") && axisOf(graph("timeline"));

  document.addEventListener("mousedown", function (event) {
    if (!measuring || event.button !== 0 || !overPlot(event)) { return; }
    event.stopPropagation();
    event.preventDefault();
    down = { x: event.clientX, time: timeAt(event.clientX) };
  }, true);

  document.addEventListener("mousemove", function (event) {
    if (!measuring || !axisOf(graph("timeline"))) { return; }
    const from = down && Math.abs(event.clientX - down.x) > CLICK_PIXELS ? down.time : first;
    if (from !== null) { showBand(from, timeAt(event.clientX)); }
  }, true);

  document.addEventListener("mouseup", function (event) {
    if (!measuring || !down) { return; }
    const at = timeAt(event.clientX), dragged = Math.abs(event.clientX - down.x) > CLICK_PIXELS;
    if (dragged) {
      ask({ do: "ruler", at: [down.time, at] });
    } else {
      ask({ do: "ruler", at: first === null ? [at] : [first, at] });
    }
    first = dragged || first !== null ? null : at;
    down = null;
    hideBand();
  }, true);

  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("#ruler-switch")) {
      setMeasuring(!measuring);
    }
  });

  document.addEventListener("click", function (event) {
    if (event.target.closest && event.target.closest("button, a")) { forget(); }
  }, true);
  window.addEventListener("popstate", forget, true);

  // Wheel and keys -------------------------------------------------------------------------
  document.addEventListener("wheel", function (event) {
    if (!overPlot(event)) { return; }
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.shiftKey) {
      window.scrollBy(0, event.deltaY || event.deltaX);
    } else if (sideways) {
      shift([event.deltaX / 800, event.deltaX / 800]);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }, { capture: true, passive: false });

  const KEYS = {
    f: () => ask({ do: "fit" }),
    0: () => ask({ do: "whole" }),
    r: () => setMeasuring(!measuring),
    n: () => click("find-next"),
    N: () => click("find-previous"),
    "/": () => document.getElementById("find").focus(),
    "?": () => { const keys = document.getElementById("keys"); keys.open = !keys.open; },
    Escape: () => { setMeasuring(false); ask({ do: "escape" }); },
  };

  document.addEventListener("keydown", function (event) {
    const typing = event.target.closest
      && event.target.closest("input,textarea,select,[contenteditable]");
    if (!graph("timeline") || event.ctrlKey || event.metaKey || event.altKey) { return; }
    if (typing) {
      if (event.key === "Escape") { event.target.blur(); }
      return;
    }
    const move = MOVES[event.key], done = KEYS[event.key];
    if (move) { shift(move); } else if (done) { done(); } else { return; }
    event.preventDefault();
  });
})();
