"use strict";
// The page of a run. Texts of a run reach the document by textContent only.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people who see no red or green tell apart; ops beyond these share the last.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7d8894"];
const BRIGHT = new Set(["#e69f00", "#56b4e9", "#cc79a7", "#b8a800"]);  // dark letters on these
const STATES = {u: "is still running", r: "returned", f: "failed", s: "stopped for another's failure"};
const CALL_STATES = {s: "not complete", c: "completed", f: "failed"};
const FOLD_RANKS = 32;
const MOST_ROWS = 200;
const MOST_NODES = 40;
const LEFT = 84, TOP = 4, AXIS = 22;

// Characters that turn, hide or end text are written out, as the command does.
const OBEYED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]|\p{Surrogate}/gu;
const plain = (text) => text.replace(OBEYED, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);

const MOST_TEXT = 100_000;
const shown = (text) => (text.length <= MOST_TEXT ? plain(text) : `${plain(text.slice(0, MOST_TEXT))}\n... ${text.length - MOST_TEXT} more characters`);

// An element; attributes that are functions are listeners, children that are no elements are text.
function h(tag, attributes = {}, ...children) {
  const svg = tag.startsWith("svg:");
  const element = svg ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child !== null && child !== undefined && child !== "") element.append(child instanceof Node ? child : shown(String(child)));
  }
  return element;
}

function rangesText(ranges) {
  const one = ranges.length === 1 && ranges[0][0] === ranges[0][1];
  return `rank${one ? "" : "s"} ` + ranges.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
}
function rangesOf(ranks) {
  const ranges = [];
  for (const rank of ranks) {
    const last = ranges[ranges.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else ranges.push([rank, rank]);
  }
  return ranges;
}
const ranksText = (ranks) => rangesText(rangesOf(ranks));
const within = (ranges, rank) => ranges.some(([a, b]) => a <= rank && rank <= b);
function* each(ranges) {
  for (const [a, b] of ranges) for (let rank = a; rank <= b; ++rank) yield rank;
}
function timeText(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (Math.abs(ns) >= size) return `${+(ns / size).toPrecision(6)} ${unit}`;
  }
  return `${+ns.toPrecision(6)} ns`;
}
const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);

// What a page knows of a run: its calls in arrays, their partners, and where they lie along both axes.
class Run {
  constructor(data, dtypes) {
    Object.assign(this, data);
    this.dtypes = dtypes;
    this.size = data.run.world_size;
    this.lanes = Array.from({length: this.size}, () => ({count: 0, first: 0}));
    for (const line of data.calls) this.lanes[line.rank] = this.lane(line);
    this.match();
    this.order();
    this.time();
  }

  lane(line) {
    const count = line.kind.length;
    const lane = {count, first: line.made - count, kind: line.kind, seq: line.seq, state: line.state, peer: line.peer || null,
      issued: new Float64Array(count), arrived: new Float64Array(count).fill(-1), ended: new Float64Array(count),
      partner: new Int32Array(count).fill(-1)};
    let at = 0;
    for (let i = 0; i < count; ++i) {
      lane.issued[i] = at += line.issued[i];
      if (line.arrived && line.arrived[i] >= 0) lane.arrived[i] = at + line.arrived[i];
      lane.ended[i] = line.ended[i] >= 0 ? at + line.ended[i] : -1;
    }
    return lane;
  }

  // Members of one call, as indices into `meetings`: those of a collective by group and number; a send and its recv, the
  // n-th completed of their kind each.
  match() {
    this.meetings = [];
    const collectives = new Map(), messages = new Map();
    for (let rank = 0; rank < this.size; ++rank) {
      const lane = this.lanes[rank];
      lane.meeting = new Int32Array(lane.count);
      for (let i = 0; i < lane.count; ++i) {
        const kind = this.kinds[lane.kind[i]];
        if (!kind.p2p) {
          const key = `${kind.group} ${lane.seq[i]}`;
          let meeting = collectives.get(key);
          if (meeting === undefined) collectives.set(key, meeting = this.meet({group: kind.group, seq: lane.seq[i], p2p: false}));
          this.join(meeting, rank, i);
          continue;
        }
        const peer = lane.peer ? lane.peer[i] : -1;
        const gone = lane.first > 0 || (peer >= 0 && this.lanes[peer].first > 0);
        if (lane.state[i] !== "c" || peer < 0 || gone) {
          this.join(this.meet({group: kind.group, seq: lane.seq[i], p2p: true}), rank, i);
          continue;
        }
        const sends = kind.op === "send";
        const key = `${kind.group} ${sends ? rank : peer} ${sends ? peer : rank} ${kind.tag || 0}`;
        let lists = messages.get(key);
        if (!lists) messages.set(key, lists = [[], []]);
        const mine = lists[sends ? 0 : 1], theirs = lists[sends ? 1 : 0];
        mine.push([rank, i]);
        if (theirs.length >= mine.length) {
          const other = theirs[mine.length - 1];
          this.join(this.lanes[other[0]].meeting[other[1]], rank, i);
        } else {
          this.join(this.meet({group: kind.group, seq: lane.seq[i], p2p: true}), rank, i);
        }
      }
    }
    this.arrows = this.meetings.filter((m) => m.p2p && m.members.length === 2).map((m) => {
      const [a, b] = m.members;
      return this.op(a[0], a[1]) === "send" ? [a, b] : [b, a];
    });
  }
  meet(meeting) {
    meeting.members = [];
    meeting.id = this.meetings.length;
    this.meetings.push(meeting);
    return meeting.id;
  }
  join(meeting, rank, i) {
    this.meetings[meeting].members.push([rank, i]);
    this.lanes[rank].meeting[i] = meeting;
  }
  op(rank, i) { return this.kinds[this.lanes[rank].kind[i]].op; }

  // Columns: a call stands right of what its rank had waited for before it, and ends right of all its members' issues.
  order() {
    const {lanes, meetings, size} = this;
    const at = new Int32Array(size), next = new Int32Array(size);
    const come = new Int32Array(meetings.length), held = meetings.map(() => []);
    const latest = new Int32Array(meetings.length);
    for (const lane of lanes) {
      lane.order = {from: new Float64Array(lane.count), met: new Float64Array(lane.count), to: new Float64Array(lane.count)};
    }
    let ready = Array.from({length: size}, (_, rank) => rank), blocked = new Map();
    const run = (rank) => {
      const lane = lanes[rank];
      while (next[rank] < lane.count) {
        const i = next[rank]++, m = lane.meeting[i];
        lane.order.from[i] = at[rank];
        latest[m] = Math.max(latest[m], at[rank]);
        const waited = i + 1 < lane.count && lane.ended[i] >= 0 && lane.ended[i] <= lane.issued[i + 1];
        at[rank] += 1;
        if (++come[m] === meetings[m].members.length) {
          for (const other of held[m]) {
            blocked.delete(other);
            at[other] = Math.max(at[other], latest[m] + 1);
            ready.push(other);
          }
          held[m] = [];
          if (waited) at[rank] = Math.max(at[rank], latest[m] + 1);
        } else if (waited) {
          held[m].push(rank);
          blocked.set(rank, m);
          return;
        }
      }
    };
    for (;;) {
      while (ready.length) run(ready.pop());
      if (!blocked.size) break;
      // A rank that had not waited after all: it goes on.
      let least = -1;
      for (const rank of blocked.keys()) if (least < 0 || at[rank] < at[least]) least = rank;
      const m = blocked.get(least);
      blocked.delete(least);
      held[m] = held[m].filter((rank) => rank !== least);
      ready.push(least);
    }
    let end = 1;
    for (const lane of lanes) {
      for (let i = 0; i < lane.count; ++i) {
        // A call that failed had not all members; the last of its rank, until the run ended.
        const met = latest[lane.meeting[i]], failed = lane.state[i] === "f";
        lane.order.to[i] = lane.state[i] === "s" || (failed && i + 1 === lane.count) ? Infinity : met + 1;
        lane.order.met[i] = failed ? lane.order.to[i] : met;
        end = Math.max(end, met + 1);
      }
    }
    this.orderEnd = end + 0.5;
  }

  time() {
    let end = this.run.end_ns || 0;
    for (const lane of this.lanes) for (let i = 0; i < lane.count; ++i) end = Math.max(end, lane.issued[i], lane.ended[i]);
    this.timeEnd = end;
    for (const lane of this.lanes) {
      lane.time = {from: lane.issued, met: new Float64Array(lane.count), to: new Float64Array(lane.count)};
      for (let i = 0; i < lane.count; ++i) {
        const to = lane.ended[i] >= 0 ? lane.ended[i] : Infinity;
        let met = lane.arrived[i];
        if (met < 0 && lane.state[i] === "f") {
          met = to;
        } else if (met < 0) {  // the last to come, if all of them are in the file
          const meeting = this.meetings[lane.meeting[i]];
          const all = meeting.p2p ? 2 : this.groups[meeting.group].size;
          met = Infinity;
          if (meeting.members.length === all) {
            met = 0;
            for (const [r, j] of meeting.members) met = Math.max(met, this.lanes[r].issued[j]);
          }
        }
        lane.time.to[i] = to;
        lane.time.met[i] = Math.min(met, to);
      }
    }
    for (const lane of this.lanes) {
      for (const axis of [lane.order, lane.time]) {
        axis.reach = new Float64Array(lane.count);
        let most = -1;
        for (let i = 0; i < lane.count; ++i) axis.reach[i] = most = Math.max(most, axis.to[i]);
      }
    }
  }

  sizes(kind) {
    if (!kind.in.length && !kind.out.length) return "";
    const side = (list) => list.map((sizes) => `[${sizes.join(", ")}]`).join(" ") || "nothing";
    const a = side(kind.in), b = side(kind.out);
    return `${this.dtypes[kind.dtype] || `dtype ${kind.dtype}`} ${a === b ? a : `${a} -> ${b}`}`;
  }
  label(rank, i) {
    const lane = this.lanes[rank], kind = this.kinds[lane.kind[i]];
    const peer = lane.peer && lane.peer[i] >= 0 ? ` ${kind.op === "send" ? "to" : "from"} rank ${lane.peer[i]}` : "";
    return `${kind.op} seq ${lane.seq[i]}${peer}${kind.tag ? `, tag ${kind.tag}` : ""}${kind.root >= 0 ? ` root ${kind.root}` : ""}`;
  }
  site(rank, i) {
    const kind = this.kinds[this.lanes[rank].kind[i]];
    return `${baseName(kind.file)}:${kind.line}`;
  }
  group(rank, i) { return this.groups[this.kinds[this.lanes[rank].kind[i]].group]; }
  members(group) {
    return group.ranks || Array.from({length: group.size}, (_, i) => group.first + i * group.stride);
  }
}

// --- what the page shows now; all of it stands in the URL's fragment

const view = {axis: "", x: null, y: null, rank: "", group: "", op: "", text: "", call: "", theme: "", rows: ""};
let runs = [], difference = null, timelines = [], legend = null, sources = {};

function readFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(view)) {
    const value = given.get(name) || "";
    if (name === "x" || name === "y") {
      const pair = value.split(",").map(Number);
      view[name] = pair.length === 2 && pair.every(Number.isFinite) && pair[0] < pair[1] ? pair : null;
    } else {
      view[name] = value;
    }
  }
  if (!["order", "time"].includes(view.axis)) view.axis = runs.some((run) => run.run.schedule === "free") ? "time" : "order";
  if (view.axis === "time" && !runs.some((run) => run.timeEnd > 0)) view.axis = "order";
}
function writeFragment() {
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    if (value) kept.set(name, Array.isArray(value) ? value.map((n) => +n.toPrecision(9)).join(",") : value);
  }
  history.replaceState(null, "", `#${kept}`);
}
function changed() {
  writeFragment();
  for (const timeline of timelines) timeline.draw();
}
function setTheme() {
  const dark = view.theme ? view.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function rankFilter() {
  const wanted = [];
  for (const part of view.rank.split(",")) {
    const found = /^\s*(\d+)\s*(?:-\s*(\d+))?\s*$/.exec(part);
    if (found) wanted.push([+found[1], found[2] === undefined ? +found[1] : +found[2]]);
  }
  return wanted.length ? wanted : null;
}

// --- the timeline

class Timeline {
  constructor(run, number) {
    this.run = run;
    this.number = number;
    this.canvas = h("canvas", {class: "bars", tabindex: "0", role: "img", "data-run": number,
      "aria-label": `Timeline of ${run.size} ranks. Arrows pan, plus and minus zoom, n and p choose a call, j and k a rank, 0 shows all.`});
    this.over = h("canvas");
    this.box = h("div", {class: "lanes"}, this.canvas, this.over);
    this.under = h("div", {class: "under mono soft"}, " ");
    this.element = h("div", {}, this.box, this.under);
    this.colours = new Map();
    this.pointer = null;
    this.frames = 0;
    this.listen();
  }

  shownRanks() {
    const wanted = rankFilter();
    if (this.cachedFor !== view.rank) {
      this.cachedFor = view.rank;
      this.cached = [];
      for (let rank = 0; rank < this.run.size; ++rank) if (!wanted || within(wanted, rank)) this.cached.push(rank);
      this.placeOf = new Map(this.cached.map((rank, place) => [rank, place]));
    }
    return this.cached;
  }
  fits() {
    const key = `${view.group}\n${view.op}\n${view.text}`;
    if (this.fitsFor !== key) {
      this.fitsFor = key;
      const text = view.text.toLowerCase();
      this.fitting = this.run.kinds.map((kind) => {
        const group = this.run.groups[kind.group].name;
        const all = `${kind.op} ${group} ${this.run.groups[kind.group].description} ${kind.file}:${kind.line} ${this.run.sizes(kind)}`;
        return (!view.group || group === view.group) && (!view.op || kind.op === view.op) && all.toLowerCase().includes(text);
      });
    }
    return this.fitting;
  }
  fullEnd() {
    const ends = runs.map((run) => (view.axis === "time" ? run.timeEnd * 1.02 : run.orderEnd));
    return Math.max(...ends, view.axis === "time" ? 1 : 1);
  }
  span() { return view.x || [0, this.fullEnd()]; }
  rows() {
    const count = Math.max(1, this.shownRanks().length);
    const [a, b] = view.y || [0, count];
    return a < count ? [Math.max(0, a), Math.min(b, count)] : [0, count];
  }
  scale() {
    const [x0, x1] = this.span(), [y0, y1] = this.rows();
    const width = this.width - LEFT;
    return {x0, x1, y0, y1, px: width / (x1 - x0), lane: (this.height - TOP - AXIS) / (y1 - y0),
      x: (value) => LEFT + ((value - x0) * width) / (x1 - x0), y: (place) => TOP + ((place - y0) * (this.height - TOP - AXIS)) / (y1 - y0)};
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.drawNow();
    });
  }
  resize() {
    const ranks = this.shownRanks().length;
    this.width = Math.max(300, this.box.clientWidth);
    this.height = TOP + AXIS + Math.min(620, Math.max(60, ranks * (ranks <= 20 ? 26 : 18)));
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.over]) {
      const width = Math.round(this.width * ratio), height = Math.round(this.height * ratio);
      if (canvas.width !== width || canvas.height !== height) {
        canvas.width = width;
        canvas.height = height;
        canvas.style.height = `${this.height}px`;
      }
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.ratio = ratio;
  }

  colour(op) { return legend.get(op) || COLOURS[COLOURS.length - 1]; }

  // First call of a lane that may reach into the view.
  static firstIn(lane, axis, left) {
    let low = 0, high = lane.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (axis.reach[middle] < left) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  drawNow() {
    this.resize();
    const c = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const theme = (name) => style.getPropertyValue(name).trim();
    this.theme = {back: theme("--back"), front: theme("--front"), soft: theme("--soft"), line: theme("--line"), hot: theme("--hot"),
      panel: theme("--panel")};
    c.fillStyle = this.theme.back;
    c.fillRect(0, 0, this.width, this.height);
    const scale = this.scale(), ranks = this.shownRanks();
    this.drawn = 0;
    this.heat = scale.lane < 5;
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP, this.width - LEFT, this.height - TOP - AXIS);
    c.clip();
    if (this.heat) this.drawHeat(c, scale, ranks);
    else this.drawBars(c, scale, ranks);
    c.restore();
    this.drawNames(c, scale, ranks);
    this.drawAxis(c, scale);
    this.drawOver();
    ++this.frames;
    this.canvas.dataset.drawn = this.drawn;
    this.canvas.dataset.heat = this.heat;
    this.canvas.dataset.ranks = ranks.length;
  }

  drawNames(c, scale, ranks) {
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    const step = Math.max(1, Math.ceil(14 / scale.lane));
    for (let place = Math.ceil(scale.y0 / step) * step; place < scale.y1; place += step) {
      const rank = ranks[place], y = scale.y(place) + (scale.lane * Math.min(step, 1)) / 2;
      const state = this.run.states[rank];
      const inCircle = this.run.cycle.includes(rank);
      c.fillStyle = state === "f" || inCircle ? this.theme.hot : this.theme.front;
      c.fillText(`${state === "f" ? "\u2717" : inCircle ? "\u21bb" : state === "r" ? "\u2713" : "\u25a0"} rank ${rank}`, 6, y, LEFT - 10);
    }
  }

  drawAxis(c, scale) {
    const y = this.height - AXIS, width = scale.x1 - scale.x0;
    let step = 10 ** Math.floor(Math.log10(width / 6));
    for (const factor of [1, 2, 5, 10]) {
      if (width / (step * factor) <= 9) {
        step *= factor;
        break;
      }
    }
    if (view.axis === "order") step = Math.max(1, Math.round(step));
    c.strokeStyle = this.theme.line;
    c.fillStyle = this.theme.soft;
    c.font = "11px system-ui, sans-serif";
    c.beginPath();
    c.moveTo(LEFT, y + 0.5);
    c.lineTo(this.width, y + 0.5);
    for (let value = Math.ceil(scale.x0 / step) * step; value <= scale.x1; value += step) {
      const x = Math.round(scale.x(value)) + 0.5;
      c.moveTo(x, y);
      c.lineTo(x, y + 4);
      c.fillText(view.axis === "time" ? timeText(Math.abs(value) < step / 2 ? 0 : value) : `${value}`, x + 3, y + 11);
    }
    c.stroke();
  }

  drawBars(c, scale, ranks) {
    const run = this.run, fits = this.fits(), right = this.width + 4;
    const gap = scale.lane > 12 ? 3 : 1;
    const hatch = this.hatch(c);
    for (let place = Math.floor(scale.y0); place < scale.y1; ++place) {
      const rank = ranks[place], lane = run.lanes[rank], axis = lane[view.axis];
      const y = scale.y(place) + gap, tall = Math.max(1, scale.lane - 2 * gap);
      c.fillStyle = this.theme.line;
      c.fillRect(LEFT, scale.y(place) + scale.lane - 0.5, this.width, 0.5);
      if (lane.first > 0) {
        c.fillStyle = hatch;
        c.fillRect(LEFT, y, Math.min(14, scale.x(lane.count ? axis.from[0] : 0) - LEFT), tall);
      }
      let filled = -1;  // pixels, of a lane whose calls are narrower than one
      for (let i = Timeline.firstIn(lane, axis, scale.x0); i < lane.count && axis.from[i] <= scale.x1; ++i) {
        if (axis.to[i] < scale.x0 || !fits[lane.kind[i]]) continue;
        const open = axis.to[i] === Infinity;
        const a = Math.max(scale.x(axis.from[i]), LEFT - 2), b = open ? right : Math.min(scale.x(axis.to[i]), right);
        if (b < filled) continue;
        filled = Math.floor(Math.max(a + 1, b)) > filled + 1 ? -1 : Math.floor(b);
        const m = Math.min(Math.max(scale.x(axis.met[i]), a), b), wide = Math.max(b - a - (scale.px > 4 ? 1.5 : 0), 1.5);
        const colour = this.colour(this.op(lane, i));
        ++this.drawn;
        c.globalAlpha = 0.3;
        c.fillStyle = colour;
        c.fillRect(a, y, wide, tall);
        c.globalAlpha = 1;
        if (!open && b > m) c.fillRect(Math.min(m, a + wide - 1.5), y, Math.max(1.5, a + wide - m), tall);
        else if (!open) c.fillRect(a + wide - 1.5, y, 1.5, tall);
        if (open || lane.state[i] === "f") {
          c.fillStyle = hatch;
          c.fillRect(a, y, wide, tall);
          c.strokeStyle = this.theme.hot;
          c.lineWidth = 1.5;
          c.strokeRect(a + 0.75, y + 0.75, wide - 1.5, tall - 1.5);
        }
        if (wide > 46 && tall > 10) {
          const onPale = open || m - a > 46;
          c.fillStyle = onPale ? this.theme.front : BRIGHT.has(colour) ? "#101418" : "#ffffff";
          c.font = "11px system-ui, sans-serif";
          c.textBaseline = "middle";
          c.save();
          c.beginPath();
          c.rect(a, y, onPale && !open ? m - a : wide, tall);
          c.clip();
          c.fillText(`${this.op(lane, i)} ${lane.seq[i]}`, a + 4, y + tall / 2);
          c.restore();
        }
      }
    }
    this.drawArrows(c, scale);
    this.drawDifference(c, scale);
  }
  op(lane, i) { return this.run.kinds[lane.kind[i]].op; }

  hatch(c) {
    if (!this.pattern || this.patternOf !== this.theme.hot) {
      const tile = h("canvas", {width: 6, height: 6}), t = tile.getContext("2d");
      t.strokeStyle = this.theme.hot;
      t.globalAlpha = 0.55;
      t.beginPath();
      for (const offset of [-6, 0, 6]) {
        t.moveTo(offset, 6);
        t.lineTo(offset + 6, 0);
      }
      t.stroke();
      this.pattern = c.createPattern(tile, "repeat");
      this.patternOf = this.theme.hot;
    }
    return this.pattern;
  }

  drawArrows(c, scale) {
    const run = this.run, fits = this.fits();
    c.strokeStyle = c.fillStyle = this.theme.front;
    c.lineWidth = 1;
    let shown = 0;
    for (const [[from, i], [to, j]] of run.arrows) {
      const a = run.lanes[from], b = run.lanes[to];
      const begin = a[view.axis].from[i], end = b[view.axis].to[j];
      if (end < scale.x0 || begin > scale.x1 || !fits[a.kind[i]] || !fits[b.kind[j]]) continue;
      const p = this.placeOf.get(from), q = this.placeOf.get(to);
      if (p === undefined || q === undefined || p === q) continue;
      if ((p < scale.y0 && q < scale.y0) || (p > scale.y1 && q > scale.y1)) continue;
      if (++shown > 3000) break;
      const x0 = scale.x(begin) + 2, x1 = scale.x(end) - 2;
      const y0 = scale.y(p) + scale.lane / 2, y1 = scale.y(q) + (q > p ? scale.lane * 0.2 : scale.lane * 0.8);
      const angle = Math.atan2(y1 - y0, x1 - x0);
      c.globalAlpha = 0.75;
      c.beginPath();
      c.moveTo(x0, y0);
      c.lineTo(x1, y1);
      c.stroke();
      c.beginPath();
      c.moveTo(x1, y1);
      c.lineTo(x1 - 7 * Math.cos(angle - 0.4), y1 - 7 * Math.sin(angle - 0.4));
      c.lineTo(x1 - 7 * Math.cos(angle + 0.4), y1 - 7 * Math.sin(angle + 0.4));
      c.fill();
    }
    c.globalAlpha = 1;
    this.canvas.dataset.arrows = shown;
  }

  differing() {
    if (!difference || difference.rank < 0 || difference.rank >= this.run.size) return null;
    const lane = this.run.lanes[difference.rank], i = difference.index - lane.first;
    const x = i >= 0 && i < lane.count ? lane[view.axis].from[i] : lane.count ? lane[view.axis].from[lane.count - 1] + 1 : 0;
    return {x, place: this.placeOf.get(difference.rank)};
  }
  drawDifference(c, scale) {
    const at = this.differing();
    if (!at) return;
    const x = Math.round(scale.x(at.x)) - 1;
    c.strokeStyle = this.theme.hot;
    c.lineWidth = 2;
    c.setLineDash([6, 4]);
    c.beginPath();
    c.moveTo(x, TOP);
    c.lineTo(x, this.height - AXIS);
    c.stroke();
    c.setLineDash([]);
    c.fillStyle = this.theme.hot;
    c.font = "bold 11px system-ui, sans-serif";
    c.textBaseline = "top";
    c.fillText("first difference", x + 4, TOP + 1);
    if (at.place !== undefined) c.strokeRect(x + 2, scale.y(at.place) + 2, Math.max(10, scale.px * (view.axis === "order" ? 1 : 0)), scale.lane - 4);
  }

  // A row of pixels stands for one rank or several: blue where ranks work, orange where they wait, the stronger the more of them.
  drawHeat(c, scale, ranks) {
    const run = this.run, fits = this.fits();
    const width = Math.max(1, Math.ceil((this.width - LEFT) / 2)), height = Math.max(1, Math.round(this.height - TOP - AXIS));
    const wait = new Float32Array(width * height), work = new Float32Array(width * height), per = new Uint16Array(height);
    const factor = width / (scale.x1 - scale.x0);
    const place0 = Math.floor(scale.y0);
    for (let place = place0; place < scale.y1; ++place) {
      const rank = ranks[place], lane = run.lanes[rank], axis = lane[view.axis];
      const first = Math.max(0, Math.floor(scale.y(place) - TOP));
      const last = Math.min(height, Math.max(first + 1, Math.floor(scale.y(place + 1) - TOP)));
      for (let row = first; row < last; ++row) ++per[row];
      for (let i = Timeline.firstIn(lane, axis, scale.x0); i < lane.count && axis.from[i] <= scale.x1; ++i) {
        if (axis.to[i] < scale.x0 || !fits[lane.kind[i]]) continue;
        ++this.drawn;
        const a = Math.max(0, Math.floor((axis.from[i] - scale.x0) * factor));
        const m = Math.min(width, Math.max(a, Math.floor((axis.met[i] - scale.x0) * factor)));
        const open = axis.to[i] === Infinity;
        const b = open ? width : Math.min(width, Math.max(m + 1, Math.ceil((axis.to[i] - scale.x0) * factor)));
        for (let row = first; row < last; ++row) {
          const base = row * width;
          for (let x = a; x < (open ? b : m); ++x) wait[base + x] += 1;
          for (let x = m; !open && x < b; ++x) work[base + x] += 1;
        }
      }
    }
    const image = new ImageData(width, height), dark = document.documentElement.dataset.theme === "dark";
    const back = dark ? [20, 24, 29] : [255, 255, 255];
    for (let row = 0; row < height; ++row) {
      const most = Math.max(1, per[row]);
      for (let x = 0; x < width; ++x) {
        const at = row * width + x, waits = Math.min(1, wait[at] / most), works = Math.min(1 - waits, work[at] / most), pixel = 4 * at;
        const rest = 1 - waits - works;
        image.data[pixel] = back[0] * rest + 230 * waits;
        image.data[pixel + 1] = back[1] * rest + 159 * waits + 114 * works;
        image.data[pixel + 2] = back[2] * rest + 178 * works;
        image.data[pixel + 3] = 255;
      }
    }
    if (!this.small) this.small = h("canvas");
    this.small.width = width;
    this.small.height = height;
    this.small.getContext("2d").putImageData(image, 0, 0);
    c.imageSmoothingEnabled = false;
    c.drawImage(this.small, LEFT, TOP, this.width - LEFT, this.height - TOP - AXIS);
    this.drawDifference(c, scale);
  }

  // The line under the pointer, and what is chosen with its partners.
  drawOver() {
    const c = this.over.getContext("2d"), scale = this.scale();
    c.clearRect(0, 0, this.width, this.height);
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP, this.width - LEFT, this.height - TOP - AXIS);
    c.clip();
    const at = this.chosen();
    if (at) {
      for (const [rank, i] of this.run.meetings[this.run.lanes[at.rank].meeting[at.i]].members) {
        const place = this.placeOf.get(rank), axis = this.run.lanes[rank][view.axis];
        if (place === undefined) continue;
        const a = scale.x(axis.from[i]), b = Math.min(this.width + 4, scale.x(axis.to[i]));
        c.strokeStyle = this.theme.front;
        c.lineWidth = rank === at.rank && i === at.i ? 3 : 1.5;
        c.strokeRect(a, scale.y(place) + 1, Math.max(3, b - a - 1.5), Math.max(2, scale.lane - 2));
      }
    }
    if (this.pointer) {
      c.strokeStyle = this.theme.soft;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(Math.round(this.pointer.x) + 0.5, TOP);
      c.lineTo(Math.round(this.pointer.x) + 0.5, this.height - AXIS);
      c.stroke();
    }
    c.restore();
  }

  chosen() {
    const [run, rank, index] = view.call.split(".").map(Number);
    if (!view.call || run !== this.number || !(rank < this.run.size)) return null;
    const i = index - this.run.lanes[rank].first;
    return i >= 0 && i < this.run.lanes[rank].count ? {rank, i} : null;
  }

  hit(x, y) {
    const scale = this.scale(), ranks = this.shownRanks();
    if (x < LEFT || y < TOP || y > this.height - AXIS) return null;
    const place = Math.floor(scale.y0 + (y - TOP) / scale.lane), rank = ranks[place];
    if (rank === undefined) return null;
    const value = scale.x0 + (x - LEFT) / scale.px, slack = 3 / scale.px;
    const lane = this.run.lanes[rank], axis = lane[view.axis], fits = this.fits();
    let best = -1;
    for (let i = Timeline.firstIn(lane, axis, value - slack); i < lane.count && axis.from[i] <= value + slack; ++i) {
      if (fits[lane.kind[i]] && axis.to[i] >= value - slack) best = i;
    }
    return {rank, i: best, value};
  }

  describe(at) {
    if (!at) return " ";
    const where = view.axis === "time" ? timeText(at.value) : `column ${at.value.toFixed(1)}`;
    if (at.i < 0) return `rank ${at.rank} at ${where}`;
    const lane = this.run.lanes[at.rank];
    return `rank ${at.rank} at ${where}: ${this.run.label(at.rank, at.i)} (${CALL_STATES[lane.state[at.i]]}) ` +
      `[group ${this.run.group(at.rank, at.i).name}, ${this.run.site(at.rank, at.i)}]`;
  }

  choose(rank, i) {
    view.call = i < 0 ? "" : `${this.number}.${rank}.${this.run.lanes[rank].first + i}`;
    showDetails();
    changed();
  }
  // Scrolls so that the chosen call can be seen.
  reveal() {
    const at = this.chosen();
    if (!at) return;
    const axis = this.run.lanes[at.rank][view.axis], [x0, x1] = this.span(), width = x1 - x0;
    if (axis.from[at.i] < x0 || axis.from[at.i] > x1) this.moveTo(axis.from[at.i] - width / 3, width);
    const place = this.placeOf.get(at.rank), [y0, y1] = this.rows();
    if (place !== undefined && (place < y0 || place >= y1)) view.y = this.boundRows(place - (y1 - y0) / 2, y1 - y0);
  }

  moveTo(x, width) {
    const full = this.fullEnd();
    const wide = Math.min(full, Math.max(width, view.axis === "time" ? 10 : 0.5));
    const from = Math.min(Math.max(0, x), full - wide);
    view.x = wide > full * 0.9999 ? null : [from, from + wide];
  }
  boundRows(y, tall) {
    const count = this.shownRanks().length, height = Math.min(count, Math.max(1, tall));
    const from = Math.min(Math.max(0, y), count - height);
    return height > count * 0.9999 ? null : [from, from + height];
  }
  zoom(factor, x) {
    const [x0, x1] = this.span(), scale = this.scale();
    const at = x === undefined ? (x0 + x1) / 2 : x0 + (x - LEFT) / scale.px;
    this.moveTo(at - (at - x0) / factor, (x1 - x0) / factor);
    changed();
  }
  zoomRows(factor, y) {
    const [y0, y1] = this.rows(), scale = this.scale();
    const at = y === undefined ? (y0 + y1) / 2 : y0 + (y - TOP) / scale.lane;
    view.y = this.boundRows(at - (at - y0) / factor, (y1 - y0) / factor);
    changed();
  }
  pan(dx, dy) {  // as shares of the view
    const [x0, x1] = this.span(), [y0, y1] = this.rows();
    this.moveTo(x0 + dx * (x1 - x0), x1 - x0);
    view.y = this.boundRows(y0 + dy * (y1 - y0), y1 - y0);
    changed();
  }
  all() {
    view.x = view.y = null;
    changed();
  }

  listen() {
    const place = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return {x: event.clientX - box.left, y: event.clientY - box.top};
    };
    let drag = null;
    this.canvas.addEventListener("wheel", (event) => {
      const at = place(event);
      event.preventDefault();
      const factor = Math.exp(-event.deltaY / 400);
      if (event.shiftKey) this.zoomRows(Math.exp(-(event.deltaY || event.deltaX) / 400), at.y);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.width, 0);
      else this.zoom(factor, at.x);
    }, {passive: false});
    this.canvas.addEventListener("pointerdown", (event) => {
      const at = place(event), [x0, x1] = this.span(), [y0, y1] = this.rows();
      drag = {at, x0, x1, y0, y1, moved: false};
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const at = place(event);
      this.pointer = at;
      if (drag && (drag.moved || Math.hypot(at.x - drag.at.x, at.y - drag.at.y) > 4)) {
        drag.moved = true;
        const scale = this.scale();
        this.moveTo(drag.x0 - (at.x - drag.at.x) / scale.px, drag.x1 - drag.x0);
        view.y = this.boundRows(drag.y0 - (at.y - drag.at.y) / scale.lane, drag.y1 - drag.y0);
        changed();
      }
      this.under.textContent = this.describe(this.hit(at.x, at.y));
      if (!this.waiting) this.drawOver();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const at = place(event), hit = this.hit(at.x, at.y);
      if (drag && !drag.moved) this.choose(hit ? hit.rank : 0, hit ? hit.i : -1);
      drag = null;
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.drawOver();
    });
    this.canvas.addEventListener("dblclick", (event) => this.zoom(3, place(event).x));
    this.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const at = this.chosen() || {rank: this.shownRanks()[0] || 0, i: -1};
      const step = (by) => {
        const lane = this.run.lanes[at.rank], fits = this.fits();
        let i = at.i < 0 && by < 0 ? lane.count : at.i;
        do i += by; while (i >= 0 && i < lane.count && !fits[lane.kind[i]]);
        if (i >= 0 && i < lane.count) this.choose(at.rank, i);
      };
      const lanes = (by) => {
        const ranks = this.shownRanks(), rank = ranks[(this.placeOf.get(at.rank) || 0) + by];
        if (rank === undefined || !this.run.lanes[rank].count) return;
        const same = at.i < 0 ? -1 : this.run.meetings[this.run.lanes[at.rank].meeting[at.i]].members.findIndex(([r]) => r === rank);
        const i = same >= 0 ? this.run.meetings[this.run.lanes[at.rank].meeting[at.i]].members[same][1] : Math.max(0, at.i);
        this.choose(rank, Math.min(i, this.run.lanes[rank].count - 1));
      };
      const keys = {ArrowLeft: () => this.pan(-0.15, 0), ArrowRight: () => this.pan(0.15, 0), ArrowUp: () => this.pan(0, -0.15),
        ArrowDown: () => this.pan(0, 0.15), "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5),
        "*": () => this.zoomRows(1.5), "/": () => this.zoomRows(1 / 1.5), 0: () => this.all(), Home: () => this.all(),
        n: () => step(1), p: () => step(-1), j: () => lanes(1), k: () => lanes(-1), Escape: () => this.choose(0, -1)};
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
      this.reveal();
      this.under.textContent = this.chosen() ? this.describe({...this.chosen(), value: this.run.lanes[this.chosen().rank][view.axis].from[this.chosen().i]})
        : this.under.textContent;
      changed();
    });
  }
}

// --- the parts of the page

function jump(run, rank) {
  const timeline = timelines[run];
  view.rank = view.group = view.op = view.text = "";
  syncControls();
  timeline.shownRanks();
  timeline.choose(rank, timeline.run.lanes[rank].count - 1);
  timeline.reveal();
  changed();
  timeline.box.scrollIntoView({block: "center"});
  timeline.canvas.focus({preventScroll: true});
}

function copyText(text, button) {
  const done = (copied) => {
    button.textContent = copied ? "copied" : "select and copy it";
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  };
  const byHand = () => {
    const area = h("textarea", {style: "position:fixed;opacity:0"});
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    done(copied);
  };
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(() => done(true), byHand);
  else byHand();
}

function head(run) {
  const failed = !run.run.ok || (run.run.failures || []).length > 0;
  const facts = [`${run.size} ranks`, `engine ${run.run.engine}`, `schedule ${run.run.schedule}`, `${run.run.steps} steps`];
  if (run.run.end_ns) facts.push(`ended at ${timeText(run.run.end_ns)}${run.run.schedule === "free" ? "" : " (virtual time)"}`);
  const outcomes = [];
  const told = new Set();
  for (const [text, ranges] of run.texts) {
    const byState = new Map();
    for (const rank of each(ranges)) {
      told.add(rank);
      if (!byState.has(run.states[rank])) byState.set(run.states[rank], []);
      byState.get(run.states[rank]).push(rank);
    }
    for (const [state, ranks] of byState) outcomes.push([state, ranks, text]);
  }
  const others = new Map();
  for (let rank = 0; rank < run.size; ++rank) {
    if (told.has(rank)) continue;
    if (!others.has(run.states[rank])) others.set(run.states[rank], []);
    others.get(run.states[rank]).push(rank);
  }
  for (const [state, ranks] of others) outcomes.push([state, ranks, ""]);
  outcomes.sort((a, b) => "fusr".indexOf(a[0]) - "fusr".indexOf(b[0]) || a[1][0] - b[1][0]);
  const cause = run.run.cause && run.run.cause.includes("\n") ? run.run.cause : run.run.text.includes("\n") ? run.run.text : "";
  return h("section", {class: "head"},
    h("h1", {class: failed ? "bad" : ""}, failed ? run.headline : "All ranks returned"),
    h("div", {class: "facts soft"}, facts.map((fact) => h("span", {}, fact)), runs.length > 1 ? h("span", {}, run.path) : null),
    run.run.rerun ? h("div", {class: "rerun"}, h("code", {}, run.run.rerun),
      h("button", {class: "copy", click: (event) => copyText(run.run.rerun, event.target)}, "copy")) : null,
    cause ? h("pre", {class: "cause"}, cause) : null,
    (run.run.failures || []).map((failure) => h("pre", {class: "failure"}, failure)),
    h("table", {class: "outcomes"}, h("tr", {}, h("th", {}, "ranks"), h("th", {}, "ended"), h("th", {}, "with")),
      outcomes.map(([state, ranks, text]) => h("tr", {"data-state": state}, h("td", {}, ranksText(ranks)), h("td", {}, STATES[state]),
        h("td", {}, text.length > 300 ? h("details", {}, h("summary", {}, text.slice(0, 200)), text) : text)))),
    run.faults.length ? [h("h2", {}, "Faults that struck"), h("ul", {class: "faults"}, run.faults.map((fault) => h("li", {class: "mono"}, fault)))] : null,
    run.notes.length ? [h("h2", {}, "Notes"), h("ul", {class: "notes"}, run.notes.map((note) => h("li", {}, note)))] : null,
    run.story ? [h("h2", {}, `Found by ${run.strategy}: the shrunk run`), h("pre", {class: "story"}, run.story)] : null);
}

// Nodes: each rank of the circle by itself; of all others those that wait alike, or ended alike, together.
function waitsGraph(run, number) {
  const circle = new Set(run.cycle), nodes = [], nodeOf = new Map();
  const add = (ranks, ended) => {
    if (!ranks.length) return;
    const node = {ranks, ended, circle: circle.has(ranks[0]), index: nodes.length};
    nodes.push(node);
    for (const rank of ranks) nodeOf.set(rank, node);
  };
  for (const rank of run.cycle.slice(0, -1)) if (!nodeOf.has(rank)) add([rank], "");
  for (const wait of run.waits) add([...each(wait.ranks)].filter((rank, i, all) => !nodeOf.has(rank) && all.indexOf(rank) === i), "");
  const ends = new Map();
  for (const wait of run.waits) {
    for (const rank of each(wait.for)) {
      if (nodeOf.has(rank)) continue;
      const end = STATES[run.states[rank]];
      if (!ends.has(end)) ends.set(end, new Set());
      ends.get(end).add(rank);
    }
  }
  for (const [end, ranks] of ends) add([...ranks].sort((a, b) => a - b), end);
  const edges = new Map();
  for (const wait of run.waits) {
    const label = `${wait.what}${wait.seq >= 0 ? ` seq ${wait.seq}` : ""}`;
    for (const rank of each(wait.ranks)) {
      const from = nodeOf.get(rank);
      for (const node of new Set([...each(wait.for)].map((to) => nodeOf.get(to)))) {
        const k = run.cycle.indexOf(rank);
        const inCircle = k >= 0 && k + 1 < run.cycle.length && node.circle && node.ranks.includes(run.cycle[k + 1]);
        const key = `${from.index} ${node.index} ${label}`;
        if (!edges.has(key)) edges.set(key, {from, to: node, label, site: `${baseName(wait.file)}:${wait.line}`, inCircle});
      }
    }
  }
  const table = h("table", {class: "waits"},
    h("tr", {}, ["ranks", "wait in", "for", "line of code", "circle"].map((name) => h("th", {}, name))),
    run.waits.map((wait) => {
      const ranks = [...each(wait.ranks)], inCircle = ranks.some((rank) => circle.has(rank));
      return h("tr", {class: inCircle ? "in-circle go" : "go", tabindex: "0", click: () => jump(number, ranks[0]),
        keydown: (event) => { if (event.key === "Enter") jump(number, ranks[0]); }},
      h("td", {}, rangesText(wait.ranks), wait.task === "rank" ? "" : ` (its ${wait.task})`),
      h("td", {}, `${wait.what}${wait.seq >= 0 ? ` seq ${wait.seq}` : ""}${wait.detail ? ` ${wait.detail}` : ""}`,
        wait.group ? ` in group ${wait.group}` : "", wait.remark ? `, ${wait.remark}` : ""),
      h("td", {}, wait.for.length ? rangesText(wait.for) : "nobody in sight"),
      h("td", {class: "mono"}, wait.file ? `${baseName(wait.file)}:${wait.line}` : ""),
      h("td", {}, inCircle ? "yes" : ""));
    }));
  if (nodes.length > MOST_NODES) {
    return [h("p", {class: "soft"}, `${nodes.length} nodes are too many for a drawing; here they are as a table.`), h("div", {class: "scroll"}, table)];
  }
  const width = 760, inner = nodes.filter((node) => node.circle), outer = nodes.filter((node) => !node.circle);
  const wide = (node) => Math.max(70, 14 + 7 * ranksText(node.ranks).slice(0, 30).length);
  const radius = inner.length ? Math.max(90, inner.length * 22) : 0;
  const ring = inner.length ? radius * 1.5 + 100 : outer.length > 1 ? Math.max(90, outer.length * 16) : 0;
  const tall = 2 * Math.max(radius, outer.length > 2 || !inner.length ? ring * 0.6 : 0) + 90;
  inner.forEach((node, i) => {
    const angle = (2 * Math.PI * i) / inner.length - Math.PI / 2;
    Object.assign(node, {x: width / 2 + radius * 1.5 * Math.cos(angle), y: tall / 2 + radius * Math.sin(angle)});
  });
  outer.forEach((node, i) => {
    const angle = (2 * Math.PI * i) / outer.length + Math.PI;
    Object.assign(node, {x: width / 2 + Math.min(300, ring * 1.3) * Math.cos(angle), y: tall / 2 + ring * 0.6 * Math.sin(angle)});
  });
  const marker = (id, name) => h("svg:marker", {id, class: name, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 9, markerHeight: 9,
    markerUnits: "userSpaceOnUse", orient: "auto"}, h("svg:path", {d: "M0 0L10 5L0 10z"}));
  const border = (node, x, y) => {  // where the line to (x, y) leaves the node's box
    const dx = x - node.x, dy = y - node.y, w = wide(node) / 2 + 2, t = 17;
    const k = Math.min(dx ? Math.abs(w / dx) : Infinity, dy ? Math.abs(t / dy) : Infinity, 1);
    return [node.x + dx * k, node.y + dy * k];
  };
  const drawn = [...edges.values()].map((edge) => {
    const title = h("svg:title", {}, `${ranksText(edge.from.ranks)} -> ${ranksText(edge.to.ranks)}: ${edge.label}, ${edge.site}`);
    const attributes = {class: edge.inCircle ? "wait in-circle" : "wait", "marker-end": `url(#arrow${number}${edge.inCircle ? "hot" : ""})`};
    const {from, to} = edge;
    if (from === to) {
      return h("svg:path", {...attributes, d: `M${from.x - 12} ${from.y - 17}c-16 -34 40 -34 24 0`}, title);
    }
    const mx = (from.x + to.x) / 2 + (to.y - from.y) * 0.14, my = (from.y + to.y) / 2 - (to.x - from.x) * 0.14;
    const [ax, ay] = border(from, mx, my), [bx, by] = border(to, mx, my);
    return [h("svg:path", {...attributes, d: `M${ax} ${ay}Q${mx} ${my} ${bx} ${by}`}, title),
      edges.size <= 16 ? h("svg:text", {class: "edge", x: (ax + 4 * mx + bx) / 6, y: (ay + 4 * my + by) / 6 - 4}, `${edge.label}, ${edge.site}`) : null];
  });
  const boxes = nodes.map((node) => h("svg:g", {class: `node${node.circle ? " in-circle" : ""}${node.ended ? " ended" : ""}`,
    "data-ranks": node.ranks.join(","), tabindex: "0", role: "button", click: () => jump(number, node.ranks[0]),
    keydown: (event) => { if (event.key === "Enter") jump(number, node.ranks[0]); }},
  h("svg:rect", {x: node.x - wide(node) / 2, y: node.y - 15, width: wide(node), height: 30, rx: 6}),
  h("svg:text", {x: node.x, y: node.y + (node.ended ? -1 : 4)}, ranksText(node.ranks).slice(0, 30)),
  node.ended ? h("svg:text", {class: "edge", x: node.x, y: node.y + 11}, node.ended) : null));
  const svg = h("svg:svg", {class: "waits", viewBox: `0 0 ${width} ${tall}`, role: "img",
    "aria-label": run.cycle.length ? `Who waits for whom. Circle: rank ${run.cycle.join(" -> rank ")}` : "Who waits for whom: no circle"},
  h("svg:defs", {}, marker(`arrow${number}`, ""), marker(`arrow${number}hot`, "hot")), drawn, boxes);
  return [svg, run.cycle.length ? h("p", {class: "circle"}, h("b", {}, "Circle: "), `rank ${run.cycle.join(" \u2192 rank ")}`) : null, table];
}

// --- who called what: a row a call of a group, a column a rank

const LIKE_SIZES = new Set(["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "all_reduce_coalesced"]);
function signature(kind) {
  const first = kind.in[0] || kind.out[0];
  const count = first ? first.reduce((a, b) => a * b, 1) : 0;
  const sizes = LIKE_SIZES.has(kind.op) ? `${kind.dtype} ${JSON.stringify([kind.in, kind.out])}` :
    kind.op === "broadcast" || kind.op === "reduce" ? `${kind.dtype} ${count}` : "";
  return `${kind.op} ${kind.root === undefined ? -1 : kind.root} ${sizes}`;
}

function matrixRows(run) {
  const rows = [], signatures = run.kinds.map((kind) => signature(kind));
  for (const meeting of run.meetings) {
    if (meeting.p2p) continue;
    const group = run.groups[meeting.group], cells = new Map(), counts = new Map();
    for (const [rank, i] of meeting.members) {
      const text = signatures[run.lanes[rank].kind[i]];
      cells.set(rank, {i, text});
      counts.set(text, (counts.get(text) || 0) + 1);
    }
    let major = "", most = 0;
    for (const [text, count] of counts) if (count > most) [major, most] = [text, count];
    const missing = [];
    for (const rank of run.members(group)) {
      if (cells.has(rank)) continue;
      const lane = run.lanes[rank];
      // A rank that has lost calls may have made it.
      let latest = -1;
      for (let i = 0; lane.first > 0 && i < lane.count && latest < 0; ++i) {
        const kind = run.kinds[lane.kind[i]];
        if (!kind.p2p && kind.group === meeting.group) latest = lane.seq[i];
      }
      const lost = lane.first > 0 && (latest < 0 || meeting.seq < latest);
      if (!lost) missing.push(rank);
    }
    const x = Math.min(...meeting.members.map(([rank, i]) => run.lanes[rank].order.from[i]));
    rows.push({meeting, group, cells, major, missing, odd: counts.size > 1 || missing.length > 0, x});
  }
  return rows.sort((a, b) => a.x - b.x || a.meeting.group - b.meeting.group || a.meeting.seq - b.meeting.seq);
}

function matrix(run, number) {
  const every = matrixRows(run);
  if (!every.length) return null;
  const odd = every.filter((row) => row.odd);
  const section = h("section", {class: "matrix"});
  const fill = () => {
    const chosen = view.rows === "all" ? every : odd.length ? odd : every.slice(-6);
    const rows = chosen.slice(-MOST_ROWS);
    const cell = (row, rank) => {
      const found = row.cells.get(rank);
      if (found) return found.text === row.major ? {kind: "same", i: found.i} : {kind: "odd", i: found.i};
      return row.missing.includes(rank) ? {kind: "none"} : {kind: ""};
    };
    let columns = Array.from({length: run.size}, (_, rank) => [rank]);
    if (run.size > FOLD_RANKS) {
      const alike = new Map();
      for (let rank = 0; rank < run.size; ++rank) {
        const key = rows.map((row) => `${cell(row, rank).kind}${row.cells.has(rank) ? row.cells.get(rank).text : ""}`).join("\n");
        if (!alike.has(key)) alike.set(key, []);
        alike.get(key).push(rank);
      }
      columns = [...alike.values()];
    }
    const body = rows.map((row) => h("tr", {}, h("th", {}, `group ${row.group.name} seq ${row.meeting.seq}`), columns.map((ranks) => {
      const {kind, i} = cell(row, ranks[0]);
      if (i === undefined) return h("td", {class: kind}, kind === "none" ? "never came" : "");
      const call = run.kinds[run.lanes[ranks[0]].kind[i]];
      return h("td", {class: kind, title: `${call.file}:${call.line}`, click: () => { timelines[number].choose(ranks[0], i); timelines[number].reveal(); changed(); }},
        `${call.op}${call.root >= 0 ? ` root ${call.root}` : ""}`, kind === "odd" ? h("div", {class: "mono"}, `${run.sizes(call)} ${run.site(ranks[0], i)}`) : null);
    })));
    section.replaceChildren(
      h("h2", {}, odd.length ? `Calls in which members differ (${odd.length} of ${every.length})` : "Calls: no member differs"),
      h("p", {class: "soft"}, "Grey: what most members called. Framed: what differs. Hatched: a member that never came.",
        rows.length < chosen.length ? ` The last ${rows.length} of ${chosen.length} rows.` : "",
        run.size > FOLD_RANKS ? " Ranks that called alike share a column." : ""),
      h("button", {class: "rows", click: () => { view.rows = view.rows === "all" ? "" : "all"; writeFragment(); fill(); }},
        view.rows === "all" ? "fewer rows" : "all rows"),
      h("div", {class: "scroll"}, h("table", {class: "calls"},
        h("tr", {}, h("th", {}, "call"), columns.map((ranks) => h("th", {}, run.size > FOLD_RANKS ? ranksText(ranks) : ranks[0]))), body)));
  };
  section.fill = fill;
  fill();
  return section;
}

// --- controls and details

let controls = {}, details = null;
function syncControls() {
  for (const [name, input] of Object.entries(controls)) input.value = view[name];
}
function makeControls() {
  const input = (name, label, attributes) => {
    controls[name] = h("input", {name, size: 12, input: (event) => { view[name] = event.target.value; if (name === "rank") view.y = null; changed(); }, ...attributes});
    return h("label", {}, label, controls[name]);
  };
  const select = (name, label, values, any) => {
    controls[name] = h("select", {name, change: (event) => { view[name] = event.target.value; if (name === "axis") view.x = null; changed(); }},
      any ? h("option", {value: ""}, any) : null, values.map(([value, text]) => h("option", {value}, text)));
    return h("label", {}, label, controls[name]);
  };
  const groups = new Map(), ops = [...legend.keys()];
  for (const run of runs) for (const group of run.groups) groups.set(group.name, `${group.name} (${group.size} ranks)`);
  const timed = runs.some((run) => run.timeEnd > 0);
  const at = () => timelines[0];
  return h("div", {class: "controls"},
    input("rank", "ranks", {placeholder: "0-3, 7"}), select("group", "group", [...groups], "all"), select("op", "op", ops.map((op) => [op, op]), "all"),
    input("text", "text", {placeholder: "op, file, shape", type: "search"}),
    select("axis", "axis", [["order", "order of calls"], ...(timed ? [["time", "time"]] : [])]),
    h("button", {class: "in", title: "zoom in: +", click: () => at().zoom(1.5)}, "+"), h("button", {class: "out", title: "zoom out: -", click: () => at().zoom(1 / 1.5)}, "\u2212"),
    h("button", {class: "all", title: "all: 0", click: () => at().all()}, "all"));
}

function makeLegend() {
  const counts = new Map();
  for (const run of runs) {
    for (const lane of run.lanes) for (let i = 0; i < lane.count; ++i) counts.set(run.kinds[lane.kind[i]].op, (counts.get(run.kinds[lane.kind[i]].op) || 0) + 1);
  }
  const ops = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  legend = new Map(ops.map(([op], i) => [op, COLOURS[Math.min(i, COLOURS.length - 1)]]));
  return h("div", {class: "legend"}, ops.map(([op, count]) => h("span", {}, h("i", {style: `background:${legend.get(op)}`}), `${op} (${count})`)),
    h("span", {class: "soft"}, "pale: until all members came; hatched: not complete or failed; many ranks: orange waits, blue works"));
}

// The lines around a call, where the page has them.
function sourceLines(kind) {
  const found = sources[`${kind.file}:${kind.line}`];
  if (!found) return null;
  return h("figure", {class: "source"}, h("figcaption", {class: "soft"}, `${found.path}, as it was when this page was made`),
    h("pre", {}, found.lines.map((text, i) => h("span", {class: found.first + i === kind.line ? "here" : null},
      `${String(found.first + i).padStart(5)}  ${text}\n`))));
}

function showDetails() {
  const [number, rank] = view.call.split(".").map(Number), timeline = timelines[number], at = view.call && timeline ? timeline.chosen() : null;
  if (!at) {
    details.replaceChildren(h("p", {class: "soft"}, "Click a call for its details. Wheel zooms (with shift: ranks), dragging pans; keys: arrows, + - 0, n p j k."));
    return;
  }
  const run = timeline.run, lane = run.lanes[rank], {i} = at, kind = run.kinds[lane.kind[i]], group = run.group(rank, i);
  const meeting = run.meetings[lane.meeting[i]];
  const came = meeting.members.map(([r]) => r).sort((a, b) => a - b);
  const missing = meeting.p2p ? [] : run.members(group).filter((r) => !came.includes(r));
  const last = meeting.members.reduce((a, b) => (run.lanes[b[0]].issued[b[1]] > run.lanes[a[0]].issued[a[1]] ? b : a));
  const rows = [["call", `${run.label(rank, i)}, call ${lane.first + i} of rank ${rank}`], ["group", `${group.name}${group.description ? ` (${group.description})` : ""}, ${group.size} ranks`],
    ["tensors", run.sizes(kind) || "none"], ["line of code", `${kind.file}:${kind.line}`], ["state", CALL_STATES[lane.state[i]]],
    ["issued", timeText(lane.issued[i])], ["all had come", lane.arrived[i] >= 0 ? timeText(lane.arrived[i]) : "not recorded"],
    ["ended", lane.ended[i] >= 0 ? timeText(lane.ended[i]) : "not yet when the run ended"],
    [meeting.p2p ? "matched with" : "members that came", meeting.p2p ? (came.length === 2 ? `rank ${came.find((r) => r !== rank)}` : "nobody, as far as the file tells") : ranksText(came)]];
  if (missing.length) rows.push(["never came", ranksText(missing)]);
  if (!meeting.p2p && came.length > 1) rows.push(["last to come", `rank ${last[0]} at ${timeText(run.lanes[last[0]].issued[last[1]])}`]);
  if (kind.timeout_ns) rows.push(["timeout", timeText(kind.timeout_ns)]);
  details.replaceChildren(...[h("table", {class: "details"}, rows.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))),
    sourceLines(kind)].filter((part) => part));
}

function gaps(run) {
  const lost = [];
  run.lanes.forEach((lane, rank) => { if (lane.first > 0) lost.push(rank); });
  const empty = [];
  run.lanes.forEach((lane, rank) => { if (!lane.count) empty.push(rank); });
  return h("section", {class: "gaps"}, h("h2", {}, "Not in this file"), h("ul", {}, run.gaps.map((gap) => h("li", {}, gap)),
    lost.length ? h("li", {}, `first calls of ${ranksText(lost)}; no arrows of their messages are drawn`) : null,
    empty.length && empty.length < run.size ? h("li", {}, `calls of ${ranksText(empty)}: none were made, or none kept`) : null,
    h("li", {}, "The order of calls is rebuilt from the calls: each stands right of what its rank had waited for before it.")));
}

function build(data) {
  difference = data.difference;
  sources = data.sources || {};
  runs = data.runs.map((run) => new Run(run, data.dtypes));
  const legendElement = makeLegend();
  readFragment();
  setTheme();
  timelines = runs.map((run, number) => new Timeline(run, number));
  details = h("div", {class: "detail", "aria-live": "polite"});
  const stuck = runs.map((run, number) => (run.waits.length ? h("section", {class: "stuck"}, h("h2", {}, "Who waits for whom"), waitsGraph(run, number)) : null));
  const tables = runs.map((run, number) => matrix(run, number));
  const differs = difference && (difference.rank < 0 ? "Both runs made the same calls, as far as the files have them." :
    `First difference: call ${difference.index} of rank ${difference.rank}.`);
  document.getElementById("page").replaceChildren(...[
    h("button", {class: "theme", style: "float:right", click: () => {
      view.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      setTheme();
      changed();
    }}, "light / dark"),
    h("div", {class: "runs"}, runs.map((run) => head(run))),
    differs ? h("p", {class: "difference"}, h("b", {}, differs)) : null,
    h("h2", {}, "Timeline"), makeControls(), legendElement,
    timelines.map((timeline) => [runs.length > 1 ? h("div", {class: "soft"}, timeline.run.path) : null, timeline.element]), details,
    stuck, tables, h("div", {class: "runs"}, runs.map((run) => gaps(run))),
  ].flat(9).filter((part) => part));
  document.getElementById("plain").open = false;
  syncControls();
  showDetails();
  for (const timeline of timelines) timeline.drawNow();
  document.documentElement.dataset.ready = "yes";
  window.rankloom = {view, timelines, runs, build};
  addEventListener("resize", () => timelines.forEach((timeline) => timeline.draw()));
  addEventListener("hashchange", () => {
    readFragment();
    setTheme();
    syncControls();
    showDetails();
    for (const table of tables) if (table) table.fill();
    for (const timeline of timelines) timeline.draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(); changed(); });
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    for (const timeline of timelines) timeline.drawNow();
  });
  addEventListener("afterprint", () => { setTheme(); changed(); });
}

async function load() {
  const element = document.getElementById("data");
  let text = element.textContent;
  if (element.type === "application/x-gzip-base64") {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  build(JSON.parse(text));
}
load().catch((error) => {
  document.getElementById("page").replaceChildren(h("p", {class: "bad"}, `The page could not be drawn: ${error}. What it says stands below as text.`));
  throw error;
});
