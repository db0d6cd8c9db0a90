"use strict";
(() => {
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const chosen = {}; // of each figure: the patches of its controls
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  let setting = "auto";
  let printing = false;

  const theme = () => (printing ? "light" : setting === "auto" ? (system.matches ? "dark" : "light") : setting);

  function colours(layout) {
    const c = themes[theme()];
    const patch = {
      "font.color": c.text, "hoverlabel.bgcolor": c.surface, "hoverlabel.bordercolor": c.line,
      "hoverlabel.font.color": c.text, "modebar.color": c.line, "modebar.activecolor": c.text,
      "modebar.bgcolor": "rgba(0,0,0,0)",
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        Object.assign(patch, {
          [key + ".gridcolor"]: c.grid, [key + ".linecolor"]: c.line, [key + ".tickcolor"]: c.line,
        });
      }
    }
    return patch;
  }

  const shape = (plot) => drawings[plot.dataset.figure][plot.clientWidth < 640 ? "narrow" : "wide"];

  function set(layout, patch) { // what Plotly.relayout understands, on a plain object
    for (const [path, value] of Object.entries(patch)) {
      const keys = path.split(".");
      let at = layout;
      for (const key of keys.slice(0, -1)) at = at[key] ??= {};
      at[keys[keys.length - 1]] = value;
    }
  }

  function draw(plot) {
    if (plot.dataset.drawn) return;
    plot.dataset.drawn = "yes";
    const { data, layout, start } = drawings[plot.dataset.figure];
    for (const patch of [shape(plot), colours(layout), ...start, ...Object.values(chosen[plot.dataset.figure] ?? {})]) {
      set(layout, patch);
    }
    plot.dataset.shape = shape(plot) === drawings[plot.dataset.figure].narrow ? "narrow" : "wide";
    Plotly.newPlot(plot, data, layout, config);
  }

  function refresh() {
    for (const plot of plots) if (plot.dataset.drawn) Plotly.relayout(plot, colours(plot.layout));
  }

  function reshape() {
    for (const plot of plots) {
      if (!plot.dataset.drawn) continue;
      const now = plot.clientWidth < 640 ? "narrow" : "wide";
      if (plot.dataset.shape !== now) {
        plot.dataset.shape = now;
        plot.style.minHeight = shape(plot).height + "px";
        Plotly.relayout(plot, shape(plot));
      }
    }
  }

  const names = { auto: "as the system", light: "light", dark: "dark" };
  const button = document.getElementById("theme");
  function apply(value) {
    setting = value in names ? value : "auto";
    if (setting === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = setting;
    button.textContent = "Colours: " + names[setting];
    refresh();
  }
  button.addEventListener("click", () => {
    const order = Object.keys(names);
    apply(order[(order.indexOf(setting) + 1) % order.length]);
    try { localStorage.setItem("alrao-theme", setting); } catch { /* opened from disk: not everywhere */ }
  });
  let stored = null;
  try { stored = localStorage.getItem("alrao-theme"); } catch { /* the same */ }
  apply(stored ?? "auto");
  system.addEventListener("change", refresh);

  for (const choice of document.querySelectorAll(".control button")) {
    choice.addEventListener("click", () => {
      const plot = document.querySelector(`.plot[data-figure="${choice.dataset.figure}"]`);
      const patch = JSON.parse(choice.dataset.patch);
      const group = choice.parentElement;
      for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === choice));
      (chosen[choice.dataset.figure] ??= {})[group.getAttribute("aria-label")] = patch;
      if (plot.dataset.drawn) Plotly.relayout(plot, patch);
    });
  }

  // Figures are drawn when they come near: a page may have hundreds.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "600px" });
  for (const plot of plots) {
    plot.style.minHeight = shape(plot).height + "px"; // or the page would grow while one scrolls
    near.observe(plot);
  }
  new ResizeObserver(reshape).observe(document.body);

  const onPaper = { width: 680, "legend.orientation": "h", "legend.x": 0, "legend.y": -0.2, "legend.yanchor": "top", "font.size": 10 };
  let closed = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const details of closed) details.open = true;
    for (const plot of plots) {
      draw(plot);
      const { wide } = drawings[plot.dataset.figure];
      Plotly.relayout(plot, { ...colours(plot.layout), ...wide, ...onPaper, height: wide.height });
    }
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const details of closed) details.open = false;
    for (const plot of plots) {
      Plotly.relayout(plot, { ...colours(plot.layout), ...shape(plot), width: null, autosize: true });
    }
  });
})();
