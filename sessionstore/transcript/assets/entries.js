// One entry of the transcript as elements.
const ENDINGS = {
  completed: "completed", interrupted: "interrupted: its process ended before it did; closed by recovery", aborted: "aborted",
  error: "ended with an error", "max-tokens": "stopped at the token limit", disposed: "stopped: the session was closed", blocked: "blocked",
};
const OUTCOMES = {
  ok: ["ok", ""], error: ["failed", "bad"], unknown: ["outcome unknown", "warn"], "not-started": ["never started", "warn"],
  running: ["no result yet", "warn"], unanswered: ["no result", "warn"],
};
const has = (entry, flag) => (entry.flags || []).includes(flag);
const link = (seq) => el("a", { class: "link", href: `#e${seq}`, "aria-label": `Permalink to event ${seq}` }, `#${seq}`);
const grow = () => el("span", { class: "grow" });
const usageText = (usage) => {
  if (!usage) return "";
  const read = (usage.input || 0) + (usage.cacheRead || 0) + (usage.cacheWrite || 0);
  if (!read && !usage.output) return "";
  return `${tokens(read)} in${usage.cacheRead ? ` (${tokens(usage.cacheRead)} cached)` : ""}, ${tokens(usage.output || 0)} out`;
};
const turnFacts = (turn) => [
  turn.end !== undefined ? span(Math.max(0, turn.end - turn.start)) : "", plural((turn.steps || []).length, "step"),
  turn.tools ? plural(turn.tools, "tool call") + (turn.failures ? ` (${turn.failures} failed)` : "") : "", usageText(turn.usage),
].filter(Boolean).join(" · ");
const troubled = (turn) => turn.ended !== "completed";
const badge = (turn) => {
  if (!troubled(turn)) return null;
  const kind = turn.ended ?? "open";
  return el("span", { class: `badge ${kind === "error" ? "bad" : "warn"}` }, kind === "open" ? "open: running, or broken off" : kind === "interrupted" ? "interrupted · recovered" : kind);
};

const showFragments = (entry) => {
  const out = document.createDocumentFragment();
  for (const part of entry.fragments || []) {
    if (part.kind === "reasoning") {
      out.append(fold(entry, "reasoning", el("summary", {}, "Reasoning", el("span", { class: "m" }, chars(part.text.length))), () => el("div", { class: "body" }, markdown(part.text))));
    } else if (part.kind === "text") {
      out.append(el("div", { class: "body" }, entry.kind === "assistant" ? markdown(part.text) : long(part.text, "div", "plain")));
    } else out.append(el("div", { class: "body" }, el("code", {}, part.text)));
  }
  return out;
};

// A fold whose inside is made when it is first opened, and that remembers being open when its block is made again.
const opened = new Set();
const fold = (entry, cls, summary, inside) => {
  const node = el("details", { class: cls === "reasoning" ? "fold reasoning" : cls });
  const key = `${entry.seq}/${cls.split(" ")[0]}/${entry.folds = (entry.folds || 0) + 1}`;
  node.append(summary);
  const fill = () => { if (!node.dataset.full) { node.dataset.full = "1"; node.append(inside()); } };
  node.addEventListener("toggle", () => { if (node.open) { fill(); opened.add(key); } else opened.delete(key); });
  if (opened.has(key)) { fill(); node.open = true; }
  return node;
};

const showTool = (entry, tool, nested) => {
  const [word, cls] = OUTCOMES[tool.outcome ?? "running"];
  const seq = tool.callSeq ?? tool.resultSeq ?? entry.seq;
  const facts = [["ok", "error"].includes(tool.outcome) ? "" : word, tool.error && tool.outcome === "error" ? tool.error : "", tool.started !== undefined && tool.ended !== undefined ? span(Math.max(0, tool.ended - tool.started)) : ""].filter(Boolean).join(" · ");
  const summary = el("summary", {}, el("span", { class: "name" }, tool.name || "?"), el("span", { class: "peek" }, (tool.arguments || "").slice(0, 300)),
    el("span", { class: "m" }, facts), cls ? el("span", { class: `badge ${cls}` }, has(entry, "recovered") && !nested ? "recovered" : cls === "bad" ? "failed" : "!") : null, link(seq));
  const inside = () => {
    const box = el("div", { class: "inside" });
    if (tool.arguments) box.append(el("h4", {}, "Arguments"), long(pretty(tool.arguments), "pre", ""));
    for (const child of tool.children || []) box.append(showTool(entry, child, true));
    if (tool.result) box.append(el("h4", {}, "Result", tool.resultSeq !== undefined ? link(tool.resultSeq) : ""));
    for (const part of tool.result || []) box.append(long(part.text, "pre", ""));
    if (!tool.result) box.append(el("p", { class: "notice" }, word));
    if (tool.prunedSeq !== undefined) box.append(el("p", { class: "notice" }, `What the model sees of this was shortened at event ${tool.prunedSeq}.`));
    return box;
  };
  return fold(entry, `tool ${cls}`, summary, inside);
};

const NAMES = { user: "You", steering: "You, while it ran", context: "Context", assistant: "Assistant" };
const showMessage = (entry) => {
  const extra = [entry.label, entry.note].filter(Boolean).join(" · ");
  const who = entry.speaker && entry.speaker !== "user" ? entry.speaker : "";
  if (entry.kind === "context") {
    return fold(entry, "fold", el("summary", {}, el("span", {}, `Context${who ? ` · ${who}` : ""}${extra ? ` · ${extra}` : ""}`), grow(), link(entry.seq)), () => el("div", { class: "body" }, showFragments(entry)));
  }
  const box = document.createDocumentFragment();
  box.append(el("p", { class: "who" }, el("b", {}, NAMES[entry.kind]), who, el("span", {}, when(entry.time, true)), extra ? el("span", {}, extra) : "",
    has(entry, "partial") ? el("span", { class: "badge warn" }, "broke off") : "", grow(), link(entry.seq)), showFragments(entry));
  return box;
};

const showEntry = (entry, turnOf) => {
  entry.folds = 0;
  const turn = turnOf(entry);
  const node = el("article", { class: `e ${entry.kind === "tool" ? "tool-e" : entry.kind} ${(entry.flags || []).join(" ")}`, tabindex: -1 });
  if (entry.kind === "turn-start") {
    if (turn && troubled(turn)) node.classList.add("bad");
    node.append(el("h2", {}, entry.label, turn ? badge(turn) : "", el("span", { class: "m" }, when(entry.time), entry.note ? ` · ${entry.note}` : ""), grow(), link(entry.seq)));
  } else if (entry.kind === "turn-end") {
    if (entry.label !== "completed") node.classList.add("bad");
    node.append(el("span", {}, `Turn ${entry.turn ?? "?"} ${ENDINGS[entry.label] ?? `ended: ${entry.label}`}${entry.note ? ` (${entry.note})` : ""}${turn ? ` · ${turnFacts(turn)}` : ""}`), grow(), link(entry.seq));
  } else if (entry.kind === "tool") node.append(showTool(entry, entry.tool, false));
  else if (entry.kind === "todo") {
    const rows = (entry.todos || []).map(([status, text]) => el("li", { dir: "auto", class: status === "completed" ? "done" : status === "in_progress" ? "now" : "" }, `${status === "completed" ? "☑" : status === "in_progress" ? "◪" : "☐"} ${text}`));
    node.append(el("p", { class: "who" }, el("b", {}, entry.label), grow(), link(entry.seq)), el("ul", {}, ...rows));
  } else if (entry.kind === "notice") node.append(el("span", { dir: "auto" }, el("b", {}, entry.label), entry.note ? `: ${entry.note}` : ""), grow(), link(entry.seq));
  else node.append(showMessage(entry));
  return node;
};
