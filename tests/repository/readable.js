// Tells the page around it what of this page is hard to read: text of little
// contrast in light and dark, and what is wider than the window.
"use strict";

const channels = (color) =>
  (color.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number).concat(1).slice(0, 4);

const over = (upper, lower) =>
  [0, 1, 2].map((i) => upper[i] * upper[3] + lower[i] * (1 - upper[3]));

const luminance = (color) => {
  const [r, g, b] = color.slice(0, 3).map((value) => {
    value /= 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

const ancestors = (element) => {
  const found = [];
  for (; element; element = element.parentElement) found.push(element);
  return found;
};

const contrast = (element) => {
  const around = ancestors(element).map((e) => getComputedStyle(e));
  const opacity = around.reduce((product, s) => product * s.opacity, 1);
  const ground = around.reduceRight(
    (below, s) => over(channels(s.backgroundColor), below), [255, 255, 255]);
  const color = channels(around[0].color);
  color[3] *= opacity;
  const [dark, light] = [over(color, ground), ground]
    .map(luminance).sort((a, b) => a - b);
  // What is hidden until it is pointed at has no contrast to measure.
  return opacity < 0.05 ? 21 : (light + 0.05) / (dark + 0.05);
};

const visibleTexts = () => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const { width, height } = range.getBoundingClientRect();
    if (walker.currentNode.data.trim() && width > 1 && height > 1)
      found.push(walker.currentNode.parentElement);
  }
  return [...new Set(found)];
};

addEventListener("load", () => {
  // Colours change at once, not in steps.
  document.body.setAttribute("data-md-color-switching", "");
  const texts = visibleTexts(), faint = [];
  for (const scheme of ["default", "slate"]) {
    document.body.setAttribute("data-md-color-scheme", scheme);
    for (const text of texts)
      if (contrast(text) < 4.5)
        faint.push(`${scheme}, ${contrast(text)}: ${text.outerHTML.slice(0, 80)}`);
  }
  const { clientWidth, scrollWidth } = document.documentElement;
  const page = location.pathname.split("/").slice(-2).join("/");
  parent.postMessage(JSON.stringify(
    { page, faint, texts: texts.length, clientWidth, scrollWidth }), "*");
});
