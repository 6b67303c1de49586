// Draws the figures, whose JSON stands beside them, in the colours of the reader's system.
(() => {
  "use strict";
  const palette = JSON.parse(document.getElementById("dark-colours").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const options = {displayModeBar: false, responsive: true, scrollZoom: false};
  const hidden = new Set(); // arms that the reader switched off

  const tone = (text) => dark.matches ? text.replace(/#[0-9A-F]{6}/g, (colour) => palette[colour] ?? colour) : text;

  function draw(plot) {
    const select = document.querySelector(`select[data-plot="${plot.id}"]`);
    const source = document.getElementById(select ? select.value : `${plot.id}-data`);
    const figure = JSON.parse(tone(source.textContent));
    for (const trace of figure.data) trace.visible = !hidden.has(trace.legendgroup);
    Plotly.react(plot, figure.data, figure.layout, options);
  }

  const drawAll = () => document.querySelectorAll(".plot").forEach(draw);

  for (const select of document.querySelectorAll("select[data-plot]"))
    select.addEventListener("change", () => draw(document.getElementById(select.dataset.plot)));

  for (const button of document.querySelectorAll("button[data-arm]"))
    button.addEventListener("click", () => {
      const arm = button.dataset.arm;
      if (!hidden.delete(arm)) hidden.add(arm);
      for (const twin of document.querySelectorAll(`button[data-arm="${arm}"]`))
        twin.setAttribute("aria-pressed", String(!hidden.has(arm)));
      drawAll();
    });

  for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.color = tone(swatch.dataset.colour);
  dark.addEventListener("change", () => {
    for (const swatch of document.querySelectorAll("[data-colour]")) swatch.style.color = tone(swatch.dataset.colour);
    drawAll();
  });
  drawAll();
})();
