// The page: head, charts, turns, the conversation in blocks that exist only near the screen, search, keys.
const data = JSON.parse(document.getElementById("data").textContent);
data.turns ||= []; data.entries ||= []; data.events ||= 0;
const $ = (id) => document.getElementById(id);
const main = $("main"), talk = $("talk");

// Which entry an event belongs to.
const exact = new Map();
data.entries.forEach((entry, i) => {
  const note = (seq) => { if (seq !== undefined && seq >= 0 && !exact.has(seq)) exact.set(seq, i); };
  note(entry.seq);
  const tools = entry.tool ? [entry.tool] : [];
  while (tools.length) { const tool = tools.pop(); note(tool.callSeq); note(tool.resultSeq); note(tool.prunedSeq); tools.push(...(tool.children || [])); }
});
const streamed = data.entries.map((entry, i) => [entry.firstSeq ?? entry.seq, i]).sort((a, b) => a[0] - b[0]);
const indexOf = (seq) => {
  if (exact.has(seq)) return exact.get(seq);
  let low = 0, high = streamed.length - 1;
  while (low < high) { const mid = (low + high + 1) >> 1; if (streamed[mid][0] <= seq) low = mid; else high = mid - 1; }
  return streamed.length ? streamed[low][1] : -1;
};
const bySeq = new Map();
for (const turn of data.turns) { bySeq.set(turn.seq, turn); if (turn.endSeq !== undefined) bySeq.set(turn.endSeq, turn); }
const turnOf = (entry) => bySeq.get(entry.seq);

// Head.
$("title").textContent = data.title || "Session";
$("facts").append(...[el("code", {}, data.id), data.cwd, data.parent ? `forked from ${data.parent}` : "", (data.models || []).join(", "),
  data.firstTime !== undefined ? `${when(data.firstTime)} to ${when(data.lastTime)}` : ""].filter(Boolean).map((fact) => el("span", {}, fact)));
const sum = (key) => data.turns.reduce((total, turn) => total + (turn[key] || 0), 0);
const tools = sum("tools"), failures = sum("failures"), usage = data.usage || {};
const trouble = data.turns.filter(troubled).length;
const read = (usage.input || 0) + (usage.cacheRead || 0) + (usage.cacheWrite || 0);
const tile = (name, value, small, bad) => el("div", { class: bad ? "bad" : "" }, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : ""));
$("tiles").append(
  tile("Turns", data.turns.length.toLocaleString("en"), trouble ? `${trouble} did not complete` : "", trouble),
  tile("Events", data.events.toLocaleString("en")),
  tile("Tool calls", tools.toLocaleString("en"), failures ? `${failures} failed` : "", failures),
  tile("Tokens in", tokens(read), usage.cacheRead ? `${tokens(usage.cacheRead)} from cache` : ""),
  tile("Tokens out", tokens(usage.output || 0), usage.reasoning ? `${tokens(usage.reasoning)} reasoning` : ""),
  tile("Time in turns", span(data.turns.reduce((total, turn) => total + Math.max(0, (turn.end ?? turn.start) - turn.start), 0)) || "0 ms"));
if (data.findings && data.findings.length) {
  $("alert").hidden = false;
  $("alert").append(el("b", {}, `This log is ${data.verdict}. `), "Below is what could be read.", el("ul", {}, ...data.findings.slice(0, 50).map((text) => el("li", {}, text))));
}

// Turns.
const turnLinks = new Map();
$("turns").append(...data.turns.map((turn) => {
  const anchor = el("a", { href: `#e${turn.seq}`, class: troubled(turn) ? "bad" : "" }, el("span", { class: "t", dir: "auto" }, `${turn.number}. ${turn.title || turn.trigger || "Turn"}`),
    el("span", { class: "m" }, [troubled(turn) ? `⚠ ${turn.ended ?? "open"}` : "", turn.end !== undefined ? span(Math.max(0, turn.end - turn.start)) : "", turn.tools ? plural(turn.tools, "tool") : ""].filter(Boolean).join(" · ") || when(turn.start)));
  turnLinks.set(turn.number, anchor);
  return el("li", {}, anchor);
}));
if (!data.turns.length) $("turns").append(el("li", { class: "m" }, "none"));

// Blocks: SIZE entries each, made when they come near the screen.
const SIZE = 40, KEEP = 60;
const guess = (entry) => {
  if (has(entry, "minor")) return 0;
  if (entry.kind === "tool") return 56;
  if (entry.kind === "turn-start") return 96;
  if (entry.kind === "notice" || entry.kind === "turn-end" || entry.kind === "context") return 40;
  return 60 + (entry.fragments || []).reduce((total, part) => total + (part.kind === "text" ? 26 * Math.min(400, Math.ceil(part.text.length / 90) + part.text.split("\n", 400).length / 2) : 30), 0);
};
const seam = data.seedLength === undefined ? -1 : data.entries.findIndex((entry) => entry.seq >= data.seedLength);
const blocks = [];
for (let from = 0; from < data.entries.length; from += SIZE) {
  const to = Math.min(from + SIZE, data.entries.length);
  let height = 0;
  for (let i = from; i < to; i++) height += guess(data.entries[i]);
  const node = el("section", { class: "block" });
  node.style.height = `${Math.round(height)}px`;
  node.block = { from, to, node, full: false, used: 0 };
  blocks.push(node.block);
  talk.append(node);
}
if (!data.entries.length) talk.append(el("p", { class: "notice" }, "This session has no events yet."));
let tick = 0;
const make = (block) => {
  block.used = ++tick;
  if (block.full) return;
  block.full = true;
  const nodes = [];
  block.entries = [];
  for (let i = block.from; i < block.to; i++) {
    if (i === seam) nodes.push(el("p", { class: "seam" }, `The fork starts here; events 0 to ${data.seedLength - 1} are its parent's.`));
    const node = showEntry(data.entries[i], turnOf);
    node.position = i;
    // Several entries can stand for one event (a message and its tool calls): the first has the plain id.
    node.id = exact.get(data.entries[i].seq) === i ? `e${data.entries[i].seq}` : `e${data.entries[i].seq}-${i}`;
    block.entries.push(node);
    nodes.push(node);
  }
  block.node.replaceChildren(...nodes);
  block.node.style.height = "";
  if (allOpen) block.node.querySelectorAll("details").forEach((node) => { node.open = true; });
  if (query) requestAnimationFrame(paint);
};
const drop = () => {
  const full = blocks.filter((block) => block.full && !block.near);
  if (full.length <= KEEP) return;
  full.sort((a, b) => a.used - b.used);
  for (const block of full.slice(0, full.length - KEEP)) {
    block.node.style.height = `${block.node.offsetHeight}px`;
    block.node.replaceChildren();
    block.full = false;
    block.entries = [];
  }
};
const watcher = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    target.block.near = isIntersecting;
    if (isIntersecting) make(target.block);
  }
  drop();
}, { rootMargin: "1200px 0px" });
let allOpen = false;
let query = "", hits = [], hit = -1;
blocks.slice(0, 2).forEach(make);
blocks.forEach((block) => watcher.observe(block.node));

// Going to an entry.  Blocks above may change their height while they are made, so it is looked at again.
let at = -1;
const goto = (index, focus = true) => {
  if (index < 0 || index >= data.entries.length) return null;
  at = index;
  const entry = data.entries[index];
  if (has(entry, "minor")) { main.classList.add("all"); $("minor").setAttribute("aria-pressed", "true"); }
  if (main.classList.contains("calm")) setCalm(false);
  const position = Math.floor(index / SIZE);
  for (const near of [position - 1, position, position + 1]) if (blocks[near]) make(blocks[near]);
  const node = blocks[position].entries[index - blocks[position].from];
  document.querySelectorAll(".e.at").forEach((old) => old.classList.remove("at"));
  node.classList.add("at");
  node.scrollIntoView({ block: "start" });
  mark(entry);
  requestAnimationFrame(() => requestAnimationFrame(() => { if (at === index) node.scrollIntoView({ block: "start" }); }));
  if (focus) node.focus({ preventScroll: true });
  return node;
};
const go = (seq) => { history.replaceState(null, "", `#e${seq}`); follow(); };
const follow = () => {
  const found = /^#e(\d{1,16})$/.exec(location.hash);
  if (!found) return;
  const seq = Number(found[1]), index = indexOf(seq);
  const node = goto(index);
  if (node && data.entries[index].tool && data.entries[index].seq !== seq) node.querySelector("details").open = true;
  $("side").classList.remove("open");
};
addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const anchor = event.target.closest && event.target.closest('a[href^="#e"]');
  if (!anchor) return;
  event.preventDefault();
  if (location.hash === anchor.getAttribute("href")) follow(); else location.hash = anchor.getAttribute("href");
});

// Which turn is on the screen.
let marked = null;
const mark = (entry) => {
  const next = entry && turnLinks.get(entry.turn);
  if (!next || next === marked) return;
  if (marked) marked.removeAttribute("aria-current");
  next.setAttribute("aria-current", "true");
  const box = next.getBoundingClientRect(), side = $("side").getBoundingClientRect();
  if (side.height && (box.top < side.top || box.bottom > side.bottom)) $("side").scrollTop += box.top - side.top - side.height / 3;
  marked = next;
};
const look = () => {
  const x = Math.min(innerWidth - 20, main.getBoundingClientRect().left + 60);
  for (const y of [110, 150, 190, 260]) {
    const probe = document.elementFromPoint(x, y), node = probe && probe.closest(".e");
    if (node) return mark(data.entries[node.position]);
  }
};
let scheduled = false;
addEventListener("scroll", () => { if (!scheduled) { scheduled = true; requestAnimationFrame(() => { scheduled = false; look(); }); } }, { passive: true });

// Search: over the data, not over what happens to be on the screen.
const hay = new Array(data.entries.length);
const toolText = (tool) => [tool.name, tool.arguments || "", ...(tool.result || []).map((part) => part.text), tool.error || "", ...(tool.children || []).map(toolText)].join("\n");
const textOf = (i) => {
  if (hay[i] === undefined) {
    const entry = data.entries[i];
    hay[i] = [entry.label || "", entry.note || "", entry.speaker || "", ...(entry.fragments || []).map((part) => part.text), ...(entry.todos || []).map((row) => row[1]), entry.tool ? toolText(entry.tool) : ""].join("\n").toLowerCase();
  }
  return hay[i];
};
const search = (text) => {
  query = text.trim().toLowerCase();
  hits = []; hit = -1;
  if (query) for (let i = 0; i < data.entries.length; i++) if (textOf(i).includes(query)) hits.push(i);
  said();
  paint();
};
const said = () => { $("hits").textContent = !query ? "" : hits.length ? `${hit < 0 ? "" : `${hit + 1} / `}${hits.length}` : "nothing"; };
const step = (by) => {
  if (!hits.length) return;
  hit = hit < 0 ? (by > 0 ? 0 : hits.length - 1) : (hit + by + hits.length) % hits.length;
  said();
  const node = goto(hits[hit], false);
  const entry = data.entries[hits[hit]];
  const shown = (entry.fragments || []).some((part) => part.kind === "text" && part.text.toLowerCase().includes(query));
  if (node && (!shown || entry.kind === "context")) node.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  setTimeout(paint, 60);
};
const paint = () => {
  if (!globalThis.Highlight || !CSS.highlights) return;
  CSS.highlights.delete("found");
  if (!query) return;
  const ranges = [];
  for (const block of blocks) {
    if (!block.full) continue;
    const walker = document.createTreeWalker(block.node, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && ranges.length < 2000) {
      const text = walker.currentNode.data.toLowerCase();
      for (let i = text.indexOf(query); i >= 0 && ranges.length < 2000; i = text.indexOf(query, i + query.length)) {
        const range = document.createRange();
        try { range.setStart(walker.currentNode, i); range.setEnd(walker.currentNode, i + query.length); ranges.push(range); } catch { break; }
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
};
let typing = 0;
$("q").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => search($("q").value), data.entries.length > 5000 ? 250 : 60); });
$("q").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); if ($("q").value.trim().toLowerCase() !== query) search($("q").value); step(event.shiftKey ? -1 : 1); }
  if (event.key === "Escape") { $("q").value = ""; search(""); $("q").blur(); }
});
$("next").addEventListener("click", () => step(1));
$("prev").addEventListener("click", () => step(-1));

// Buttons and keys.
const setCalm = (on) => { main.classList.toggle("calm", on); $("calm").setAttribute("aria-pressed", String(on)); };
const openAll = () => {
  allOpen = !allOpen;
  $("open").setAttribute("aria-pressed", String(allOpen));
  if (!allOpen) opened.clear();
  talk.querySelectorAll("details").forEach((node) => { node.open = allOpen; });
};
const theme = (name) => {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("sessionstore-theme", name); } catch { /* opened from disk without storage */ }
};
try { const kept = localStorage.getItem("sessionstore-theme"); if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept; } catch { /* as above */ }
const flip = () => {
  const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  theme(now === "dark" ? "light" : "dark");
};
const nextTurn = (by) => {
  const here = at < 0 ? (marked ? data.turns.findIndex((turn) => turnLinks.get(turn.number) === marked) : -1) : data.turns.findLastIndex((turn) => turn.seq <= data.entries[at].seq);
  const turn = data.turns[Math.max(0, Math.min(data.turns.length - 1, here + by))];
  if (turn) go(turn.seq);
};
const nextEntry = (by) => {
  let i = at + by;
  while (i > 0 && i < data.entries.length - 1 && has(data.entries[i], "minor") && !main.classList.contains("all")) i += by;
  goto(i);
};
$("open").addEventListener("click", openAll);
$("calm").addEventListener("click", () => setCalm(!main.classList.contains("calm")));
$("minor").addEventListener("click", () => $("minor").setAttribute("aria-pressed", String(main.classList.toggle("all"))));
$("theme").addEventListener("click", flip);
$("menu").addEventListener("click", () => $("menu").setAttribute("aria-expanded", String($("side").classList.toggle("open"))));
for (const twin of document.querySelectorAll("[data-for]")) {
  twin.addEventListener("click", () => { $(twin.dataset.for).click(); twin.setAttribute("aria-pressed", $(twin.dataset.for).getAttribute("aria-pressed")); });
}
$("help").addEventListener("click", () => $("keys").showModal());
$("close").addEventListener("click", () => $("keys").close());
const keys = { "/": () => $("q").focus(), j: () => nextEntry(1), k: () => nextEntry(-1), "]": () => nextTurn(1), "[": () => nextTurn(-1),
  n: () => step(1), p: () => step(-1), e: openAll, c: () => $("calm").click(), a: () => $("minor").click(), t: flip, "?": () => $("keys").showModal() };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || $("keys").open) return;
  if (event.key === "Escape") { $("side").classList.remove("open"); return; }
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
});
addEventListener("beforeprint", () => blocks.forEach(make));

// Charts, drawn again when the width changes.
const draw = () => {
  drawTimeline($("timeline"), data, go);
  drawTokens($("tokens-in"), data.turns, [["cacheRead", "from cache", "cache"], ["cacheWrite", "written to cache", "write"], ["input", "fresh", "in"]], go, "Tokens read per turn");
  drawTokens($("tokens-out"), data.turns, [["output", "out", "out"]], go, "Tokens written per turn");
};
draw();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
follow();
look();
document.documentElement.dataset.ready = "true";
