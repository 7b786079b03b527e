"""What can be said of a page as it is seen: contrast, overflow, names. Scripts that run in the page."""

from __future__ import annotations

CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const box = element.getBoundingClientRect();
    if (!own || !box.width || !box.height || element.closest(".unseen, .skip")) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden") continue;
    const [a, b] = [luminance(rgba(style.color)), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return low;
}
"""
"""Texts with a contrast below 4.5 to 1 (WCAG 2.2, 1.4.3), each with its ratio."""

OVERFLOW = "() => document.documentElement.scrollWidth - innerWidth"
"""By how many pixels the page is wider than the screen."""

NAMELESS = """
() => [...document.querySelectorAll("button, input, select, [role=img], table, section")]
  .filter((element) => element.checkVisibility())
  .filter((element) => !(element.innerText || element.getAttribute("aria-label") || element.labels?.length || element.getAttribute("aria-labelledby")))
  .map((element) => element.outerHTML.slice(0, 120))
"""
"""What can be used or means something, and has no name for those who don't see it."""

SHARES = """
(bar) => [...bar.children].map((part) => (part.getBoundingClientRect().right - bar.getBoundingClientRect().left) / bar.clientWidth)
"""
"""Where the fill and the ticks of a bar end, 0 to 1."""

BROKEN = r"""
() => {
  const texts = document.createTreeWalker(document.querySelector("#content"), NodeFilter.SHOW_TEXT, (text) => text.parentElement.closest(".unseen") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  const found = [];
  while (texts.nextNode()) if (/\d (%|(s|min|h)\b)/.test(texts.currentNode.data)) found.push(texts.currentNode.data);
  return found;
}
"""
"""Texts in which a line may end between a number and its unit."""
