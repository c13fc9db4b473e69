// What was found, drawn: heat over an image, GradCAT's boxes and its tree.

const SVG = "http://www.w3.org/2000/svg";

/** An element of SVG with its attributes. */
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A picture of a data URL, ready to be drawn. */
export async function picture(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/** Red, green, blue and alpha of each pixel of a grey picture, by what `paint` makes of 0..255. */
function painted(grey, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = grey.naturalWidth;
  canvas.height = grey.naturalHeight;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(grey, 0, 0);
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  const table = Array.from({ length: 256 }, (_, level) => paint(level / 255));
  for (let i = 0; i < pixels.data.length; i += 4) pixels.data.set(table[pixels.data[i]], i);
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

// Turbo, at equal steps.
const STOPS = [
  [48, 18, 59], [70, 107, 227], [40, 187, 236], [49, 242, 153], [162, 252, 60],
  [237, 209, 58], [251, 128, 34], [210, 49, 5], [122, 4, 3],
];

function turbo(level) {
  const at = level * (STOPS.length - 1), low = Math.min(Math.floor(at), STOPS.length - 2);
  const mix = STOPS[low].map((from, i) => from + (at - low) * (STOPS[low + 1][i] - from));
  return [...mix, 255];
}

/** A heat map in colours. */
export const heat = (grey) => painted(grey, turbo);

/** What lies outside of GradCAT's boxes, in shadow: the deeper a box, the more light. */
export const shadow = (grey) => painted(grey, (level) => [0, 0, 0, 255 * (1 - level)]);

/** Put one canvas onto another of any size. */
export function show(canvas, drawn) {
  canvas.width = drawn.width;
  canvas.height = drawn.height;
  canvas.getContext("2d").drawImage(drawn, 0, 0);
}

/** A class's heat over the middle of the image, for its button. */
export function thumbnail(canvas, image, drawn) {
  const side = 88, pen = canvas.getContext("2d");
  canvas.width = canvas.height = side;
  const { naturalWidth: width, naturalHeight: height } = image;
  const cut = Math.min(width, height);
  const place = [(width - cut) / 2, (height - cut) / 2, cut, cut, 0, 0, side, side];
  pen.imageSmoothingEnabled = width > 96;
  pen.drawImage(image, ...place);
  pen.imageSmoothingEnabled = true;
  pen.globalAlpha = 0.55;
  pen.drawImage(drawn, ...place);
}

/** GradCAT's boxes over an image, the outermost first. */
export function boxes(layer, path) {
  const inner = (edge) => Math.min(Math.max(edge, 0.006), 0.994); // half a line is not cut off
  const drawn = path.flatMap(({ box }) => {
    const [x0, y0, x1, y1] = box.map(inner);
    return ["casing", "line"].map((kind) =>
      svg("rect", { class: kind, x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
  });
  layer.replaceChildren(...drawn);
}

/** The four parts of a box, as GradCAT counts them. */
function quarters([x0, y0, x1, y1]) {
  const x = (x0 + x1) / 2, y = (y0 + y1) / 2;
  return [[x0, y0, x, y], [x, y0, x1, y], [x0, y, x, y1], [x, y, x1, y1]];
}

const SIDE = 74, GAP = 14, ROOM = 22, STEP = 40;

/** GradCAT's tree: the image, its four parts, the four parts of the one taken, and so on. */
export function tree(image, path, name) {
  const width = 4 * SIDE + 3 * GAP;
  const share = Math.min(1.4, Math.max(0.5, image.naturalHeight / image.naturalWidth));
  const high = SIDE * share, row = high + ROOM + STEP;
  const height = (path.length + 1) * row - STEP;
  const whole = svg("svg", {
    viewBox: `-3 -3 ${width + 6} ${height + 6}`, role: "img",
    "aria-label": `GradCAT's tree for ${name}: ` + path.map((step) =>
      `level ${step.level}, ${["top left", "top right", "bottom left", "bottom right"][step.child]}`
    ).join("; "),
  });
  const edges = svg("g"), nodes = svg("g");
  const node = (box, x, y, label, taken) => {
    const [x0, y0, x1, y1] = box;
    const view = [x0 * image.naturalWidth, y0 * image.naturalHeight,
      (x1 - x0) * image.naturalWidth, (y1 - y0) * image.naturalHeight];
    const text = svg("text", { x: x + SIDE / 2, y: y + high + 16 });
    text.textContent = label;
    nodes.append(svg("g", taken ? { class: "taken" } : {},
      svg("svg", { x, y, width: SIDE, height: high, viewBox: view.join(" "),
        preserveAspectRatio: "none" },
      svg("image", { href: image.src, width: image.naturalWidth, height: image.naturalHeight })),
      svg("rect", { class: "frame", x, y, width: SIDE, height: high, rx: 3 }), text));
  };
  let parent = (width - SIDE) / 2, box = [0, 0, 1, 1];
  node(box, parent, 0, "image", true);
  path.forEach((step, depth) => {
    const top = (depth + 1) * row, from = parent + SIDE / 2, shown = numbers(step.values);
    quarters(box).forEach((part, i) => {
      const x = i * (SIDE + GAP), taken = i === step.child, to = x + SIDE / 2;
      const line = `M${from} ${top - STEP + 2}C${from} ${top - STEP / 2} ${to} ${top - STEP / 2} ${to} ${top - 2}`;
      edges[taken ? "append" : "prepend"](
        svg("path", { class: taken ? "edge taken" : "edge", d: line }));
      node(part, x, top, shown[i], taken);
      if (taken) parent = x;
    });
    box = step.box;
  });
  whole.append(edges, nodes);
  return whole;
}

/** Values of any size in a few signs, as many behind the point for all. */
function numbers(values) {
  const most = Math.max(...values.map(Math.abs));
  const digits = most ? 2 - Math.floor(Math.log10(most)) : 0;
  const shown = (value) => digits > 5 || digits < -2
    ? value.toExponential(1) : value.toFixed(Math.max(digits, 0));
  return values.map((value) => shown(value).replace("-", "−"));
}
