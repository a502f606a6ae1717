// The clock of the charts: time in turns to scale, time between turns shortened.
const makeClock = (turns, first, last) => {
  const pieces = [];
  let end = -Infinity;
  for (const turn of turns) {
    const from = Math.max(turn.start, end), to = Math.max(from, turn.end ?? last ?? turn.start);
    pieces.push([from, to]);
    end = to;
  }
  if (!pieces.length) pieces.push([first ?? 0, Math.max(last ?? 0, first ?? 0)]);
  const active = pieces.reduce((sum, [from, to]) => sum + (to - from), 0) || 1;
  const room = active * 0.25 / pieces.length;
  const stops = [];
  let x = 0;
  pieces.forEach(([from, to], i) => {
    const gap = i ? from - pieces[i - 1][1] : 0;
    x += Math.min(gap, room);
    stops.push({ from, to, x, gap: gap > room ? gap : 0, width: to - from });
    x += to - from;
  });
  const total = x || 1;
  return {
    total, stops,
    at: (time) => {
      let low = 0, high = stops.length - 1;
      while (low < high) { const mid = (low + high + 1) >> 1; if (stops[mid].from <= time) low = mid; else high = mid - 1; }
      const stop = stops[low];
      return (stop.x + Math.min(Math.max(0, time - stop.from), stop.width)) / total;
    },
  };
};

const drawTimeline = (host, data, go) => {
  const width = Math.max(240, host.clientWidth), left = 44, inner = width - left - 4;
  const clock = makeClock(data.turns, data.firstTime, data.lastTime);
  const at = (time) => left + clock.at(time) * inner;
  const root = svg("svg", { viewBox: `0 0 ${width} 104`, height: 104, role: "img", "aria-label": `Timeline of ${plural(data.turns.length, "turn")} with their steps and tools` });
  const lane = (y, height, bars) => {
    // Bars of one kind that touch on the screen become one: a day of work has more steps than pixels.
    const merged = [];
    for (const bar of bars) {
      const x = at(bar.from), end = Math.max(x + 1.5, at(Math.max(bar.to ?? bar.from, bar.from)) - 0.5);
      const last = merged[merged.length - 1];
      if (last && last.cls === bar.cls && x < last.end + 1) { last.end = Math.max(last.end, end); last.count += 1; }
      else merged.push({ x, end, cls: bar.cls, label: bar.label, seq: bar.seq, count: 1 });
    }
    for (const { x, end, cls, label, seq, count } of merged) {
      const w = end - x;
      const rect = svg("rect", { x: x.toFixed(1), y, width: w.toFixed(1), height, rx: Math.min(2, w / 2), class: `hit ${cls}` });
      rect.append(svg("title", {}, count > 1 ? `${label()}, and ${count - 1} more` : label()));
      rect.addEventListener("click", () => go(seq));
      root.append(rect);
    }
  };
  for (const [label, y] of [["Turns", 17], ["Steps", 42], ["Tools", 66]]) root.append(svg("text", { x: 0, y }, label));
  for (const stop of clock.stops) {
    if (!stop.gap || data.turns.length > 200) continue;
    const x = left + ((stop.x) / clock.total) * inner - 3;
    const mark = svg("line", { x1: x, x2: x, y1: 4, y2: 84, class: "gap" });
    mark.append(svg("title", {}, `${span(stop.gap)} without a turn`));
    root.append(mark);
  }
  const bad = (turn) => turn.ended !== undefined && turn.ended !== "completed" ? " bad" : turn.ended === undefined ? " bad" : "";
  lane(6, 15, data.turns.map((turn) => ({ from: turn.start, to: turn.end ?? data.lastTime, seq: turn.seq, cls: `turn${bad(turn)}`, label: () => `Turn ${turn.number} · ${span(Math.max(0, (turn.end ?? data.lastTime) - turn.start))} · ${turn.ended ?? "open"}` })));
  lane(32, 12, data.turns.flatMap((turn) => (turn.steps || []).map((step) => ({ from: step.start, to: step.end ?? data.lastTime, seq: step.seq, cls: "step", label: () => `Turn ${turn.number}, step ${step.number} · ${span(Math.max(0, (step.end ?? data.lastTime) - step.start))}` }))));
  const tools = data.entries.filter((entry) => entry.tool && entry.tool.started !== undefined).map((entry) => entry.tool);
  const rows = [[], []], ends = [-Infinity, -Infinity];
  for (const tool of tools) {
    const row = ends[0] <= tool.started ? 0 : ends[1] <= tool.started ? 1 : 0;
    ends[row] = Math.max(ends[row], tool.ended ?? tool.started);
    const cls = tool.outcome === "error" ? "tool bad" : tool.outcome === "ok" ? "tool" : "tool warn";
    rows[row].push({ from: tool.started, to: tool.ended, seq: tool.callSeq, cls, label: () => `${tool.name} · ${span(Math.max(0, (tool.ended ?? tool.started) - tool.started))} · ${tool.outcome ?? "running"}` });
  }
  lane(56, 10, rows[0]);
  lane(68, 10, rows[1]);
  root.append(svg("line", { x1: left, x2: width - 4, y1: 86, y2: 86, class: "axis" }));
  const begin = svg("text", { x: left, y: 100 }, when(data.firstTime ?? 0));
  const finish = svg("text", { x: width - 4, y: 100, "text-anchor": "end" }, when(data.lastTime ?? 0));
  root.append(begin, finish);
  host.replaceChildren(root);
};

const drawTokens = (host, turns, parts, go, label) => {
  const width = Math.max(200, host.clientWidth), height = 96, base = 78;
  const shown = [];
  const per = Math.max(1, Math.ceil(turns.length / Math.floor(width / 4)));
  for (let i = 0; i < turns.length; i += per) {
    const group = turns.slice(i, i + per);
    const sums = parts.map(([key]) => group.reduce((sum, turn) => sum + ((turn.usage || {})[key] || 0), 0) / group.length);
    shown.push({ first: group[0], last: group[group.length - 1], sums, total: sums.reduce((a, b) => a + b, 0) });
  }
  const most = Math.max(1, ...shown.map((bar) => bar.total));
  const slot = Math.min(44, width / Math.max(1, shown.length));
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  root.append(svg("line", { x1: 0, x2: width, y1: base + 0.5, y2: base + 0.5, class: "axis" }));
  shown.forEach((bar, i) => {
    const group = svg("g", { class: "hit" });
    const name = bar.first === bar.last ? `Turn ${bar.first.number}` : `Turns ${bar.first.number} to ${bar.last.number}, on average`;
    group.append(svg("title", {}, `${name}: ${parts.map(([, word], k) => `${tokens(Math.round(bar.sums[k]))} ${word}`).join(", ")}`));
    let y = base;
    parts.forEach(([, , cls], k) => {
      const h = (bar.sums[k] / most) * (base - 16);
      if (h <= 0) return;
      y -= h;
      group.append(svg("rect", { x: (i * slot + slot * 0.1).toFixed(1), y: y.toFixed(1), width: (slot * 0.8).toFixed(1), height: h.toFixed(1), class: cls }));
    });
    group.addEventListener("click", () => go(bar.first.seq));
    root.append(group);
  });
  root.append(svg("text", { x: 0, y: 10 }, `${tokens(Math.round(most))} at most`));
  if (shown.length) {
    root.append(svg("text", { x: 2, y: 93 }, `Turn ${turns[0].number}`));
    if (shown.length * slot > 120) root.append(svg("text", { x: shown.length * slot - 2, y: 93, "text-anchor": "end" }, `Turn ${turns[turns.length - 1].number}`));
  }
  host.replaceChildren(root);
};
