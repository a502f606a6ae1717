// Making elements.  Text only ever becomes text nodes: nothing from the log is parsed as markup.
const el = (tag, props, ...children) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key === "on") for (const [name, fn] of Object.entries(value)) node.addEventListener(name, fn);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
};
const svg = (tag, props, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

// Numbers as people read them.
const pad = (number) => String(number).padStart(2, "0");
const span = (ms) => {
  if (ms === undefined || ms === null) return "";
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes} min ${pad(seconds % 60)} s`;
  if (hours < 48) return `${hours} h ${pad(minutes % 60)} min`;
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
};
const tokens = (count) => count < 1000 ? String(count) : count < 999950 ? `${(count / 1000).toFixed(1)}k` : `${(count / 1e6).toFixed(1)}M`;
const chars = (count) => count < 1000 ? `${count} characters` : count < 1e6 ? `${(count / 1000).toFixed(1)}k characters` : `${(count / 1e6).toFixed(1)}M characters`;
const digits = new Intl.NumberFormat("en");
const plural = (count, word) => `${digits.format(count)} ${word}${count === 1 ? "" : "s"}`;
const clocks = [new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "short" }), new Intl.DateTimeFormat([], { timeStyle: "medium" })];
const when = (ms, time) => {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? `${ms} ms` : clocks[time ? 1 : 0].format(date);
};

// The little Markdown that models write: fences, headings, lists, quotes, tables, code, bold, links.
const INLINE = /(`+)([^`]|[^`][\s\S]{0,2000}?[^`])\1(?!`)|\*\*([^*\n]{1,2000})\*\*|\[([^\]\n]{1,500})\]\((https?:\/\/[^\s)]{1,2000})\)|(https?:\/\/[^\s<>"'`)\]]{1,2000})/g;
const inline = (text) => {
  const out = document.createDocumentFragment();
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > at) out.append(text.slice(at, match.index));
    if (match[1]) out.append(el("code", {}, match[2]));
    else if (match[3]) out.append(el("strong", {}, match[3]));
    else {
      const href = match[5] || match[6];
      out.append(el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, match[4] || href));
    }
    at = match.index + match[0].length;
  }
  if (at < text.length) out.append(text.slice(at));
  return out;
};
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const markdown = (text) => {
  const out = document.createDocumentFragment();
  if (text.length > 100000) { out.append(long(text, "div", "plain")); return out; }
  const lines = text.split("\n");
  let i = 0;
  const until = (test) => { const from = i; while (i < lines.length && test(lines[i])) i++; return lines.slice(from, i); };
  while (i < lines.length) {
    const line = lines[i];
    const fence = /^\s{0,3}(`{3,}|~{3,})/.exec(line);
    const item = /^\s*(?:[-*+]|(\d{1,9})[.)])\s+/.exec(line);
    if (!line.trim()) { i++; continue; }
    if (fence) {
      i++;
      const code = until((next) => !next.trim().startsWith(fence[1]));
      i++;
      out.append(el("pre", { dir: "ltr", tabindex: 0 }, el("code", {}, code.join("\n"))));
    } else if (/^#{1,6}\s/.test(line)) {
      const level = /^#+/.exec(line)[0].length;
      out.append(el(level < 3 ? "h3" : level === 3 ? "h4" : "h5", { dir: "auto" }, inline(line.replace(/^#+\s+/, ""))));
      i++;
    } else if (item) {
      const list = el(item[1] ? "ol" : "ul", item[1] ? { start: item[1] } : {});
      for (const row of until((next) => /^\s*(?:[-*+]|\d{1,9}[.)])\s+/.test(next) || (/^\s{2,}\S/.test(next)))) {
        const found = /^(\s*)(?:[-*+]|\d{1,9}[.)])\s+/.exec(row);
        if (found || !list.lastChild) {
          const entry = el("li", { dir: "auto" }, inline(found ? row.slice(found[0].length) : row));
          entry.style.marginInlineStart = `${Math.min(5, Math.floor((found ? found[1].length : 0) / 2)) * 1.2}rem`;
          list.append(entry);
        } else list.lastChild.append(" ", inline(row.trim()));
      }
      out.append(list);
    } else if (/^\s{0,3}>/.test(line)) {
      const quoted = until((next) => /^\s{0,3}>/.test(next)).map((row) => row.replace(/^\s{0,3}>\s?/, ""));
      out.append(el("blockquote", { dir: "auto", class: "plain" }, inline(quoted.join("\n"))));
    } else if (line.includes("|") && /^\s*\|?\s*:?-{2,}/.test(lines[i + 1] || "")) {
      const head = el("tr", {}, ...cells(line).map((cell) => el("th", { dir: "auto" }, inline(cell))));
      i += 2;
      const rows = until((next) => next.includes("|")).map((row) => el("tr", {}, ...cells(row).map((cell) => el("td", { dir: "auto" }, inline(cell)))));
      out.append(el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
    } else {
      const first = i;
      const paragraph = until((next) => next.trim() && (i === first || !/^\s{0,3}(#{1,6}\s|`{3,}|~{3,}|>|[-*+]\s|\d{1,9}[.)]\s)/.test(next)));
      out.append(el("p", { dir: "auto", class: "plain" }, inline(paragraph.join("\n"))));
    }
  }
  return out;
};

// Long text: the first part, and the rest on demand.
const LONG = 20000;
const parts = (text) => {
  // Pieces that the browser lays out only when they are scrolled to, cut at line ends where there are any.
  const found = [];
  for (let from = 0; from < text.length;) {
    const end = from + LONG < text.length ? text.lastIndexOf("\n", from + LONG) : -1;
    const to = from + LONG >= text.length ? text.length : end > from ? end : from + LONG;
    found.push(el("span", { class: "part" }, text.slice(from, to)));
    from = text[to] === "\n" ? to + 1 : to;
  }
  return found;
};
const long = (text, tag, cls) => {
  const node = el(tag, { class: cls, dir: "auto", tabindex: tag === "pre" ? 0 : null }, text.length > LONG * 1.2 ? text.slice(0, LONG) : text);
  if (text.length <= LONG * 1.2) return node;
  const more = el("button", { type: "button", on: { click: () => { node.replaceChildren(...parts(text)); more.remove(); } } }, `Show all of it (${chars(text.length)})`);
  const both = document.createDocumentFragment();
  both.append(node, more);
  return both;
};
const pretty = (text) => {
  if (text.length > 200000) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
};
