// Shared by all pages: times in the reader's zone, keys, dark and light, the menu of narrow screens.
(function () {
  "use strict";

  const PARTS = {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23",
  };
  const moment = new Intl.DateTimeFormat(undefined, PARTS);
  const exact = new Intl.DateTimeFormat(undefined, { ...PARTS, fractionalSecondDigits: 3 });

  // Writes each <time data-ms> below an element in the reader's zone; its title stays exact.
  function localise(root) {
    for (const one of root.querySelectorAll("time[data-ms]:not([data-local])")) {
      const at = Number(one.dataset.ms);
      one.textContent = (at % 1000 ? exact : moment).format(new Date(at));
      one.dataset.local = "";
    }
    for (const one of root.querySelectorAll("data:not([data-local])")) {
      const digits = one.textContent.includes(".") ? 1 : 0;
      one.textContent = Number(one.value).toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits });
      one.dataset.local = "";
    }
    for (const field of root.querySelectorAll("input[data-moment]:not([data-local])")) toLocal(field);
    label(root);
    count();
    for (const form of document.forms) choose(form);
  }

  // The type of the topic in a form, from the list of topics; "any" for others.
  function typeOf(form) {
    const topic = form.elements.topic, option = topic && topic.list
      && [...topic.list.options].find((one) => one.value === topic.value.trim());
    const about = document.getElementById("topic-about");
    if (about) about.textContent = option ? option.dataset.about : "";
    return option ? option.dataset.type : "any";
  }

  // Hides fields without effect: data-when="due=delay" applies while `due` is `delay`, "type=any fifo" by the topic's
  // type. A field with a fault is shown, and by type one with a value.
  function choose(form) {
    for (const field of form.querySelectorAll("[data-when]")) {
      const [name, wanted] = field.dataset.when.split("="), control = form.elements[name], isType = name === "type";
      const value = isType ? typeOf(form) : control.type === "checkbox" ? (control.checked ? "1" : "") : control.value;
      const isKept = field.querySelector("[aria-invalid]") || (isType && field.querySelector("input").value);
      field.hidden = !wanted.split(" ").includes(value) && !isKept;
    }
  }

  // "in 3 sec.", in the reader's language; `data-skew` of the document is the server's clock minus this one.
  const left = new Intl.RelativeTimeFormat(undefined, { style: "short" });
  const UNITS = [["day", 86400000], ["hour", 3600000], ["minute", 60000], ["second", 1000]];

  function count() {
    const now = Date.now() + Number(document.documentElement.dataset.skew || 0);
    for (const one of document.querySelectorAll("time[data-soon]")) {
      const ms = Number(one.dataset.ms) - now;
      const [unit, size] = UNITS.find(([, length]) => Math.abs(ms) >= length) || UNITS[3];
      one.textContent = left.format(Math.trunc(ms / size), unit);
    }
  }

  // `2026-01-31T12:00:00`, in the reader's zone; with milliseconds unless they are 0.
  function local(date) {
    const two = (number) => String(number).padStart(2, "0");
    const day = `${String(date.getFullYear()).padStart(4, "0")}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const ms = date.getMilliseconds();
    return `${day}T${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
      + (ms ? `.${String(ms).padStart(3, "0")}` : "");
  }

  // The exact instant of a field; an unchanged field keeps its original instant, even in an hour that occurs twice.
  function instant(field) {
    if (field.dataset.ms && field.value === field.dataset.local) return new Date(Number(field.dataset.ms));
    return field.value ? new Date(field.value) : null;
  }

  function tell(field) {
    const at = instant(field);
    field.title = at ? at.toISOString() : "";
  }

  // Converts a time field from UTC to the reader's zone.
  function toLocal(field) {
    if (field.dataset.ms) field.value = local(new Date(Number(field.dataset.ms)));
    field.dataset.local = field.value;
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your zone";
    for (const label of field.labels) for (const one of label.querySelectorAll("[data-zone]")) one.textContent = zone;
    field.addEventListener("input", () => tell(field));
    tell(field);
  }

  // Replaces local times in forms, by GET or POST, with instants and their zone.
  function sendInstants(event) {
    for (const field of event.target.querySelectorAll("input[data-moment][data-local]")) {
      const at = instant(field);
      if (at && event.formData.has(field.name)) event.formData.set(field.name, at.toISOString());
    }
  }

  function switchTheme() {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("duetime-theme", root.dataset.theme); } catch (error) { /* not kept */ }
    document.dispatchEvent(new CustomEvent("duetime:theme"));
  }

  function help() {
    const dialog = document.getElementById("help");
    if (!dialog.open) dialog.showModal();
  }

  const isTyping = (target) => target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  let wentAt = 0;

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const links = document.querySelectorAll("#navigation a");
    if (event.key === "/") {
      const field = document.querySelector("[data-find]");
      if (field) field.focus(); else location.href = "/messages";
    } else if (event.key === "?") help();
    else if (event.key === "t") switchTheme();
    else if (event.key === "g") { wentAt = event.timeStamp; return; }
    else if (/^[1-9]$/.test(event.key) && event.timeStamp - wentAt < 1500 && wentAt) {
      const link = links[Number(event.key) - 1];
      if (link) link.click();
    } else return;
    wentAt = 0;
    event.preventDefault();
  }

  // A button that asks before its form is sent.
  function confirmed(event) {
    const question = event.submitter && event.submitter.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  }

  // Gives cells the name of their column, which narrow screens show.
  function label(root) {
    for (const table of root.querySelectorAll("table:has(thead)")) {
      const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent.replace(/[▲▼]/g, "").trim());
      for (const row of table.querySelectorAll("tbody tr")) {
        [...row.cells].forEach((cell, place) => { cell.dataset.name = heads[place] || ""; });
      }
    }
  }

  document.addEventListener("input", (event) => { if (event.target.form) choose(event.target.form); });
  document.addEventListener("submit", confirmed);
  document.addEventListener("keydown", pressed);
  document.addEventListener("formdata", sendInstants);
  document.addEventListener("duetime:shown", (event) => localise(event.detail));
  document.addEventListener("htmx:load", (event) => localise(event.detail.elt.parentNode || event.detail.elt));
  document.addEventListener("DOMContentLoaded", () => {
    localise(document);
    setInterval(count, 1000);
    document.getElementById("theme").addEventListener("click", switchTheme);
    document.getElementById("keys").addEventListener("click", help);
    const menu = document.getElementById("menu");
    menu.addEventListener("click", () => {
      menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true"));
    });
  });
})();
