// The picture of the future: steps of time as stacked bars by topic, on a scale of their own; the past to the left of
// the line at now, on another scale, so that many delivered messages do not flatten the pending ones.
(function () {
  "use strict";

  const root = document.getElementById("picture");
  if (!root) return;
  const chart = root.querySelector(".chart"), said = root.querySelector(".state");
  const form = document.getElementById("range"), table = document.querySelector("#as-table table");
  // Share of the range that lies before now.
  const PAST_SHARE = 0.2;
  const COLOURS = ["#3b82f6", "#e8833a", "#2aa198", "#b35bd6", "#c9a227", "#e0557a", "#6aa84f", "#8a94a3"];
  const PAST = { restored: "#5f7d9c", dead: "#c2293d", late: "#9a6700" };
  const NAMES = { restored: "delivered", dead: "dead" };
  const SPAN_MIN = 20, SPAN_MAX = 120 * 365 * 86400000, TIME_MAX = 4026531840000, STEPS = 240;

  const state = {
    span: Number(root.dataset.span), at: Number(root.dataset.at), topic: root.dataset.topic, plot: null, data: null,
    asked: 0, shownAt: 0, skew: 0, timer: 0,
  };

  const nowMs = () => Date.now() + state.skew;
  const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

  // The middle of the range while it follows the clock.
  const middle = () => nowMs() + (0.5 - PAST_SHARE) * state.span;

  function range() {
    const align = Math.max(1, Math.round(state.span / STEPS));
    const centre = state.at || middle();
    const from = clamp(Math.floor((centre - state.span / 2) / align) * align, 0, TIME_MAX - state.span);
    return [from, from + Math.round(state.span)];
  }

  function say(text, isBad) {
    said.textContent = text;
    said.classList.toggle("refused", Boolean(isBad));
  }

  function address() {
    const query = new URLSearchParams({ span: String(Math.round(state.span)) });
    if (state.at) query.set("at", String(Math.round(state.at)));
    if (state.topic) query.set("topic", state.topic);
    history.replaceState(null, "", "/?" + query);
  }

  async function load() {
    const number = ++state.asked, [from, before] = range();
    const query = new URLSearchParams({ from: String(from), before: String(before), topic: state.topic });
    try {
      const answer = await fetch("/picture?" + query, { headers: { accept: "application/json" } });
      if (answer.redirected) { location.reload(); return; }
      const data = await answer.json();
      if (number !== state.asked) return;
      if (!answer.ok) { say(data.detail + " " + data.advice, true); return; }
      const skew = data.now_ms - Date.now(), wasOff = Math.abs(skew - state.skew) > Math.max(state.span / STEPS, 2000);
      state.skew = skew;
      document.documentElement.dataset.skew = String(state.skew);
      // The browser's clock differs from the cluster's: the range was another one.
      if (wasOff && !state.at) { load(); return; }
      state.shownAt = performance.now();
      state.data = data;
      draw(data, from, before);
    } catch (error) {
      if (number === state.asked) say("The console does not answer; this page tries again.", true);
    }
  }

  function soon(wait) {
    clearTimeout(state.timer);
    state.timer = setTimeout(load, wait);
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const count = (value) => value === null || value === undefined ? "" : (Math.round(value * 100) / 100).toLocaleString();

  // Rows from the top of each stack downwards: lower ones are drawn over higher ones.
  function stacked(rows) {
    const sums = [];
    rows.forEach((row, place) => {
      sums.push(row.counts.map((one, at) => (one || 0) + (place ? sums[place - 1][at] : 0)));
    });
    return sums;
  }

  // A colour by name: the same for a topic in every range, unless two names of one picture get the same one.
  function coloured(names) {
    const taken = new Set(), colours = {};
    for (const name of [...names].sort()) {
      let place = 0;
      for (const character of name) place = (place * 31 + character.codePointAt(0)) % COLOURS.length;
      for (let tries = 0; taken.has(place) && tries < COLOURS.length; tries++) place = (place + 1) % COLOURS.length;
      taken.add(place);
      colours[name] = COLOURS[place];
    }
    return colours;
  }

  function draw(data, from, before) {
    const size = data.topics.length ? data.topics[0].counts.length : Math.ceil((before - data.from_ms) / data.step_ms);
    const xs = Array.from({ length: size }, (_, place) => data.from_ms + (place + 0.5) * data.step_ms);
    const colours = coloured(data.topics.map((row) => row.topic));
    const ahead = data.topics.map((row) => ({
      name: row.topic || "all topics", counts: row.counts, colour: colours[row.topic], scale: "due", topic: row.topic,
    }));
    const past = ["restored", "dead"].filter((name) => data.past[name]).map((name) => ({
      name: NAMES[name], counts: data.past[name], colour: PAST[name], scale: "past",
    }));
    const rows = [], columns = [];
    for (const group of [ahead, past]) {
      const sums = stacked(group);
      for (let place = group.length - 1; place >= 0; place--) {
        rows.push(group[place]);
        columns.push(sums[place].map((sum) => sum || null));
      }
    }
    const late = data.past.late || [];
    rows.push({ name: "late", counts: late, colour: PAST.late, scale: "past", isLine: true });
    columns.push(xs.map((_, place) => late[place] || null));
    tell(data, rows, xs);
    plot(data, rows, [xs, ...columns], from, before);
  }

  function plot(data, rows, columns, from, before) {
    const bars = uPlot.paths.bars({ size: [0.92, 60] });
    const line = css("--line"), text = css("--text");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const counts = { ...axis, size: 60, values: (u, splits) => splits.map((one) => one % 1 ? "" : one.toLocaleString()) };
    // Leaves space above the highest bar.
    const fromZero = (u, low, high) => [0, Math.max((high || 0) * 1.15, 4)];
    const hasPast = rows.some((row) => row.scale === "past" && row.counts.some(Boolean));
    const options = {
      width: Math.max(280, chart.clientWidth || root.clientWidth - 20), height: 320, ms: 1,
      scales: { x: { time: true, min: from, max: before }, due: { range: fromZero }, past: { range: fromZero } },
      axes: [
        { ...axis, values: (u, splits, place, space, step) => ticks(splits, step) },
        { ...counts, scale: "due", side: hasPast ? 1 : 3, label: hasPast ? "pending" : undefined },
        { ...counts, scale: "past", side: 3, show: hasPast, label: "delivered", grid: { show: false } },
      ],
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      series: [
        { value: (u, at) => at === null ? "" : moment(at - data.step_ms / 2) },
        ...rows.map((row) => ({
          label: row.name, scale: row.scale, stroke: row.colour, fill: row.isLine ? undefined : row.colour, width: row.isLine ? 2 : 0,
          paths: row.isLine ? undefined : bars, points: { show: false }, spanGaps: false,
          value: (u, value, series, place) => place === null ? "" : count(row.counts[place]),
        })),
      ],
      hooks: { draw: [drawNow] },
    };
    if (state.plot) state.plot.destroy();
    state.plot = new uPlot(options, columns, chart);
    follow(state.plot.over);
  }

  function drawNow(u) {
    const x = u.valToPos(nowMs(), "x", true), box = u.bbox, context = u.ctx;
    if (x < box.left || x > box.left + box.width) return;
    context.save();
    context.strokeStyle = context.fillStyle = css("--bad");
    context.lineWidth = 2 * devicePixelRatio;
    context.beginPath();
    context.moveTo(x, box.top);
    context.lineTo(x, box.top + box.height);
    context.stroke();
    context.font = 12 * devicePixelRatio + "px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillText("now", x + 5 * devicePixelRatio, box.top);
    context.restore();
  }

  function moment(at) {
    const when = new Date(at);
    return when.toLocaleString() + (state.span < 60000 ? "." + String(when.getMilliseconds()).padStart(3, "0") : "");
  }

  // Labels in the reader's language: times, with the day where it changes; days from a step of one day on.
  function ticks(splits, step) {
    const day = new Intl.DateTimeFormat(undefined, {
      month: "short", day: step < 28 * 86400000 ? "numeric" : undefined, year: step < 28 * 86400000 ? undefined : "numeric",
    });
    const time = new Intl.DateTimeFormat(undefined, {
      hour: "numeric", minute: "2-digit", second: step < 60000 ? "2-digit" : undefined,
      fractionalSecondDigits: step < 1000 ? 3 : undefined,
    });
    let before = "";
    return splits.map((one) => {
      const date = day.format(one), isNew = date !== before;
      before = date;
      if (step >= 86400000) return isNew ? date : "";
      return time.format(one) + (isNew ? "\n" + date : "");
    });
  }

  function length(ms) {
    for (const [unit, name] of [[86400000, "day"], [3600000, "hour"], [60000, "minute"], [1000, "second"]]) {
      if (ms >= unit) return ms === unit ? name : ms / unit + " " + name + "s";
    }
    return ms + " ms";
  }

  const sum = (counts) => counts.reduce((all, one) => all + (one || 0), 0);

  function tell(data, rows, xs) {
    const due = data.topics.reduce((all, row) => all + sum(row.counts), 0);
    const nothing = !due && !data.later_count && !Object.values(data.past).some((counts) => sum(counts));
    const parts = [count(due) + " pending messages are due in this range, per " + length(data.step_ms)];
    if (data.later_count) parts.push(count(data.later_count) + " are due later, beyond the counts by day");
    if (data.past_fault) parts.push("the older past is missing: " + data.past_fault);
    if (data.unreachable_shards.length) parts.push("shards " + data.unreachable_shards.join(", ") + " are missing");
    say(parts.join("; ") + ".");
    const note = document.getElementById("said");
    note.replaceChildren(...(nothing ? [document.getElementById("nothing").content.cloneNode(true)] : []));
    if (document.getElementById("as-table").open) fillTable(rows, xs, data.step_ms);
    state.table = () => fillTable(rows, xs, data.step_ms);
  }

  // The pending messages of a step, of one topic if it is known.
  function messagesOf(at, topic) {
    const from = Math.max(at, state.data.now_ms), query = new URLSearchParams({ from: new Date(from).toISOString() });
    query.set("before", new Date(at + state.data.step_ms).toISOString());
    if (topic && topic !== "others") query.set("topic", topic);
    return "/messages?" + query;
  }

  // A click on a bar opens its messages.
  function open(x, y) {
    const at = state.plot.posToVal(x, "x"), height = state.plot.posToVal(y, "due"), data = state.data;
    const place = Math.floor((at - data.from_ms) / data.step_ms), start = data.from_ms + place * data.step_ms;
    if (start + data.step_ms <= data.now_ms || height < 0) return;
    let top = 0;
    for (const row of data.topics) {
      top += row.counts[place] || 0;
      if (height <= top && row.counts[place]) { location.href = messagesOf(start, row.topic || state.topic); return; }
    }
  }

  function fillTable(rows, xs, step) {
    const head = table.createTHead(), body = document.createElement("tbody");
    const cell = (kind, text, scope) => {
      const one = document.createElement(kind);
      one.textContent = text;
      if (scope) one.scope = scope;
      return one;
    };
    const shown = rows.slice().reverse();
    const line = document.createElement("tr");
    line.append(cell("th", "from", "col"), ...shown.map((row) => cell("th", row.name, "col")));
    head.replaceChildren(line);
    xs.forEach((x, place) => {
      if (!shown.some((row) => row.counts[place])) return;
      const one = document.createElement("tr");
      const first = cell("th", "", "row"), isAhead = x + step / 2 > state.data.now_ms;
      const when = document.createElement(isAhead ? "a" : "span");
      when.textContent = moment(x - step / 2);
      if (isAhead) when.href = messagesOf(x - step / 2, state.topic);
      first.append(when);
      one.append(first, ...shown.map((row) => cell("td", count(row.counts[place]))));
      body.append(one);
    });
    table.replaceChildren(head, body);
  }

  // --- moving ---------------------------------------------------------------------------------------------------------

  function zoom(factor) {
    state.span = clamp(state.span * factor, SPAN_MIN, SPAN_MAX);
    moved();
  }

  function pan(share) {
    state.at = clamp((state.at || middle()) + share * state.span, 0, TIME_MAX);
    moved();
  }

  function moved() {
    address();
    if (state.plot) {
      const [from, before] = range();
      state.plot.setScale("x", { min: from, max: before });
    }
    soon(150);
  }

  const ACTS = {
    in: () => zoom(0.5), out: () => zoom(2), earlier: () => pan(-0.25), later: () => pan(0.25),
    now: () => { state.at = 0; moved(); },
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "earlier", ArrowRight: "later", 0: "now" };

  function follow(over) {
    over.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8);
    }, { passive: false });
    over.addEventListener("pointerdown", (event) => {
      let last = event.clientX, isDrag = false;
      over.setPointerCapture(event.pointerId);
      const move = (next) => {
        isDrag = isDrag || Math.abs(next.clientX - event.clientX) > 4;
        if (!isDrag) return;
        pan((last - next.clientX) / over.clientWidth);
        last = next.clientX;
      };
      over.addEventListener("pointermove", move);
      over.addEventListener("pointerup", (end) => {
        over.removeEventListener("pointermove", move);
        const box = over.getBoundingClientRect();
        if (!isDrag && !event.button) open(end.clientX - box.left, end.clientY - box.top);
      }, { once: true });
    });
  }

  for (const button of form.querySelectorAll("[data-act]")) button.addEventListener("click", ACTS[button.dataset.act]);
  root.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    ACTS[act]();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    state.span = Number(form.elements.span.value);
    state.topic = form.elements.topic.value.trim();
    moved();
  });
  form.elements.span.addEventListener("change", () => form.requestSubmit());
  document.getElementById("as-table").addEventListener("toggle", () => state.table && state.table());
  document.addEventListener("duetime:theme", () => state.data && draw(state.data, ...range()));
  addEventListener("resize", () => {
    if (state.plot) state.plot.setSize({ width: Math.max(280, chart.clientWidth), height: 320 });
  });

  // --- live -----------------------------------------------------------------------------------------------------------

  function swap(text) {
    const made = new DOMParser().parseFromString(text, "text/html");
    for (const part of made.querySelectorAll("[data-part]")) {
      const shown = document.querySelector('#figures [data-part="' + part.dataset.part + '"]');
      if (!shown || shown.dataset.was === part.innerHTML) continue;
      shown.dataset.was = part.innerHTML;
      shown.replaceChildren(...part.childNodes);
      document.dispatchEvent(new CustomEvent("duetime:shown", { detail: shown }));
    }
  }

  function tick() {
    const step = state.data ? state.data.step_ms : 1000;
    const isOld = performance.now() - state.shownAt > clamp(step / 2, 900, 60000);
    if (!document.hidden && isOld) load();
    else if (!state.at && state.plot) {
      const [from, before] = range();
      state.plot.setScale("x", { min: from, max: before });
    }
  }

  if (root.dataset.live) {
    const source = new EventSource("/live");
    source.addEventListener("figures", (event) => { swap(event.data); tick(); });
    addEventListener("pagehide", () => source.close());
  } else setInterval(tick, 1000);
  load();
})();
