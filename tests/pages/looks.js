// The faults in the appearance of a page: a list of words.
const faults = [];
const said = (node) => JSON.stringify(node.textContent.trim().slice(0, 40));
const root = document.documentElement;
if (root.scrollWidth > root.clientWidth) {
  faults.push(`scrolls sideways: ${root.scrollWidth} in ${root.clientWidth}`);
}

function hidden(element) {
  if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return true;
  for (let at = element; at; at = at.parentElement) {
    if (getComputedStyle(at).clipPath !== "none") return true;
  }
  return false;
}

const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function colour(text, below) {
  canvas.fillStyle = below ? `rgb(${below.join(" ")})` : "#fff";
  canvas.fillRect(0, 0, 1, 1);
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
}
function background(element) {
  if (!element) return colour("Canvas");
  return colour(getComputedStyle(element).backgroundColor, background(element.parentElement));
}
function light(rgb) {
  const [r, g, b] = rgb.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function readable(element, what) {
  const style = getComputedStyle(element);
  const back = background(element);
  const [dark, bright] = [light(back), light(colour(style.color, back))].sort((a, b) => a - b);
  const contrast = (bright + 0.05) / (dark + 0.05);
  if (contrast < 4.5) faults.push(`${what}: contrast ${contrast.toFixed(2)}`);
  if (parseFloat(style.fontSize) < 14) faults.push(`${what}: font of ${style.fontSize}`);
}

const boxes = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const parent = node.parentElement;
  if (!node.textContent.trim() || parent.closest("option") || hidden(parent)) continue;
  readable(parent, said(node));
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    if (box.right > root.clientWidth + 1 || box.left < -1) faults.push(`${said(node)}: cut off`);
    boxes.push({ box, parent, what: said(node) });
  }
}
for (const control of document.querySelectorAll("button, input, select, canvas")) {
  if (hidden(control)) continue;
  const box = control.getBoundingClientRect();
  const what = control.id || control.name || control.tagName;
  if (control.tagName !== "BUTTON") boxes.push({ box, parent: control, what });
  if (control.tagName === "CANVAS") continue;
  readable(control, what);
  if (control.type !== "checkbox" && box.height < 40) faults.push(`${what}: only ${box.height} high`);
}
boxes.forEach((one, at) => {
  for (const other of boxes.slice(at + 1)) {
    if (one.parent === other.parent) continue;
    const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
    const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
    if (across > 1 && down > 4) faults.push(`${one.what} and ${other.what} overlap`);
  }
});
return faults;
