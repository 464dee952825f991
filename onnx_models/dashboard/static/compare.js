// Compares any two runs, devices or releases. A run's results are one text, a character per case in the order
// of COMPARE.subjects: P passed, V vacuous, S skipped, E error, a space for none; from U+4E00 on, one of the run's
// own faults, whose names follow. Script elements load them, since a page that is opened from a file may fetch nothing.
"use strict";

const STATES = { P: "passed", V: "vacuous", S: "skipped", E: "error" };
const FIRST_FAULT = 0x4e00;
const SHOWN = 2000;

const MISSING = { state: "missing", words: "missing" };

function describe(code, faults) {
  const point = code.codePointAt(0);
  return point >= FIRST_FAULT ? { state: "failed", words: faults[point - FIRST_FAULT] } : { state: STATES[code], words: STATES[code] };
}

function load(run, then) {
  if (COMPARE.results[run.file] !== undefined) { then(); return; }
  const script = document.createElement("script");
  script.src = `data/compare/${run.file}`;
  script.onload = then;
  script.onerror = () => { document.querySelector("#compare output").textContent = `The results of ${run.id} cannot be read.`; };
  document.head.append(script);
}

function badge({ state, words }) {
  const element = document.createElement("span");
  element.className = `s s-${state}`;
  element.textContent = words;
  return element;
}

function byModel(run, device) {
  const [text, faults] = COMPARE.results[run.file];
  const codes = [...text];
  const found = new Map();
  COMPARE.subjects.forEach(([model, at], k) => {
    if (COMPARE.devices[at] === device && codes[k] !== undefined && codes[k] !== " ") found.set(model, describe(codes[k], faults));
  });
  return found;
}

function alike(one, other) {
  return one.state === other.state && one.words === other.words;
}

function show(form, base, head) {
  const before = byModel(base, form["base-device"].value);
  const after = byModel(head, form["head-device"].value);
  const models = [...new Set([...before.keys(), ...after.keys()])];
  const rows = models.filter((each) => !alike(before.get(each) || MISSING, after.get(each) || MISSING));
  const table = document.createElement("table");
  const top = table.createTHead().insertRow();
  for (const words of ["Model", `${base.release}, ${form["base-device"].value}`, `${head.release}, ${form["head-device"].value}`]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = words;
    top.append(cell);
  }
  const body = table.createTBody();
  for (const model of rows.slice(0, SHOWN)) {
    const row = body.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    const link = document.createElement("a");
    link.href = COMPARE.models[model][1];
    link.textContent = COMPARE.models[model][0];
    name.append(link);
    row.append(name);
    row.insertCell().append(badge(before.get(model) || MISSING));
    row.insertCell().append(badge(after.get(model) || MISSING));
  }
  const same = models.length - rows.length;
  const passing = (found) => [...found.values()].filter((each) => each.state === "passed").length;
  form.querySelector("output").textContent =
    `${rows.length} differ, ${same} are alike; ${passing(before)} of ${before.size} passed before, ${passing(after)} of ${after.size} after`;
  document.getElementById("compared").replaceChildren(...(rows.length ? [table] : []));
}

function option(select, value, words) {
  const element = document.createElement("option");
  element.value = value;
  element.textContent = words;
  select.append(element);
}

function devicesOf(form, side) {
  const run = COMPARE.runs.find((each) => each.id === form[side].value);
  const select = form[`${side}-device`];
  const chosen = select.value;
  select.replaceChildren();
  for (const device of run ? run.devices : []) option(select, device, device);
  if (run && run.devices.includes(chosen)) select.value = chosen;
}

let asked = 0;

function update(form, keep) {
  const mine = ++asked;  // what was asked for earlier may load later
  const runs = ["base", "head"].map((side) => COMPARE.runs.find((each) => each.id === form[side].value));
  if (keep) {
    const names = ["base", "base-device", "head", "head-device"];
    history.replaceState(null, "", `#${new URLSearchParams(names.map((name) => [name, form[name].value]))}`);
  }
  if (runs[0] && runs[1]) load(runs[0], () => load(runs[1], () => { if (mine === asked) show(form, ...runs); }));
}

function restore(form) {
  const state = new URLSearchParams(location.hash.slice(1));
  const known = COMPARE.runs;
  form.base.value = known.some((each) => each.id === state.get("base")) ? state.get("base") : known[Math.min(1, known.length - 1)].id;
  form.head.value = known.some((each) => each.id === state.get("head")) ? state.get("head") : known[0].id;
  for (const side of ["base", "head"]) {
    devicesOf(form, side);
    const device = state.get(`${side}-device`);
    if ([...form[`${side}-device`].options].some((each) => each.value === device)) form[`${side}-device`].value = device;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("compare");
  if (!form || typeof COMPARE === "undefined" || !COMPARE.runs.length) return;
  for (const side of ["base", "head"]) {
    for (const run of COMPARE.runs) option(form[side], run.id, `${run.release} (${run.started})`);
    form[side].addEventListener("change", () => { devicesOf(form, side); update(form, true); });
    form[`${side}-device`].addEventListener("change", () => update(form, true));
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => { restore(form); update(form, false); });
  form.hidden = false;
  restore(form);
  update(form, false);
});
