// Draws every picture in the ink of the page: light or dark, wide or narrow, on screen or paper.
(function () {
  "use strict";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let paper = false;

  function themed(picture, width) {
    const css = getComputedStyle(document.documentElement);
    const ink = paper ? "#000" : css.getPropertyValue("--ink").trim();
    const narrow = width < 560;
    const layout = JSON.parse(JSON.stringify(picture.layout));
    layout.font = Object.assign({}, layout.font, { color: ink, size: narrow ? 11 : 13 });
    if (narrow) {
      layout.margin = Object.assign({}, layout.margin, { l: 44, r: 8 });
      layout.height = layout.height * 1.12;
    }
    // A legend below the picture takes a line an entry where it is narrow, half a line on paper.
    if (layout.legend.y < 0 && width < 760) {
      layout.height += (narrow ? 17 : 9) * picture.data.length;
    }
    layout.width = width;
    layout.autosize = false;
    return layout;
  }

  function draw() {
    document.querySelectorAll(".plot").forEach(function (place) {
      const picture = JSON.parse(document.getElementById(place.id + "-data").textContent);
      const width = paper ? 690 : place.clientWidth;
      const options = { displayModeBar: false, responsive: false };
      Plotly.react(place, picture.data, themed(picture, width), options);
    });
  }

  let waiting = 0;
  let known = window.innerWidth;
  window.addEventListener("resize", function () {
    if (window.innerWidth === known || paper) return;
    known = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 150);
  });
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", function () {
    paper = true;
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
    draw();
  });
  window.addEventListener("afterprint", function () { paper = false; draw(); });
  draw();
})();
