// The page: an image goes with each question, and all that is known of it stays in the browser.

import { boxes, heat, picture, shadow, show, thumbnail, tree } from "./views.js";

const TREE = "gradcat"; // the one method that has one
const TOP = 5;
const at = (id) => document.getElementById(id);
const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

const state = {
  about: null, file: null, panels: [], working: new Set(), asking: new AbortController(),
};

/** Something the visitor should know, in one line. */
class Problem extends Error {}

/** An answer of the API; a Problem if there is none. */
async function ask(path, fields, signal) {
  let options;
  if (fields) {
    const body = new FormData();
    body.append("image", state.file, "image"); // what the file is called stays here
    for (const [key, values] of Object.entries(fields)) {
      for (const value of [values].flat()) body.append(key, value);
    }
    options = { method: "POST", body, signal };
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer: is it still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Problem(said.error ?? `The server answered with ${answer.status}.`);
}

/** Do something; what goes wrong is shown, unless it was given up for something newer. */
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Problem)) console.error(error);
    const words = error instanceof Problem ? error.message : "This page made a mistake: reload it.";
    tell(words);
  }
}

/** Show one line, or none. */
function tell(words) {
  at("message").textContent = words && words[0].toUpperCase() + words.slice(1);
  at("message").hidden = !words;
}

/** Say who is at work, while work is done. */
async function working(panel, work) {
  const show = () => {
    const names = [...state.working].map(({ model }) => model.name);
    at("status").textContent = names.length ? `Asking ${names.join(" and ")} …` : "";
  };
  state.working.add(panel);
  panel.root.setAttribute("aria-busy", "true");
  show();
  try {
    return await work();
  } finally {
    state.working.delete(panel);
    panel.root.removeAttribute("aria-busy");
    show();
  }
}

/** One checkpoint's view of the image. */
class Panel {
  constructor(model) {
    this.model = model;
    this.root = at("panel").content.cloneNode(true).firstElementChild;
    this.find = (selector) => this.root.querySelector(selector);
    this.found = new Map(); // method -> number of a class -> what was found
    this.likely = []; // the classes that have a button
    const ways = model.methods.filter((method) => method !== TREE);
    this.way = ways[0];
    this.hasTree = model.methods.includes(TREE);
    this.find("h2").textContent = model.name;
    this.find(".path h3").textContent = this.hasTree ? about(TREE).title : "What the model saw";
    this.find(".tree").hidden = this.find(".path .download").hidden = !this.hasTree;
    this.find(".heat").hidden = !ways.length;
    this.root.classList.toggle("plain", !this.hasTree);
    const select = this.find(".heat select");
    select.append(...ways.map((way) => new Option(about(way).title, way)));
    select.onchange = () => attempt(() => this.explainBy(select.value));
    this.find(".path .download").onclick = () => attempt(() => this.download(TREE));
    this.find(".heat .download").onclick = () => attempt(() => this.download(this.way));
    this.offerOthers();
  }

  get methods() {
    return [this.hasTree && TREE, this.way].filter(Boolean);
  }

  /** A class beyond the likeliest, by its name. */
  offerOthers() {
    const input = this.find(".another input"), list = this.find("datalist");
    this.find(".another").hidden = this.model.classes.length <= TOP;
    list.id = `classes-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
    input.setAttribute("list", list.id);
    list.append(...this.model.classes.map((name) => new Option(name)));
    input.onchange = () => {
      const number = this.model.classes.indexOf(input.value.trim());
      if (number < 0) {
        if (input.value) tell(`${this.model.name} has no class “${input.value}”.`);
        return;
      }
      input.value = "";
      choose(this, number);
    };
  }

  /** Ask for what is not known yet of some classes, or of the likeliest. */
  async learn(methods, classes = []) {
    const fields = { model: this.model.name, method: methods, top: TOP, classes };
    const answer = await (await ask("/api/explain", fields, state.asking.signal)).json();
    this.image ??= await picture(answer.image);
    for (const { method, classes: maps } of answer.explanations) {
      if (!this.found.has(method)) this.found.set(method, new Map());
      for (const map of maps) {
        map.drawn = (method === TREE ? shadow : heat)(await picture(map.heat));
        this.found.get(method).set(map.number, map);
      }
    }
    return answer;
  }

  /** What the model sees first of all. */
  async look() {
    const answer = await working(this, () => this.learn(this.methods));
    this.likely = answer.explanations[0].classes;
    for (const image of this.root.querySelectorAll(".seen img")) {
      image.src = this.image.src;
      image.alt = "What the model saw of the image";
    }
    this.root.classList.toggle("small", this.image.naturalWidth <= 96);
    await this.choose(this.likely[0].number);
  }

  /** Show a class, once all there is to show of it is known. */
  async choose(number) {
    const missing = () => this.methods.filter((method) => !this.found.get(method)?.has(number));
    this.wanted = number;
    while (missing().length) await working(this, () => this.learn(missing(), [number]));
    if (this.wanted !== number) return; // another was clicked meanwhile
    if (!this.likely.some((guess) => guess.number === number)) {
      this.likely = [...this.likely.slice(0, TOP), this.found.get(this.methods[0]).get(number)];
    }
    this.select(number);
  }

  /** Show the heat maps of another method. */
  async explainBy(way) {
    const before = this.way, numbers = this.likely.map((guess) => guess.number);
    try {
      if (!this.found.has(way)) await working(this, () => this.learn([way], numbers));
      this.way = way;
      await this.choose(this.wanted);
    } catch (error) {
      this.find(".heat select").value = this.way = before;
      throw error;
    }
  }

  /** Draw a class of which all is known. */
  select(number) {
    this.selected = number;
    const { name, probability } = this.likely.find((guess) => guess.number === number);
    const first = this.likely[0];
    const strong = document.createElement("b");
    strong.textContent = first.name;
    this.find(".verdict").replaceChildren("sees ", strong, `, ${percent(first.probability)}`);
    this.drawButtons();
    if (this.hasTree) {
      const map = this.found.get(TREE).get(number);
      show(this.find(".path canvas"), map.drawn);
      this.find(".path canvas").ariaLabel = `GradCAT's way for ${name}`;
      boxes(this.find(".path svg"), map.path);
      this.find(".drawing").replaceChildren(tree(this.image, map.path, name));
      this.find(".path .note").textContent = `${name}, ${percent(probability)}: ${about(TREE).about}`;
    }
    if (this.way) {
      show(this.find(".heat canvas"), this.found.get(this.way).get(number).drawn);
      this.find(".heat canvas").ariaLabel = `Heat map of ${name} by ${about(this.way).title}`;
      this.find(".heat .note").textContent = `${name}, ${percent(probability)}: ${about(this.way).about}`;
    }
  }

  /** A button a class, with its share and its heat. */
  drawButtons() {
    const focused = this.root.contains(document.activeElement) && document.activeElement.value;
    const maps = this.found.get(this.way ?? TREE);
    const items = this.likely.map((guess) => {
      const button = document.createElement("button");
      const canvas = document.createElement("canvas"), bar = document.createElement("i");
      const name = document.createElement("span"), share = document.createElement("span");
      button.type = "button";
      button.value = guess.number;
      button.ariaPressed = guess.number === this.selected;
      canvas.ariaHidden = true;
      bar.style.width = `${100 * guess.probability}%`;
      name.textContent = guess.name;
      share.textContent = percent(guess.probability);
      const map = maps.get(guess.number);
      if (map) thumbnail(canvas, this.image, map.drawn);
      button.append(bar, canvas, name, share);
      button.onclick = () => choose(this, guess.number);
      const item = document.createElement("li");
      item.append(button);
      return item;
    });
    this.find(".classes ol").replaceChildren(...items);
    if (focused) this.find(`.classes button[value="${focused}"]`)?.focus();
  }

  /** The finished figure of the class that is shown. */
  async download(method) {
    const fields = { model: this.model.name, method, classes: this.selected };
    const file = await (await ask("/api/figure", fields, state.asking.signal)).blob();
    const link = document.createElement("a");
    const words = [this.model.name, method, this.model.classes[this.selected]];
    link.download = `${words.join("-").replace(/[^\p{L}\p{N}+_-]+/gu, "-")}.png`;
    link.href = URL.createObjectURL(file);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
}

const about = (method) => state.about.methods.find(({ name }) => name === method);

/** Choose a class in one panel, and of the same name in the other. */
function choose(panel, number) {
  tell("");
  const name = panel.model.classes[number];
  for (const one of state.panels) {
    const same = one === panel ? number : one.model.classes.indexOf(name);
    if (same >= 0) attempt(() => one.choose(same));
  }
}

/** Ask all chosen checkpoints about the image there is. */
async function look() {
  state.asking.abort();
  state.asking = new AbortController();
  tell("");
  const chosen = [at("model").value, at("other").value];
  const models = state.about.models.filter(({ name }) => chosen.includes(name));
  models.sort((a, b) => chosen.indexOf(a.name) - chosen.indexOf(b.name));
  state.panels = state.file ? models.map((model) => new Panel(model)) : [];
  for (const before of at("panels").children) before.setAttribute("aria-busy", "true");
  const { panels } = state;
  await Promise.all(panels.map((panel) => attempt(() => panel.look())));
  if (panels !== state.panels) return; // there is something newer to look at
  at("panels").replaceChildren(...panels.filter((one) => one.image).map((one) => one.root));
}

/** Take a file for the image, if it is not too large. */
function take(file, called) {
  for (const button of at("examples").children) {
    button.ariaPressed = called !== undefined && button.value === called;
  }
  const { bytes } = state.about.limits;
  if (file.size > bytes) {
    tell(`This file has ${(file.size / 1e6).toFixed(1)} MB, more than the ${bytes / 1e6} MB that are taken.`);
    return;
  }
  state.file = file;
  const preview = at("preview");
  URL.revokeObjectURL(preview.src);
  preview.onload = () => { preview.hidden = false; at("arrow").toggleAttribute("hidden", true); };
  preview.onerror = () => { preview.hidden = true; at("arrow").toggleAttribute("hidden", false); };
  preview.src = URL.createObjectURL(file);
  at("called").textContent = called ?? file.name;
  at("limits").textContent = "Drop, paste or browse for another";
  look();
}

/** Take the first of the files that were dropped, pasted or chosen. */
function receive(files) {
  if (files.length) take(files[0]);
  else tell("That was no file: save the image, then drop it here.");
}

/** What the visitor can do. */
function listen() {
  at("file").onchange = () => {
    if (at("file").files.length) receive(at("file").files);
    at("file").value = ""; // the same file may be chosen again
  };
  at("model").onchange = at("other").onchange = () => { offerOthers(); look(); };
  at("opacity").oninput = () => {
    at("percent").textContent = `${at("opacity").value} %`;
    document.documentElement.style.setProperty("--overlay", at("opacity").value / 100);
  };
  const over = (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", event.type === "dragover");
  };
  window.ondragover = window.ondragleave = over;
  window.ondrop = (event) => { over(event); receive(event.dataTransfer.files); };
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) receive(event.clipboardData.files);
  });
}

/** Checkpoints to compare the chosen one with. */
function offerOthers() {
  const before = at("other").value, { models } = state.about;
  const names = models.map(({ name }) => name).filter((name) => name !== at("model").value);
  at("other").replaceChildren(new Option("nothing", ""), ...names.map((name) => new Option(name)));
  at("other").value = names.includes(before) ? before : "";
  at("comparing").hidden = !names.length;
}

await attempt(async () => {
  state.about = await (await ask("/api/about")).json();
  const { models, limits, examples } = state.about;
  at("model").append(...models.map(({ name }) => new Option(name)));
  at("limits").textContent = `JPEG, PNG, WebP … up to ${limits.bytes / 1e6} MB and ${limits.pixels / 1e6} megapixels`;
  at("examples").append(...examples.map(({ name }) => {
    const button = document.createElement("button"), image = new Image();
    image.src = `/api/examples/${encodeURIComponent(name)}`;
    image.alt = `Example: ${name}`;
    button.type = "button";
    button.value = name;
    button.append(image);
    button.onclick = () => attempt(async () => take(await (await ask(image.src)).blob(), name));
    return button;
  }));
  const credits = examples.map(({ name, credit }) => `${name} (${credit})`);
  at("credits").textContent = `Examples: ${credits.join(", ")}.`;
  offerOthers();
  listen();
});
