// Filters and sorts the tables of this site. Without it every page reads the same, only longer.
//
// <form class="filters" data-for="ID"> works on <table id="ID" data-table>. Each control has a name and a
// data-match: "text" looks in the row's words; "equals" compares with the row's data-NAME; "word" looks for
// one of its words; "state" and "device" look at the cells of a matrix, whose heads have data-device.
// An <option data-name> is known by that name in the address, so that links outlive a renumbering.
// The state is in the part of the address after '#', as name=value&...
"use strict";

const CLASSES = { passed: "pa", vacuous: "va", failed: "f", skipped: "sk", error: "er", missing: "mi" };

function controls(form) {
  return [...form.elements].filter((each) => each.name && each.dataset.match);
}

function nameOf(control) {
  if (control.tagName !== "SELECT" || !control.value) return control.value.trim();
  return control.selectedOptions[0].dataset.name || control.value;
}

function choose(control, name) {
  if (control.tagName !== "SELECT") { control.value = name; return; }
  const option = [...control.options].find((each) => (each.dataset.name || each.value) === name);
  control.value = option ? option.value : "";
}

function cellsFit(cells, columns, device, state) {
  const wanted = state ? CLASSES[state] : "";
  const chosen = device ? [cells[columns.indexOf(device)]] : cells;
  return chosen.some((cell) => cell && (wanted ? cell.classList.contains(wanted) : !cell.classList.contains("n")));
}

function fits(row, filters, columns) {
  let device = "";
  let state = "";
  for (const [control, value] of filters) {
    const name = control.name;
    if (control.dataset.match === "text") {
      if (!row.words.includes(value.toLowerCase())) return false;
    } else if (control.dataset.match === "equals") {
      if (row.element.dataset[name] !== value) return false;
    } else if (control.dataset.match === "word") {
      if (!(` ${row.element.dataset[name]} `).includes(` ${value} `)) return false;
    } else if (control.dataset.match === "device") {
      device = value;
    } else {
      state = value;
    }
  }
  return !(device || state) || cellsFit(row.cells, columns, device, state);
}

class Filtered {
  constructor(form, table) {
    this.form = form;
    this.table = table;
    this.body = table.tBodies[0];
    this.columns = [...table.tHead.rows[0].cells].map((each) => each.dataset.device).filter(Boolean);
    this.rows = [...this.body.rows].map((element) => ({
      element,
      words: element.cells[0].textContent.toLowerCase(),
      cells: this.columns.length ? [...element.cells].slice(-this.columns.length) : [],
    }));
    form.hidden = false;
    form.addEventListener("input", () => { this.apply(); this.remember(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { this.apply(); this.remember(); }));
    window.addEventListener("hashchange", () => this.restore());
    this.sorting();
    this.restore();
  }

  apply() {
    const filters = controls(this.form).filter((each) => each.value.trim()).map((each) => [each, each.value.trim()]);
    let shown = 0;
    for (const row of this.rows) {
      const fit = fits(row, filters, this.columns);
      if (row.element.hidden === fit) row.element.hidden = !fit;
      shown += fit;
    }
    const output = this.form.querySelector("output");
    const all = this.rows.length;
    output.textContent = shown === all ? `${all} rows` : shown ? `${shown} of ${all} rows` : "No row fits; clear a filter";
  }

  remember() {
    const state = new URLSearchParams();
    for (const each of controls(this.form)) if (each.value.trim()) state.set(each.name, nameOf(each));
    const sorted = this.table.querySelector("th[aria-sort]");
    if (sorted) state.set("sort", (sorted.getAttribute("aria-sort") === "descending" ? "-" : "") + sorted.cellIndex);
    history.replaceState(null, "", `#${state}`);
  }

  restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const each of controls(this.form)) choose(each, state.get(each.name) || "");
    const sort = state.get("sort");
    if (sort && /^-?\d+$/.test(sort)) this.sort(Math.abs(Number(sort)), sort.startsWith("-"));
    this.apply();
  }

  sorting() {
    for (const head of this.table.tHead.rows[0].cells) {
      if (!head.dataset.sort) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") === "ascending";
        this.sort(head.cellIndex, head.dataset.sort === "number" ? head.getAttribute("aria-sort") !== "descending" : ascending);
        this.remember();
      });
    }
  }

  sort(column, descending) {
    const head = this.table.tHead.rows[0].cells[column];
    if (!head || !head.dataset.sort) return;
    const numeric = head.dataset.sort === "number";
    const key = (row) => {
      const cell = row.element.cells[column];
      return numeric ? Number(cell.dataset.value ?? cell.textContent) : cell.textContent.trim().toLowerCase();
    };
    const keyed = this.rows.map((row) => [key(row), row]);
    keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (descending ? -1 : 1));
    for (const each of this.table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    this.rows = keyed.map(([, row]) => row);
    this.body.append(...this.rows.map((row) => row.element));
  }
}

function openLinkedFault() {
  const fault = new URLSearchParams(location.hash.slice(1)).get("fault");
  const link = fault && [...document.querySelectorAll("a[data-fault]")].find((each) => each.dataset.fault === fault);
  if (link) document.querySelector(link.getAttribute("href")).scrollIntoView();
}

function sayAge() {
  const age = document.getElementById("age");
  if (!age) return;
  const days = Math.floor((Date.now() - new Date(age.dataset.started)) / 86400000);
  if (days > 0) age.textContent += ` That is ${days} day${days === 1 ? "" : "s"} ago.`;
  if (days > 7) age.classList.add("notice");
}

document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form[data-for]")) {
    new Filtered(form, document.getElementById(form.dataset.for));
  }
  openLinkedFault();
  sayAge();
});
