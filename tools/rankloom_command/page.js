"use strict";
// The page of a run. Texts of a run reach the document by textContent only.

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people who see no red or green tell apart; groups beyond these share the last.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7d8894"];
// Each operation has its colour, the same on every page: those of Okabe and Ito but the one of what went wrong, and
// darker and lighter ones of them. An operation that is not here takes one by its name.
const OP_COLOURS = {
  all_reduce: "#0072b2", barrier: "#e69f00", send: "#009e73", recv: "#cc79a7", broadcast: "#56b4e9", all_gather_into_tensor: "#b8a800",
  reduce_scatter_tensor: "#882255", all_to_all: "#332288", all_to_all_single: "#7a6ae0", all_gather: "#6b6200", reduce_scatter: "#c44d8a",
  scatter: "#7fcdb6", gather: "#005f45", reduce: "#8a5f00", all_reduce_coalesced: "#004166", all_gather_into_tensor_coalesced: "#d9cf66",
  reduce_scatter_tensor_coalesced: "#55112f", monitored_barrier: "#f3c870", split_group: "#7d8894", new_group: "#4a535c", coalesced: "#b3bcc5",
};
const HASHED = Object.values(OP_COLOURS);
const COMPUTED = ["#7d8894", "#4a535c", "#b3bcc5"];  // stretches of computation, which are no calls
function opColour(op, computed) {
  if (!computed && Object.hasOwn(OP_COLOURS, op)) return OP_COLOURS[op];
  let hash = 0x811c9dc5;
  for (let i = 0; i < op.length; ++i) hash = Math.imul(hash ^ op.charCodeAt(i), 0x01000193) >>> 0;
  const colours = computed ? COMPUTED : HASHED;
  return colours[((hash ^ (hash >>> 15)) >>> 0) % colours.length];
}
const rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
// Whether letters on it are dark.
const isBright = (colour) => { const [r, g, b] = rgb(colour); return 0.299 * r + 0.587 * g + 0.114 * b > 130; };
const PALE = 0.3;  // of a colour, while members are missing
const STATES = {u: "had not ended", r: "returned", f: "failed", s: "stopped for another's failure"};
// Of a rank that was stopped because it waited: in a deadlock, or in a wait that lasted too long.
const stateText = (run, rank) => (run.states[rank] === "s" && run.waiting.has(rank) ? (run.run.kind === "Deadlock" ? "deadlocked" : "stopped in its wait") :
  run.states[rank] === "r" && run.asserted.has(rank) ? `returned, ${run.asserted.get(rank)} assertion${run.asserted.get(rank) === 1 ? "" : "s"} failed` : STATES[run.states[rank]]);
// Of a rank that failed or has failed assertions.
const isBad = (run, rank) => run.states[rank] === "f" || run.asserted.has(rank);
const CALL_STATES = {s: "not complete", c: "completed", f: "failed"};
const FOLD_RANKS = 32;
const MOST_COLUMNS = 12;  // of ranks, in the table of calls: of more, those that called alike share one
const FOLD_LANES = 16;  // so many lanes or fewer: a failed run of many ranks begins folded
const MOST_MARKS = 200;
const MOST_FRAMES = 2000;
const LEAST_WRONG = 3;  // pixels of a call that failed or differs, however short
const DTYPE_BYTES = [2, 2, 4, 8, 1, 1, 2, 4, 8, 1, 8, 16, 1, 1];
const MOST_ROWS = 200;
const MOST_NODES = 40;
const MOST_OPS = 30;  // in the legend
const MOST_TICKS = 3000;
const SHOWN_BYTES = 64;  // of a value of the store
const STORE_READS = new Set(["get", "multi_get", "wait", "check", "num_keys", "list_keys", "queue_len", "watch_key"]);
const STORE_ROW = /^store (\w+)(?: (?:key )?(?!\[[^\]]*:\d+\])(.+?))?(?: \[[^\]]*\])?(?: \(\d+ times since step \d+\))?$/;  // of a story
const STORE_COUNTS = new Set(["num_keys", "list_keys"]);  // what these find, writes to any key change
const LEFT = 84, AXIS = 22;
let TOP = 4;  // pixels above the lanes: more where the first difference has its name there
const MOST_SUBROWS = 4;  // of a lane, for calls that were open at once
const LEAST_SUBROW = 8;  // pixels

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

// Text whose sites, "train.cc:12", are not torn apart at the end of a line.
const MOST_SITED = 20_000;  // characters
const SITE = /[\w.+-]{1,100}\.\w{1,5}:\d{1,7}\b/g;
function sited(text) {
  const parts = [];
  let from = 0;
  for (const found of text.slice(0, MOST_TEXT).matchAll(SITE)) {
    parts.push(text.slice(from, found.index), h("span", {class: "site"}, found[0]));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
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
// "{0, 1}": who a group has.
function membersText(run, group) {
  const ranges = rangesOf(run.members(group));
  return `{${ranges.slice(0, 20).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ")}${ranges.length > 20 ? ", ..." : ""}}`;
}
// What its maker called it; "": nothing ("undefined" stands for that, as in torch).
const described = (group) => (group.description === "undefined" ? "" : group.description);
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
// "1st", "2nd" and so on: people count from 1.
function ordinal(n) {
  const teen = n % 100 > 10 && n % 100 < 14;
  return `${n}${teen ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th"}`;
}
function bytesText(bytes) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    // A number that would be rounded to a thousand of the smaller unit is one of this.
    if (bytes >= 0.9995 * size) return `${+(bytes / size).toPrecision(3)} ${unit}`;
  }
  return `${bytes} B`;
}
const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);

// What a page knows of a run: its calls in arrays, their partners, and where they lie along both axes.
class Run {
  constructor(data, dtypes) {
    Object.assign(this, data);
    this.asserted = new Map(data.asserted || []);
    // Operations that several groups were asked for: their names and numbers alone do not tell calls apart.
    const groupOf = new Map();
    this.repeated = new Set();
    for (const {op, group} of data.run.lanes ? [] : data.kinds) {
      if (!groupOf.has(op)) groupOf.set(op, group);
      else if (groupOf.get(op) !== group) this.repeated.add(op);
    }
    this.dtypes = dtypes;
    this.size = data.run.world_size;
    this.lanes = Array.from({length: this.size}, () => ({count: 0, first: 0}));
    for (const line of data.calls) this.lanes[line.rank] = this.lane(line);
    this.match();
    this.order();
    this.stuck();
    this.steps();
    this.overlap();
    this.time();
    this.operations();
    this.gone();
    this.differ();
    this.strikes();
  }

  lane(line) {
    const count = line.kind.length;
    const lane = {count, first: line.made - count, kind: line.kind, seq: line.seq, state: line.state, peer: line.peer || null,
      issued: new Float64Array(count), arrived: new Float64Array(count).fill(-1), ended: new Float64Array(count),
      begunAt: line.step ? new Float64Array(count) : null, doneAt: new Float64Array(count).fill(-1),
      partner: new Int32Array(count).fill(-1)};
    let at = 0, step = 0;
    for (let i = 0; i < count; ++i) {
      lane.issued[i] = at += line.issued[i];
      if (line.arrived && line.arrived[i] >= 0) lane.arrived[i] = at + line.arrived[i];
      lane.ended[i] = line.ended[i] >= 0 ? at + line.ended[i] : -1;
      if (!line.step) continue;
      lane.begunAt[i] = step += line.step[i];
      if (line.done && line.done[i] >= 0) lane.doneAt[i] = step + line.done[i];
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
        const key = `${this.run.lanes ? this.groups[kind.group].name : kind.group} ${sends ? rank : peer} ${sends ? peer : rank} ${kind.tag || 0}`;
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
  // Whether the order of calls says nothing, since there are none.
  onlyStores() { return this.stepped && this.did.length > 0 && this.lanes.every((lane) => !lane.count); }

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
        // A send may have been left open: where times do not tell, it was.
        const sure = this.op(rank, i) !== "send" || lane.ended[i] < lane.issued[i + 1];
        const waited = i + 1 < lane.count && lane.ended[i] >= 0 && lane.ended[i] <= lane.issued[i + 1] && sure;
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
    // Room for what was open at the end, and its words.
    this.orderEnd = end + (this.failed() ? Math.max(0.5, 0.15 * end) : 0.5);
  }

  // Along the scheduling points that all ranks have passed together, where the file has them of all calls. A call's
  // members had come when the last of them issued it.
  steps() {
    this.stepped = !this.run.lanes && this.calls.length + this.store.length > 0 && this.calls.every((line) => line.step) &&
      this.store.every(({ops}) => ops.every((op) => op.step >= 0));
    let end = this.run.steps;
    const came = this.meetings.map((meeting) => {
      const all = meeting.p2p ? 2 : this.groups[meeting.group].size;
      return this.stepped && meeting.members.length === all ? meeting.members.reduce((most, [r, j]) => Math.max(most, this.lanes[r].begunAt[j]), 0) : Infinity;
    });
    for (const [rank, lane] of this.lanes.entries()) {
      lane.step = {from: lane.begunAt || new Float64Array(lane.count), met: new Float64Array(lane.count), to: new Float64Array(lane.count)};
      const waits = this.waiting.get(rank);
      for (let i = 0; this.stepped && i < lane.count; ++i) {
        lane.step.to[i] = lane.doneAt[i] >= 0 && !(waits && waits.i === i) ? lane.doneAt[i] + 1 : Infinity;
        lane.step.met[i] = Math.min(came[lane.meeting[i]], lane.step.to[i]);
        end = Math.max(end, lane.begunAt[i], lane.doneAt[i]);
      }
    }
    this.stepEnd = end + 1;
  }

  // Along the order, too, a call lies above those that its rank issued before it was complete.
  overlap() {
    for (const {count, order, begunAt, doneAt, issued, ended} of this.run.lanes ? [] : this.lanes) {
      for (let i = 0; i < count; ++i) {
        const begin = order.from[i];
        let last = i;
        const open = (j) => (this.stepped ? begunAt[j] < doneAt[i] : issued[j] < ended[i]);
        while (last + 1 < count && last - i < MOST_OPEN && open(last + 1)) ++last;
        if (last > i && order.from[last] > begin) order.to[i] = Math.max(order.to[i], order.from[last] + 1);
        this.orderEnd = Math.max(this.orderEnd, Number.isFinite(order.to[i]) ? order.to[i] : 0);
      }
    }
  }

  // Calls of a lane that lie above each other share its height: of each call its sub-row, and how many there are
  // where it lies.
  subrows(lane, axis) {
    if (axis.row) return axis;
    axis.row = new Uint8Array(lane.count);
    axis.rows = new Uint8Array(lane.count).fill(1);
    axis.most = 1;
    let ends = [], first = 0, end = -Infinity;
    const close = (behind) => {
      const rows = Math.min(MOST_SUBROWS, ends.length);
      axis.most = Math.max(axis.most, rows);
      for (let i = first; i < behind; ++i) axis.rows[i] = rows;
      first = behind;
      ends = [];
    };
    for (let i = 0; i < lane.count; ++i) {
      if (axis.from[i] >= end) close(i);
      let row = ends.findIndex((till) => till <= axis.from[i]);
      if (row < 0 && ends.length < MOST_SUBROWS) row = ends.push(-Infinity) - 1;
      if (row < 0) row = ends.indexOf(Math.min(...ends));
      ends[row] = axis.to[i];
      end = Math.max(end, axis.to[i]);
      axis.row[i] = row;
    }
    close(lane.count);
    return axis;
  }

  // Ranks that waited at the end for a key of the store which another has deleted, or which nobody set.
  gone() {
    this.whyOf = new Map();
    const whole = this.store.every((line) => line.made === line.ops.length), axis = this.stepped ? "step" : "time";
    const ended = (op) => (axis === "step" ? op.step + Math.max(0, op.done) : op.begun + Math.max(0, op.ended));
    for (const op of this.did) {
      const named = op.waits && op.what !== "queue_pop" ? /^key "(.*)"$/s.exec(op.waits.detail) : null;
      if (!named || (op.keys === undefined && op.key !== named[1])) continue;
      const writes = this.did.filter((one) => !STORE_READS.has(one.what) && !one.waits), mine = writes.filter((one) => one.key === named[1] || one.keys > 1);
      const last = mine.filter((one) => one.state === "c").sort((a, b) => ended(b) - ended(a))[0];
      if (last && last.what === "delete_key" && last.got === "true") this.whyOf.set(op.rank, {text: `deleted by ${this.name(last.rank)} [${baseName(last.file)}:${last.line}]`, key: named[1], op: last});
      else if (whole && !mine.length) this.whyOf.set(op.rank, {text: "nobody has set it", key: named[1], op: null});
    }
    for (const [rank, why] of this.whyOf) this.waiting.get(rank).whom = why.text;
  }
  // Why a wait that no rank can end does not end.
  why(wait) {
    const found = [...new Set([...each(wait.ranks)].map((rank) => (this.whyOf.has(rank) ? this.whyOf.get(rank).text : "")))];
    return found.length === 1 && found[0] ? found[0] : "nobody in sight";
  }

  // What ranks did with the store, and where that lies along the axes: among the calls, behind those that began before.
  operations() {
    this.did = [];
    for (const lane of this.lanes) lane.did = [];
    for (const line of this.store) {
      const lane = this.lanes[line.rank], first = line.made - line.ops.length;
      const stepped = this.stepped && lane.begunAt;
      let before = 0, last = -1, nth = 0;
      lane.did = line.ops.map((op, i) => {
        while (before < lane.count && (stepped ? lane.begunAt[before] < op.step : lane.issued[before] <= op.begun)) ++before;
        const end = before ? lane.order.to[before - 1] : 0;
        const order = before < lane.count ? lane.order.from[before] : Number.isFinite(end) ? end : lane.order.from[before - 1] + 1;
        nth = order === last ? nth + 1 : 0;
        last = order;
        // The end has made fail what its rank waited in.
        const wait = i + 1 === line.ops.length && op.state !== "c" && this.waits.find((one) => within(one.ranks, line.rank));
        const waits = wait && wait.what === op.op && wait.file === op.file && wait.line === op.line ? wait : null;
        return {...op, state: waits ? "w" : op.state, waits, rank: line.rank, index: first + i, what: op.op.replace(/^store /, ""), at: {order, time: op.begun, step: op.step === undefined ? -1 : op.step}, nth};
      });
      this.did.push(...lane.did);
    }
    const axis = this.stepped ? "step" : "time";
    this.did.sort((a, b) => a.at[axis] - b.at[axis] || a.rank - b.rank || a.index - b.index);
    // Keys that ranks share, and at least one writes.
    const keys = new Map();
    for (const op of this.did) {
      if (op.key === undefined) continue;
      const key = keys.get(op.key) || {ranks: new Set(), writes: false};
      keys.set(op.key, key);
      key.ranks.add(op.rank);
      key.writes ||= !STORE_READS.has(op.what);
    }
    for (const op of this.did) op.shared = op.key !== undefined && keys.get(op.key).ranks.size > 1 && keys.get(op.key).writes;
    for (const op of countedWith(this.did, (one) => one.what)) op.shared = true;
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
      for (const axis of [lane.order, lane.time, lane.step]) {
        axis.reach = new Float64Array(lane.count);
        let most = -1;
        for (let i = 0; i < lane.count; ++i) axis.reach[i] = most = Math.max(most, axis.to[i]);
      }
    }
  }

  // Marks the calls in which a member differs from most others, and finds the members that never came.
  differ() {
    this.rows = this.run.lanes ? [] : matrixRows(this);
    this.absent = [];
    for (const lane of this.lanes) lane.odd = new Uint8Array(lane.count);
    for (const row of this.rows) {
      if (!row.odd) continue;
      for (const [rank, cell] of row.cells) {
        const lane = this.lanes[rank];
        if (cell.text !== row.major || row.clash.has(rank)) lane.odd[cell.i] = 1;
        if (!row.split) continue;  // else its members never came together
        for (const axis of [lane.time, lane.step]) axis.met[cell.i] = axis.to[cell.i];
      }
      const [[rank, i]] = row.meeting.members;
      for (const missing of row.missing) this.absent.push({rank: missing, order: row.x, time: this.lanes[rank].issued[i], step: this.lanes[rank].step.from[i], label: `${this.op(rank, i)} ${row.meeting.seq}`});
    }
    this.absentOf = new Map(this.absent.map((absent) => [absent.rank, absent]).reverse());
  }

  // Of each rank that waits at the end: for what, for whom, and which of its calls that is (-1: none).
  stuck() {
    this.waiting = new Map();
    for (const wait of this.waits) {
      const whom = wait.for.length ? `waits for ${rangesText(wait.for)}` : "waits";
      for (const rank of each(wait.ranks)) {
        if (this.waiting.has(rank)) continue;
        const lane = this.lanes[rank];
        let i = lane.count - 1;
        while (i >= 0 && !(this.op(rank, i) === wait.what && lane.seq[i] === wait.seq && this.group(rank, i).name === wait.group)) --i;
        if (i >= 0) lane.order.to[i] = lane.order.met[i] = Infinity;
        this.waiting.set(rank, {i, whom, what: `${wait.what}${wait.detail ? ` ${wait.detail}` : ""}`});
      }
    }
  }

  // Where injected faults struck, as the ranks' errors tell: rank -> call.
  strikes() {
    this.struck = new Map();
    const told = [this.run.cause, this.run.text, ...this.texts.map(([text]) => text)].join("\n").slice(0, MOST_TEXT);
    for (const [, rank, group, op, seq] of told.matchAll(/rank (\d+)(?:,| failed:) group ([^,\n]+), (\w+) seq (\d+)[^:\n]*: [^\n[]*\(injected/g)) {
      const lane = this.lanes[+rank];
      if (!lane) continue;
      for (let i = 0; i < lane.count; ++i) if (this.op(+rank, i) === op && lane.seq[i] === +seq && this.group(+rank, i).name === group) this.struck.set(+rank, i);
    }
  }

  // Ranks whose lanes look alike: equal calls, equal ends. Those of a circle stand by themselves.
  classes() {
    if (this.alike) return this.alike;
    const found = new Map();
    for (let rank = 0; rank < this.size; ++rank) {
      const lane = this.lanes[rank];
      let a = 0x811c9dc5, b = 0x9e3779b9;
      const add = (value) => {
        a = Math.imul(a ^ value, 0x01000193);
        b = Math.imul(b ^ (value + 0x7f4a7c15), 0x85ebca6b) ^ (b >>> 13);
      };
      for (let i = 0; i < lane.count; ++i) {
        add(lane.kind[i]);
        add(lane.seq[i]);
        add(lane.state.charCodeAt(i));
        if (lane.peer && lane.peer[i] >= 0) add(lane.peer[i] - rank + 1000003);
      }
      const wait = this.waiting.get(rank);
      const key = `${a} ${b} ${lane.count} ${lane.first} ${this.states[rank]} ${this.asserted.has(rank)} ${this.cycle.includes(rank) ? rank : ""} ${wait ? wait.what + wait.whom : ""}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(rank);
    }
    this.alike = [...found.values()];
    return this.alike;
  }
  // Of a lane: those of fake ranks are their groups.
  name(rank) { return this.run.lanes ? this.run.lanes[rank] : `rank ${rank}`; }
  failed() { return !this.run.ok || (this.run.failures || []).length > 0; }

  bytes(kind) {
    const count = (list) => list.reduce((sum, sizes) => sum + sizes.reduce((a, b) => a * b, 1), 0);
    return Math.max(count(kind.in), count(kind.out)) * (DTYPE_BYTES[kind.dtype] || 0);
  }
  sizes(kind) {
    if (!kind.in.length && !kind.out.length) return "";
    const side = (list) => list.map((sizes) => `[${sizes.join(", ")}]`).join(" ") || "nothing";
    const a = side(kind.in), b = side(kind.out);
    const splits = kind.splits ? `, splits ${kind.splits.map((rows) => (rows.length ? `[${rows.join(", ")}]` : "equal")).join(" -> ")}` : "";
    return `${this.dtypes[kind.dtype] || `dtype ${kind.dtype}`} ${a === b || !kind.in.length ? b : `${a} -> ${b}`}${splits}`;
  }
  label(rank, i) {
    const lane = this.lanes[rank], kind = this.kinds[lane.kind[i]];
    const peer = lane.peer && lane.peer[i] >= 0 ? ` ${kind.op === "send" ? "to" : "from"} ${this.name(lane.peer[i])}` : "";
    return `${kind.op} seq ${lane.seq[i]}${peer}${kind.tag ? `, tag ${kind.tag}` : ""}${kind.root >= 0 ? ` root ${kind.root}` : ""}`;
  }
  // A call that its rank waited in at the end is failed in the file, since the end took the rank out of it.
  callState(rank, i) {
    const waits = this.waiting.get(rank);
    return waits && waits.i === i ? `not complete: ${this.name(rank)} ${waits.whom}` : CALL_STATES[this.lanes[rank].state[i]];
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

const view = {axis: "", x: null, y: null, rank: "", group: "", op: "", text: "", call: "", store: "", theme: "", rows: "", fold: "", colour: "", bytes: "", keys: "", gaps: "", open: ""};
let runs = [], difference = null, timelines = [], stores = [], legend = null, sources = {};

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
  if (!["order", "time", "step"].includes(view.axis)) view.axis = runs.some((run) => run.run.schedule === "free" || run.run.lanes) ? "time" : runs.every((run) => run.onlyStores()) ? "step" : "order";
  if (view.axis === "step" && !runs.every((run) => run.stepped)) view.axis = "order";
  if (view.axis === "time" && !runs.some((run) => run.timeEnd > 0)) view.axis = "order";
}
// Browsers refuse to write addresses many times a second: at once, then after a while.
let written = -Infinity, writing = 0;
function writeFragment() {
  if (writing) return;
  const rest = written + 150 - performance.now();
  if (rest <= 0) writeNow();
  else writing = setTimeout(writeNow, rest);
}
function writeNow() {
  clearTimeout(writing);
  writing = 0;
  written = performance.now();
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    if (value) kept.set(name, Array.isArray(value) ? value.map((n) => +n.toPrecision(9)).join(",") : value);
  }
  history.replaceState(null, "", `#${kept}`);
}
function changed() {
  writeFragment();
  for (const section of stores) if (section) section.fill();
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

const LEAST_LABEL = 12;  // pixels
const MOST_OPEN = 200;  // calls of a rank at once
// The label of a bar in `width` pixels: with what stands behind the number, where it has room; else the name cut short,
// the number whole. "": no room.
function fitted(c, width, mark, name, number, more) {
  const fits = (text) => c.measureText(text).width <= width;
  let text = mark + name + number;
  if (fits(text)) {
    for (const part of more) if (fits(text + part)) text += part;
    return text;
  }
  for (let shown = name.length - 1; shown > 0; --shown) {
    text = `${mark}${name.slice(0, shown)}\u2026${number}`;
    if (fits(text)) return text;
  }
  text = mark + number.trim();
  return fits(text) ? text : fits(number.trim()) ? number.trim() : "";
}

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
    const key = `${view.rank} ${view.fold}`;
    if (this.cachedFor !== key) {
      this.cachedFor = key;
      const wanted = rankFilter(), fits = (rank) => !wanted || within(wanted, rank);
      this.members = null;
      this.cached = [];
      if (this.folds()) {
        this.members = this.run.classes().map((ranks) => ranks.filter(fits)).filter((ranks) => ranks.length);
        this.cached = this.members.map(([first]) => first);
        this.placeOf = new Map(this.members.flatMap((ranks, place) => ranks.map((rank) => [rank, place])));
      } else {
        for (let rank = 0; rank < this.run.size; ++rank) if (fits(rank)) this.cached.push(rank);
        this.placeOf = new Map(this.cached.map((rank, place) => [rank, place]));
      }
    }
    return this.cached;
  }
  // Whether ranks that are alike share a lane.
  folds() {
    if (view.fold) return view.fold === "yes";
    return this.run.size > FOLD_RANKS && this.run.failed() && this.run.classes().length <= FOLD_LANES;
  }
  ranksAt(place) { return this.members ? this.members[place] : [this.cached[place]]; }
  fits() {
    const key = `${view.group}\n${view.op}\n${view.text}`;
    if (this.fitsFor !== key) {
      this.fitsFor = key;
      const text = view.text.toLowerCase();
      this.fitting = this.run.kinds.map((kind) => {
        const group = this.run.groups[kind.group].name;
        const all = `${kind.op} ${group} ${described(this.run.groups[kind.group])} ${kind.file}:${kind.line} ${this.run.sizes(kind)}`;
        return (!view.group || group === view.group) && (!view.op || kind.op === view.op) && all.toLowerCase().includes(text);
      });
    }
    return this.fitting;
  }
  fullEnd() {
    const ends = runs.map((run) => ({time: run.timeEnd * 1.02, step: run.stepEnd, order: run.orderEnd})[view.axis]);
    return Math.max(...ends, 1);
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
    const rows = ranks <= 20 ? this.shownRanks().reduce((most, rank) => Math.max(most, this.run.subrows(this.run.lanes[rank], this.run.lanes[rank][view.axis]).most), 1) : 1;
    this.height = TOP + AXIS + Math.min(620, Math.max(60, ranks * (ranks <= 20 ? 26 + 12 * (rows - 1) : 18)));
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

  colour(kind) { return legend.get(legendKey(this.run, kind)) || COLOURS[COLOURS.length - 1]; }

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
      panel: theme("--panel"), odd: theme("--odd")};
    c.fillStyle = this.theme.back;
    c.fillRect(0, 0, this.width, this.height);
    const scale = this.scale(), ranks = this.shownRanks();
    this.drawn = 0;
    this.ticks = [];
    this.labels = [];  // of bars, as they are drawn
    this.heat = scale.lane < 5;
    c.save();
    c.beginPath();
    c.rect(LEFT, TOP, this.width - LEFT, this.height - TOP - AXIS);
    c.clip();
    if (this.heat) this.drawHeat(c, scale, ranks);
    else this.drawBars(c, scale, ranks);
    c.restore();
    this.nameDifference(c, scale);
    this.drawNames(c, scale, ranks);
    this.drawAxis(c, scale);
    this.drawOver();
    ++this.frames;
    this.canvas.dataset.drawn = this.drawn;
    this.canvas.dataset.heat = this.heat;
    this.canvas.dataset.lanes = ranks.length;
    this.canvas.dataset.ranks = this.placeOf.size;
    this.canvas.dataset.operations = this.ticks.length;
  }

  drawNames(c, scale, ranks) {
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    const step = Math.max(1, Math.ceil(14 / scale.lane));
    for (let place = Math.ceil(scale.y0 / step) * step; place < scale.y1; place += step) {
      const rank = ranks[place], y = Math.max(TOP + 5, scale.y(place) + (scale.lane * Math.min(step, 1)) / 2);
      const state = this.run.states[rank];
      const inCircle = this.run.cycle.includes(rank), alike = this.ranksAt(place);
      const ranges = rangesOf(alike), name = alike.length === 1 ? this.run.name(rank) : ranges.length === 1 ? `${ranges[0][0]}-${ranges[0][1]}` : `${alike.length} ranks`;
      const bad = isBad(this.run, rank);
      c.fillStyle = bad || inCircle ? this.theme.hot : this.theme.front;
      c.fillText(`${bad ? "\u2717" : inCircle ? "\u21bb" : state === "r" ? "\u2713" : "\u25a0"} ${name}`, 6, y, LEFT - 10);
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
    if (view.axis !== "time") step = Math.max(1, Math.round(step));
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

  // The sub-row of a call, and where that lies within its lane.
  static bar(axis, i, top, height) {
    const most = Math.max(1, Math.min(MOST_SUBROWS, Math.floor(height / LEAST_SUBROW)));
    const rows = axis.rows ? Math.min(axis.rows[i], most) : 1, row = axis.row ? Math.min(axis.row[i], rows - 1) : 0;
    const tall = rows > 1 ? (height - rows + 1) / rows : height;
    return {row, y: top + row * (tall + 1), tall};
  }

  drawBars(c, scale, ranks) {
    const run = this.run, fits = this.fits(), right = this.width + 4;
    const gap = scale.lane > 12 ? 3 : 1;
    const hatch = this.hatch(c);
    for (let place = Math.floor(scale.y0); place < scale.y1; ++place) {
      const rank = ranks[place], lane = run.lanes[rank], axis = lane[view.axis];
      const top = scale.y(place) + gap, height = Math.max(1, scale.lane - 2 * gap);
      const labels = [];
      run.subrows(lane, axis);
      c.fillStyle = this.theme.line;
      c.fillRect(LEFT, scale.y(place) + scale.lane - 0.5, this.width, 0.5);
      if (lane.first > 0) {
        c.fillStyle = hatch;
        c.fillRect(LEFT, top, Math.min(14, scale.x(lane.count ? axis.from[0] : 0) - LEFT), height);
      }
      const filled = new Array(MOST_SUBROWS).fill(-1);  // pixels, of a lane whose calls are narrower than one
      for (let i = Timeline.firstIn(lane, axis, scale.x0); i < lane.count && axis.from[i] <= scale.x1; ++i) {
        if (axis.to[i] < scale.x0 || !fits[lane.kind[i]]) continue;
        const open = axis.to[i] === Infinity;
        const a = Math.max(scale.x(axis.from[i]), LEFT - 2), b = open ? right : Math.min(scale.x(axis.to[i]), right);
        const {row, y, tall} = Timeline.bar(axis, i, top, height);
        const wrong = open || lane.state[i] === "f" || lane.odd[i] === 1;
        if (b < filled[row] && !wrong) continue;
        filled[row] = Math.floor(Math.max(a + 1, b)) > filled[row] + 1 ? -1 : Math.floor(b);
        const m = Math.min(Math.max(scale.x(axis.met[i]), a), b), wide = Math.max(b - a - (scale.px > 4 ? 1.5 : 0), wrong ? LEAST_WRONG : 1.5);
        const colour = this.colour(run.kinds[lane.kind[i]]);
        ++this.drawn;
        c.globalAlpha = PALE;
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
        const odd = lane.odd[i] === 1;
        if (odd) {
          c.strokeStyle = this.theme.hot;
          c.lineWidth = 3;
          c.strokeRect(a + 1.5, y + 1.5, wide - 3, tall - 3);
        }
        // What a later bar of the row covers is no place for words; they stand on the pale part or on the full one.
        for (const label of labels) if (label.y === y) label.end = Math.min(label.end, a);
        if (wide > LEAST_LABEL && tall >= LEAST_SUBROW) {
          const onPale = open || m - a >= b - m;
          labels.push({i, y, tall, from: onPale ? a : m, end: Math.min(this.width - 2, onPale && !open ? m : a + wide), colour: onPale ? this.theme.front : isBright(colour) ? "#101418" : "#ffffff"});
        }
      }
      this.drawLabels(c, rank, labels);
      this.drawEnd(c, scale, rank, top, height);
      this.drawOperations(c, scale, lane, top + height);
    }
    this.drawArrows(c, scale);
    this.drawDifference(c, scale);
  }
  drawLabels(c, rank, labels) {
    const run = this.run, lane = run.lanes[rank], waits = run.waiting.get(rank);
    c.textBaseline = "middle";
    for (const {i, y, tall, from, end, colour} of labels) {
      const kind = run.kinds[lane.kind[i]], odd = lane.odd[i] === 1;
      c.font = `${Math.min(11, Math.round(tall))}px system-ui, sans-serif`;
      const text = fitted(c, end - from - 6, `${odd ? "\u2260 " : ""}${run.struck.get(rank) === i ? "\u26a1 fault: " : ""}`, kind.op, run.run.lanes && kind.wire === undefined ? "" : ` ${lane.seq[i]}`,
        [odd && kind.root >= 0 ? ` root ${kind.root}` : "", odd && run.sizes(kind) ? ` ${run.sizes(kind)}` : "", waits && waits.i === i ? `: ${waits.whom}` : "",
          run.repeated.has(kind.op) ? `, group ${run.groups[kind.group].name}` : ""]);
      if (!text) continue;
      c.fillStyle = colour;
      c.fillText(text, from + 4, y + tall / 2);
      if (this.labels.length < MOST_TICKS) this.labels.push({rank, i, text, left: from + 4, right: from + 4 + c.measureText(text).width, y});
    }
  }
  // What the rank did with the store: diamonds at the foot of its lane.
  drawOperations(c, scale, lane, foot) {
    if (scale.lane <= 8 || view.group || view.op) return;
    for (const op of lane.did) {
      const x = scale.x(op.at[view.axis]) + (view.axis === "order" ? 4 + 6 * Math.min(op.nth, 8) : 0);
      if (x < LEFT || x > this.width || !operationFits(op)) continue;
      if (this.ticks.length === MOST_TICKS) return;
      this.ticks.push({x, y: foot - 4, op});
      c.beginPath();
      c.moveTo(x, foot - 8);
      c.lineTo(x + 4, foot - 4);
      c.lineTo(x, foot);
      c.lineTo(x - 4, foot - 4);
      c.closePath();
      c.fillStyle = op.state === "c" ? this.theme.front : this.theme.hot;
      c.strokeStyle = this.theme.back;
      c.lineWidth = 1;
      c.fill();
      c.stroke();
    }
  }
  // The operation at whose diamond the pointer is; null: at none.
  operationAt(x, y) {
    const found = (this.ticks || []).find((tick) => Math.abs(tick.x - x) <= 5 && Math.abs(tick.y - y) <= 5);
    return found ? found.op : null;
  }
  chooseOperation(op) {
    view.store = `${this.number}.${op.rank}.${op.index}`;
    view.call = "";
    showDetails();
    changed();
  }
  // Behind the last call of a lane: a wait that is none of its calls, or the first call of others to which the rank never came.
  drawEnd(c, scale, rank, y, tall) {
    const run = this.run, lane = run.lanes[rank], axis = lane[view.axis], waits = run.waiting.get(rank), absent = run.absentOf.get(rank);
    if (waits ? waits.i >= 0 : !absent) return;
    let end = 0;
    for (let i = 0; i < lane.count; ++i) if (Number.isFinite(axis.to[i])) end = Math.max(end, axis.to[i]);
    const op = waits && lane.did.findLast((one) => one.waits), aside = op && view.axis === "order" ? 4 + 6 * Math.min(op.nth, 8) : 0;
    if (op) end = Math.max(end, op.at[view.axis]);
    const a = scale.x(absent && !waits ? Math.max(end, absent[view.axis]) : end) + 1 + aside;
    const wide = waits ? this.width - a - 3 : view.axis === "order" ? Math.max(scale.px - 3, 12) : Math.max(12, this.width - a - 3);
    if (a > this.width || wide < 8) return;
    c.save();
    c.beginPath();
    c.rect(a, y, wide, tall);
    c.clip();
    if (waits) {
      c.fillStyle = this.hatch(c);
      c.fillRect(a, y, wide, tall);
    }
    c.setLineDash([5, 3]);
    c.strokeStyle = this.theme.hot;
    c.lineWidth = 1.5;
    c.strokeRect(a + 0.75, y + 0.75, wide - 1.5, tall - 1.5);
    if (tall > 10) {
      c.fillStyle = this.theme.front;
      c.font = "11px system-ui, sans-serif";
      c.textBaseline = "middle";
      c.fillText(fitted(c, wide - 8 - 6 * Boolean(op), "", waits ? `${waits.what}: ${waits.whom}` : `never came to ${absent.label}`, "", []), a + 4 + 6 * Boolean(op), y + tall / 2);
    }
    c.restore();
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
      if (this.members && this.cached[p] !== from && this.cached[q] !== to) continue;
      if ((p < scale.y0 && q < scale.y0) || (p > scale.y1 && q > scale.y1)) continue;
      if (++shown > 3000) break;
      const x0 = scale.x(begin) + 2, x1 = scale.x(end) - 2;
      const send = Timeline.bar(a[view.axis], i, scale.y(p), scale.lane), recv = Timeline.bar(b[view.axis], j, scale.y(q), scale.lane);
      const y0 = send.y + send.tall * (q > p ? 0.85 : 0.15), y1 = recv.y + recv.tall * (q > p ? 0.2 : 0.8);
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
    const stored = difference && difference.store;
    if (stored && stored.leads && stored.rank < this.run.size) {
      const {did, count, [view.axis]: axis} = this.run.lanes[stored.rank], op = did.find((one) => one.index === stored.index);
      const end = did.length ? did[did.length - 1].at[view.axis] : count ? axis.from[count - 1] + 1 : 0;
      return {x: op ? op.at[view.axis] : end, to: NaN, place: this.placeOf.get(stored.rank)};
    }
    if (!difference || difference.rank < 0 || difference.rank >= this.run.size) return null;
    const lane = this.run.lanes[difference.rank], i = difference.index - lane.first;
    const x = i >= 0 && i < lane.count ? lane[view.axis].from[i] : lane.count ? lane[view.axis].from[lane.count - 1] + 1 : 0;
    return {x, to: i >= 0 && i < lane.count ? lane[view.axis].to[i] : NaN, place: this.placeOf.get(difference.rank)};
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
    if (at.place !== undefined) c.strokeRect(x + 2, scale.y(at.place) + 2, Math.max(10, at.to ? Math.min(scale.x(at.to), this.width + 9) - x - 4 : 0), scale.lane - 4);
  }

  // Above the lanes, where it covers no call.
  nameDifference(c, scale) {
    const at = this.differing();
    this.named = null;
    if (!at || at.x < scale.x0 || at.x > scale.x1) return;
    const x = Math.round(scale.x(at.x)) - 1;
    c.fillStyle = this.theme.hot;
    c.font = "bold 11px system-ui, sans-serif";
    c.textBaseline = "top";
    this.named = {y: 3, tall: 12};
    c.fillText("first difference", x + 100 < this.width ? x + 2 : x - 96, this.named.y);
  }

  drawHeat(c, scale, ranks) {
    const map = this.mapFor(scale, ranks);
    this.drawn = map.drawn;
    c.imageSmoothingEnabled = false;
    const left = scale.x(map.x0), top = scale.y(map.y0);
    c.drawImage(map.canvas, left, top, scale.x(map.x0 + map.canvas.width * map.column) - left, scale.y(map.y0 + map.canvas.height * map.row) - top);
    this.drawHeatOpen(c, scale, map.open);
    this.drawHeatMarks(c, scale);
    this.drawDifference(c, scale);
  }
  // A map that covers the view. While the view is only moved, one that reaches beyond it, which is moved along and seldom painted.
  mapFor(scale, ranks) {
    const old = this.map, shows = [view.axis, this.width, this.height, this.theme.back, ranks, this.fits(), legend];
    const alike = (a, b) => Math.abs(a - b) <= 1e-9 * Math.abs(b);
    const moved = old && alike(scale.px, old.scale.px) && alike(scale.lane, old.scale.lane) && shows.every((one, i) => one === old.shows[i]);
    if (moved && old.x0 <= scale.x0 + 0.01 * old.column && old.x1 >= scale.x1 - 0.01 * old.column && old.y0 <= scale.y0 && old.y1 >= scale.y1) return old;
    const across = Math.max(1, Math.ceil((this.width - LEFT) / 2)), column = (scale.x1 - scale.x0) / across;
    const whole = scale.lane >= 1, row = whole ? 1 : 1 / scale.lane, first = whole ? Math.floor(scale.y0) : scale.y0;
    const down = Math.max(1, whole ? Math.ceil(scale.y1) - first : Math.round(this.height - TOP - AXIS));
    const beside = moved && !alike(scale.x0, old.scale.x0) ? Math.ceil(across / 2) : 0, above = moved && !alike(scale.y0, old.scale.y0) ? Math.ceil(down / 2) : 0;
    const left = Math.min(beside, Math.ceil(scale.x0 / column)), right = Math.min(beside, Math.ceil(Math.max(0, this.fullEnd() - scale.x1) / column));
    const over = Math.min(above, Math.floor(first / row)), under = Math.min(above, Math.floor(Math.max(0, ranks.length - scale.y1) / row));
    const map = {shows, scale, column, row, x0: scale.x0 - left * column, x1: scale.x1 + right * column, y0: first - over * row,
      y1: whole ? first + down + under : scale.y1 + under * row};
    this.paintMap(map, ranks, left + across + right, over + down + under);
    return (this.map = map);
  }
  // A row of pixels stands for one rank or several, in the colours of their calls, as in bars: pale until all members came.
  paintMap(map, ranks, width, height) {
    const run = this.run, fits = this.fits(), stride = width + 1, {x0, x1} = map, factor = 1 / map.column;
    // Red, green, blue and the number of calls: how much more there is in a pixel than in the one left of it. Zero again, once it is read.
    if (!this.heatSums || this.heatSums.length < 4 * stride * height) this.heatSums = new Int32Array(4 * stride * height);
    const sums = this.heatSums, per = new Uint16Array(height), open = map.open = [];
    const dark = document.documentElement.dataset.theme === "dark", back = dark ? [20, 24, 29] : [255, 255, 255];
    const full = run.kinds.map((kind) => rgb(this.colour(kind))), pale = full.map((one) => one.map((part, k) => Math.round(PALE * part + (1 - PALE) * back[k])));
    const add = (base, a, b, [red, green, blue]) => {
      if (a >= b) return;
      const begin = base + 4 * a, end = base + 4 * b;
      sums[begin] += red;
      sums[begin + 1] += green;
      sums[begin + 2] += blue;
      ++sums[begin + 3];
      sums[end] -= red;
      sums[end + 1] -= green;
      sums[end + 2] -= blue;
      --sums[end + 3];
    };
    map.drawn = 0;
    for (let place = Math.floor(map.y0); place < Math.min(map.y1, ranks.length); ++place) {
      const rank = ranks[place], lane = run.lanes[rank], {from, met, to} = lane[view.axis];
      const row = Math.min(height - 1, Math.max(0, Math.floor((place - map.y0) / map.row))), base = 4 * row * stride;
      ++per[row];
      for (let i = Timeline.firstIn(lane, lane[view.axis], x0); i < lane.count && from[i] <= x1; ++i) {
        const kind = lane.kind[i];
        if (to[i] < x0 || !fits[kind]) continue;
        ++map.drawn;
        const a = Math.max(0, Math.floor((from[i] - x0) * factor)), never = to[i] === Infinity;
        const m = never ? width : Math.min(width, Math.max(a, Math.floor((met[i] - x0) * factor)));
        const b = never ? width : Math.min(width, Math.max(m + (met[i] < to[i] ? 1 : 0), a + 1, Math.ceil((to[i] - x0) * factor)));
        add(base, a, m, pale[kind]);
        add(base, m, b, full[kind]);
        if (never || lane.state[i] === "f") open.push({place, a: from[i], b: to[i]});
      }
    }
    const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer), blank = (255 << 24) | (back[2] << 16) | (back[1] << 8) | back[0];
    for (let row = 0, at = 0; row < height; ++row) {
      const ranksHere = Math.max(1, per[row]);
      let red = 0, green = 0, blue = 0, calls = 0, last = blank, from = 4 * row * stride;
      for (let x = 0; x < width; ++x, from += 4, ++at) {
        const less = sums[from], more = sums[from + 3];
        if (less | sums[from + 1] | sums[from + 2] | more) {
          red += less;
          green += sums[from + 1];
          blue += sums[from + 2];
          calls += more;
          const all = Math.max(ranksHere, calls), rest = all - calls;
          last = (255 << 24) | (((blue + rest * back[2]) / all) << 16) | (((green + rest * back[1]) / all) << 8) | ((red + rest * back[0]) / all);
          sums[from] = sums[from + 1] = sums[from + 2] = sums[from + 3] = 0;
        }
        pixels[at] = last;
      }
      sums[from] = sums[from + 1] = sums[from + 2] = sums[from + 3] = 0;  // right of the last pixel
    }
    map.canvas = this.small ||= h("canvas");
    map.canvas.width = width;
    map.canvas.height = height;
    map.canvas.getContext("2d").putImageData(image, 0, 0);
  }
  // Boxes of lanes that stand together, from `a` to `b`, as one.
  static together(boxes) {
    const found = [];
    for (const box of boxes) {
      const last = found[found.length - 1];
      if (last && last.a === box.a && last.b === box.b && (last.end === box.place || last.end === box.place + 1)) last.end = box.place + 1;
      else found.push({a: box.a, b: box.b, begin: box.place, end: box.place + 1});
    }
    return found;
  }
  // Calls that are not complete, or failed: hatched and framed, those of lanes beside each other that look alike together.
  drawHeatOpen(c, scale, open) {
    c.strokeStyle = this.theme.hot;
    c.lineWidth = 1.5;
    for (const {a, b, begin, end} of Timeline.together(open).slice(0, MOST_FRAMES)) {
      const left = Math.max(LEFT - 2, scale.x(a)), wide = Math.max(3, Math.min(this.width + 4, scale.x(b)) - left), y = scale.y(begin), tall = Math.max(1, scale.y(end) - y);
      c.fillStyle = this.hatch(c);
      c.fillRect(left, y, wide, tall);
      if (tall >= 4) c.strokeRect(left + 0.75, y + 0.75, wide - 1.5, tall - 1.5);
    }
  }
  // What differs is framed, as in bars, with what it is left to be seen; who never came is a box.
  drawHeatMarks(c, scale) {
    const seen = (place, x) => place !== undefined && place >= scale.y0 - 1 && place <= scale.y1 && x <= scale.x1;
    let marks = 0;
    const odd = [];
    for (const row of this.run.rows) {
      if (!row.odd) continue;
      for (const [rank, cell] of row.cells) {
        const {from, to} = this.run.lanes[rank][view.axis], place = this.placeOf.get(rank);
        if (cell.text === row.major && !row.clash.has(rank) || !seen(place, from[cell.i]) || to[cell.i] < scale.x0) continue;
        ++marks;
        odd.push({place, a: from[cell.i], b: to[cell.i]});
      }
    }
    c.strokeStyle = this.theme.hot;
    c.lineWidth = 3;
    odd.sort((one, other) => one.a - other.a || one.b - other.b || one.place - other.place);
    for (const {a, b, begin, end} of Timeline.together(odd).slice(0, MOST_MARKS)) {
      const left = Math.max(LEFT - 4, scale.x(a)), y = scale.y(begin), tall = Math.max(4, scale.y(end) - y);
      c.strokeRect(left + 1.5, y + 1.5, Math.max(8, Math.min(this.width + 6, scale.x(b)) - left) - 3, tall - 3);
    }
    c.fillStyle = this.theme.back;
    c.lineWidth = 2;
    for (const absent of this.run.absentOf.values()) {
      const place = this.placeOf.get(absent.rank), x = absent[view.axis], tall = Math.max(4, scale.lane);
      if (!seen(place, x) || x < scale.x0 || ++marks > MOST_MARKS) continue;
      const left = scale.x(x), y = scale.y(place) + scale.lane / 2 - tall / 2;
      c.fillRect(left, y, 8, tall);
      c.strokeRect(left, y, 8, tall);
    }
    this.canvas.dataset.marks = marks;
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
      const boxes = [], own = [];
      for (const [rank, i] of this.run.meetings[this.run.lanes[at.rank].meeting[at.i]].members) {
        const place = this.placeOf.get(rank), axis = this.run.lanes[rank][view.axis], chosen = rank === at.rank && i === at.i;
        if (place !== undefined) (chosen ? own : boxes).push({place, a: axis.from[i], b: axis.to[i]});
      }
      boxes.sort((one, other) => one.place - other.place);
      // In a map, frames of single lanes would hide what they frame.
      const single = (box) => ({a: box.a, b: box.b, begin: box.place, end: box.place + 1});
      const frames = [...(this.heat ? Timeline.together(boxes) : boxes.map(single)).map((box) => [box, 1.5]), ...own.map((box) => [single(box), 3])];
      for (const [box, line] of frames) {
        const a = scale.x(box.a), b = Math.min(this.width + 4, scale.x(box.b)), y = scale.y(box.begin);
        c.strokeStyle = this.theme.front;
        c.lineWidth = line;
        c.strokeRect(a, y + 1, Math.max(3, b - a - 1.5), Math.max(2, scale.y(box.end) - y - 2));
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
    let best = -1, own = -1;
    for (let i = Timeline.firstIn(lane, axis, value - slack); i < lane.count && axis.from[i] <= value + slack; ++i) {
      if (!fits[lane.kind[i]] || axis.to[i] < value - slack) continue;
      best = i;
      const bar = Timeline.bar(axis, i, scale.y(place), scale.lane);
      if (bar.tall < scale.lane && bar.y <= y && y <= bar.y + bar.tall) own = i;
    }
    if (own >= 0) best = own;
    return {rank, i: best, value};
  }

  describe(at) {
    if (!at) return " ";
    const where = {time: () => timeText(at.value), step: () => `step ${Math.floor(at.value)}`, order: () => `column ${at.value.toFixed(1)}`}[view.axis]();
    const alike = this.members ? this.ranksAt(this.placeOf.get(at.rank)) : [at.rank];
    const who = alike && alike.length > 1 ? `${ranksText(alike)} (alike; shown: rank ${at.rank})` : this.run.name(at.rank);
    if (at.i < 0) return `${who} at ${where}`;
    return `${who} at ${where}: ${this.run.label(at.rank, at.i)} (${this.run.callState(at.rank, at.i)}) ` +
      `[group ${this.run.group(at.rank, at.i).name}, ${this.run.site(at.rank, at.i)}]`;
  }

  choose(rank, i) {
    view.store = "";
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

  // Shows the ranks of one lane by themselves.
  unfold(y) {
    const scale = this.scale(), ranks = this.members && this.ranksAt(Math.floor(scale.y0 + (y - TOP) / scale.lane));
    if (!ranks || ranks.length < 2) return;
    view.rank = rangesOf(ranks).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
    view.fold = "no";
    view.y = null;
    syncControls();
    changed();
  }
  foldAll() {
    view.fold = this.folds() ? "no" : "yes";
    view.y = null;
    syncControls();
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
      const op = this.operationAt(at.x, at.y);
      this.under.textContent = op ? `${this.run.name(op.rank)}: ${plain(operationText(op))}` : this.describe(this.hit(at.x, at.y));
      if (!this.waiting) this.drawOver();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const at = place(event), hit = this.hit(at.x, at.y), op = this.operationAt(at.x, at.y);
      if (drag && !drag.moved && at.x < LEFT) this.unfold(at.y);
      else if (drag && !drag.moved && op) this.chooseOperation(op);
      else if (drag && !drag.moved) this.choose(hit ? hit.rank : 0, hit ? hit.i : -1);
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
        n: () => step(1), p: () => step(-1), j: () => lanes(1), k: () => lanes(-1), Escape: () => this.choose(0, -1),
        f: () => this.foldAll(), "?": () => { keysHelp.open = !keysHelp.open; }};
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

// Where two runs are on the page, headings say of which a part is.
const whose = (run) => (runs.length > 1 ? `${run.path}: ` : "");

function jump(run, rank) {
  const timeline = timelines[run];
  view.rank = view.group = view.op = view.text = "";
  syncControls();
  timeline.shownRanks();
  const waits = timeline.run.waiting.get(rank);
  timeline.choose(rank, waits && waits.i >= 0 ? waits.i : timeline.run.lanes[rank].count - 1);
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

// The lines of code that the headline names, or those of who waits.
const MOST_PLACES = 3;
function namedPlaces(run) {
  if (runs.length > 1) return null;
  const inCircle = run.waits.filter((wait) => wait.file && wait.ranks.some(([a, b]) => run.cycle.some((rank) => a <= rank && rank <= b)));
  const named = [...inCircle, ...(run.named.length ? run.named : run.waits.filter((wait) => wait.file))], panes = [], notes = new Map();
  const note = ({file, line}, text) => { named.push({file, line}); notes.set(`${file}:${line}`, [...new Set([...(notes.get(`${file}:${line}`) || []), text])]); };
  for (const [rank, why] of run.whyOf) {
    note(run.did.findLast((op) => op.rank === rank && op.waits), why.text);
    if (why.op) note(why.op, `${run.name(why.op.rank)} deletes "${why.key}"`);
  }
  const noted = (pane) => { pane.notes = new Map(named.filter(({file, line}) => notes.has(`${file}:${line}`) && pane.file === file).map(({file, line}) => [line, notes.get(`${file}:${line}`).join("; ")])); };
  for (const place of named) {
    const found = sources[`${place.file}:${place.line}`], end = found && found.first + found.lines.length;
    if (!found) continue;
    const near = panes.find((pane) => pane.path === found.path && found.first <= pane.first + pane.lines.length && pane.first <= end);
    if (!near) {
      panes.push({...found, file: place.file, lines: [...found.lines], marked: new Set([place.line])});
      continue;
    }
    near.marked.add(place.line);
    if (found.first < near.first) near.lines.unshift(...found.lines.slice(0, near.first - found.first));
    near.first = Math.min(near.first, found.first);
    near.lines.push(...found.lines.slice(near.first + near.lines.length - found.first));
  }
  const shown_ = panes.slice(0, MOST_PLACES), said = new Set();
  for (const each of shown_) {
    noted(each);
    each.again = said.has(each.path);
    said.add(each.path);
  }
  return shown_.length ? h("div", {class: "places"}, shown_.map((each) => pane(each))) : null;
}

// What the report says beyond the headline and what the page shows by itself: who was stopped, the schedule, the file.
function causeOf(run) {
  const shownElsewhere = /^(ranks? [\d, -]+ stopped for it$|schedule \S+, engine |run file: )/;
  const text = run.run.cause && run.run.cause.includes("\n") ? run.run.cause : run.run.text;
  const lines = text.split("\n").filter((line) => !shownElsewhere.test(line));
  if (lines.length && run.headline.endsWith(lines[0].replace(/^ranks? [\d, -]+ failed: /, ""))) lines.shift();
  const last = lines.findIndex((line) => /^ *last calls? of rank/.test(line)), cause = last < 0 ? lines : lines.slice(0, last);
  return {cause: cause.length && !(cause.length === 1 && cause[0] === "ok") ? cause.join("\n") : "", calls: last < 0 ? "" : lines.slice(last).join("\n")};
}

// A schedule with switches has a notation of its own: the words for it, where the pointer rests.
const STEERED = "steered:SEED:SWITCH,... is the default order with switches. 1@5>0: at choice 5, counted from 0, rank 1 is put off and rank 0 goes on. " +
  "s@5>0: before the first step of any rank. 0@2>c1: at choice 2 of rank 0, of the calls that could complete, number 1 does. 0#0=1: at choice 0 of what happens at rank 0, alternative 1.";
const scheduleText = (schedule) => h("span", /^steered:\d+:/.test(schedule) ? {class: "notation", title: STEERED} : {}, `schedule ${schedule}`);

function head(run) {
  const failed = run.failed();
  const facts = run.run.lanes ? [`${run.size} lanes: a group of a rank each`] : [`${run.size} ranks`, `engine ${run.run.engine}`, scheduleText(run.run.schedule), `${run.run.steps} scheduling points`];
  if (run.run.end_ns) facts.push(`ended at ${timeText(run.run.end_ns)}${run.run.schedule === "free" ? "" : " (virtual time)"}`);
  const outcomes = [];
  const told = new Set();
  for (const [text, ranges] of run.texts) {
    const byState = new Map();
    for (const rank of each(ranges)) {
      told.add(rank);
      const ended = stateText(run, rank);
      if (!byState.has(ended)) byState.set(ended, []);
      byState.get(ended).push(rank);
    }
    for (const ranks of byState.values()) outcomes.push([run.states[ranks[0]], ranks, text]);
  }
  const others = new Map();
  for (let rank = 0; rank < run.size; ++rank) {
    if (told.has(rank)) continue;
    const ended = stateText(run, rank);
    if (!others.has(ended)) others.set(ended, []);
    others.get(ended).push(rank);
  }
  for (const ranks of others.values()) outcomes.push([run.states[ranks[0]], ranks, ""]);
  outcomes.sort((a, b) => isBad(run, b[1][0]) - isBad(run, a[1][0]) || "fusr".indexOf(a[0]) - "fusr".indexOf(b[0]) || a[1][0] - b[1][0]);
  // What the headline or the cause has said already.
  const said = (state, text) => {
    const first = text.split("\n", 1)[0];
    return (text && run.headline.endsWith(text)) || state === "s" && (run.headline.includes(first) || first.includes(run.headline) || run.run.cause.split("\n", 1)[0].includes(first)) ||
      (text.includes("\n") && (run.headline.includes(first) || cause.includes(first)));
  };
  const {cause, calls} = causeOf(run);
  return h("section", {class: "head"},
    h("h1", {class: failed ? "bad" : ""}, failed || run.run.lanes ? sited(run.headline) : "All ranks returned"),
    run.last ? h("p", {class: "last-operation"}, sited(`${run.last[0].toUpperCase()}${run.last.slice(1)}`)) : null,
    h("div", {class: "facts soft"}, facts.map((fact) => h("span", {}, fact)), runs.length > 1 ? h("span", {}, run.path) : null),
    run.run.rerun ? h("div", {class: "rerun"}, h("code", {}, run.run.rerun),
      h("button", {class: "copy", click: (event) => copyText(run.run.rerun, event.target)}, "copy")) : null,
    failed && !run.run.rerun && run.run.schedule === "free" ? h("p", {class: "soft no-rerun"}, "No command repeats this run: no schedule repeats a free run. ",
      h("code", {}, "RANKLOOM_SEED=1"), " before the program's command runs it under a schedule that can be repeated; other numbers are other schedules.") : null,
    cause ? h("pre", {class: "cause"}, cause.length < MOST_SITED ? sited(cause) : cause) : null,
    calls ? h("details", {}, h("summary", {class: "soft"}, "last calls of ranks, as the report has them"), h("pre", {class: "last"}, calls)) : null,
    (run.run.failures || []).map((failure) => (failure.split("\n", 1)[0] === run.headline ? failure.slice(run.headline.length + 1) : failure)).filter((failure) => failure).map((failure) => h("pre", {class: "failure"}, failure)),
    h("div", {class: "beside"}, run.run.lanes ? null : h("table", {class: "outcomes"}, h("tr", {}, h("th", {}, "ranks"), h("th", {}, "ended"), h("th", {}, "with")),
      outcomes.map(([state, ranks, text]) => h("tr", {"data-state": state}, h("td", {}, `${isBad(run, ranks[0]) ? "\u2717 " : ""}${ranksText(ranks)}`), h("td", {}, stateText(run, ranks[0])),
        said(state, text) || (!text && run.asserted.has(ranks[0])) ? h("td", {class: "soft"}, "see above") : h("td", {}, text.length > 300 ? h("details", {}, h("summary", {}, text.slice(0, 200)), text) : text)))),
    namedPlaces(run)),
    run.faults.length ? [h("h2", {}, "Faults that struck"), h("ul", {class: "faults"}, run.faults.map((fault) => h("li", {class: "mono"}, fault)))] : null,
    run.notes.length ? [h("h2", {}, "Notes"), h("ul", {class: "notes"}, run.notes.map((note) => h("li", {}, note)))] : null,
    run.story ? explored(run) : null);
}

// A story's rows, as cells by rank; null: it is written otherwise.
function storyRows(story) {
  const lines = story.replace(/\n$/, "").split("\n"), rows = [];
  let columns = null;
  for (const line of lines) {
    const head = /^ {3}step( +rank \d+)+ *$/.exec(line), row = /^ *(\d+)( +)(\S.*)$/.exec(line);
    const gone = /^ +\.\.\. (\d+ earlier (?:steps?|switch(?:es)?)(?:, \d+ earlier switch(?:es)?)?)$/.exec(line);
    if (head && !columns) {
      columns = [...line.matchAll(/rank (\d+)/g)].map((found) => ({rank: +found[1], at: found.index}));
    } else if (gone) {
      rows.push({step: -1, rank: -1, text: gone[1]});
    } else if (row && columns) {
      const column = columns.find(({at}) => at === line.length - row[3].length);
      if (!column) return null;
      rows.push({step: +row[1], rank: column.rank, text: row[3]});
    } else if (row) {
      const found = /^rank (\d+): (.*)$/.exec(row[3]);
      if (!found) return null;
      rows.push({step: +row[1], rank: +found[1], text: found[2]});
    } else {
      return null;
    }
  }
  return rows.length ? rows : null;
}

// Rows that touch a key of a store which another rank touches, too, and of which one at least writes: row -> key.
function sharedRows(rows) {
  const keys = new Map(), found = new Map();
  for (const row of rows) {
    const named = STORE_ROW.exec(row.text);
    if (!named) continue;
    const key = named[2];
    if (!keys.has(key)) keys.set(key, {ranks: new Set(), writes: false, rows: []});
    const all = keys.get(key);
    all.ranks.add(row.rank);
    all.writes ||= !STORE_READS.has(named[1]);
    all.rows.push(row);
  }
  for (const [key, {ranks, writes, rows: touched}] of keys) if (ranks.size > 1 && writes) for (const row of touched) found.set(row, key);
  for (const row of countedWith(rows, (one) => (STORE_ROW.exec(one.text) || [])[1])) if (!found.has(row)) found.set(row, ALL_KEYS);
  return found;
}
const ALL_KEYS = "any key";
// Of operations on the store: those that find what keys there are, and what other ranks write, which changes that.
function countedWith(ops, what) {
  const counts = ops.filter((op) => STORE_COUNTS.has(what(op))), ranks = new Set(counts.map((op) => op.rank)), [first] = ranks;
  const writes = counts.length ? ops.filter((op) => what(op) && !STORE_READS.has(what(op)) && (ranks.size > 1 || op.rank !== first)) : [];
  const writers = new Set(writes.map((op) => op.rank));
  return writes.length ? [...counts.filter((op) => writers.size > 1 || !writers.has(op.rank)), ...writes] : [];
}

// How far a schedule departs from the default order, as reports count it; null: it is no such schedule.
function departures(schedule) {
  const found = /^steered:\d+(?::(.*))?$/.exec(schedule);
  return found ? (found[1] ? found[1].split(",") : []) : null;
}
const ROOTED = {broadcast: "gives", scatter: "gives", reduce: "takes", gather: "takes"};
const ALTERNATIVE = /^rank (-?\d+) at (.+?)(?: seq (\d+))?, (\d+) alternatives, number (\d+) chosen$/;
// What another alternative of a choice at a rank means.
function alternativeText(run, rank, op, seq, value) {
  const lane = run.lanes[rank], i = lane && lane.count ? lane.seq.findIndex((one, j) => one === seq && run.op(rank, j) === op) : -1;
  const where = `at ${rank >= 0 ? `rank ${rank}'s ` : ""}${op}${seq >= 0 ? ` seq ${seq}` : ""}${i >= 0 ? ` [${run.site(rank, i)}]` : ""}: `;
  if (!ROOTED[op]) return {i, text: `${where}alternative ${value} was taken, counted from 0`};
  if (!value) return {i, text: `${where}members of calls with a root go on together`};
  const {members} = i >= 0 ? run.meetings[lane.meeting[i]] : {members: []}, others = members.filter(([r]) => r !== rank);
  const before = run.stepped && i >= 0 && lane.doneAt[i] >= 0 && others.some(([r, j]) => run.lanes[r].begunAt[j] > lane.doneAt[i]);
  const root = i >= 0 ? run.members(run.group(rank, i))[run.kinds[lane.kind[i]].root] : -1;
  return {i, text: `${where}${before ? `${root === rank ? "the root" : `rank ${rank}`} went on before the others came` : "members of calls with a root go on each by itself"}`};
}
// The departures of a shrunk run that led to no other task: an alternative at a rank, as rows of its story.
function alternativeRows(run, rows) {
  const found = [], choices = ((run.explored || {}).choices || []).map((choice) => ALTERNATIVE.exec(choice)).filter((choice) => choice);
  for (const departure of departures(run.run.schedule) || []) {
    const [, at, nth, value] = /^(\d+)#(\d+)=(\d+)$/.exec(departure) || [];
    if (at === undefined || !(+at < run.size)) continue;
    const choice = choices.filter((one) => +one[1] === +at)[+nth], rank = +at;
    const told = choice && choice[5] === value ? alternativeText(run, rank, choice[2], choice[3] === undefined ? -1 : +choice[3], +value) :
      {i: -1, text: `at choice ${nth} of what happens at rank ${at}, counted from 0: alternative ${value}`};
    found.push({alternative: true, step: -1, rank, text: told.text, at: told.i >= 0 && run.stepped ? run.lanes[rank].begunAt[told.i] : -1});
  }
  // Each stands before the first row of which the file tells that it came later.
  const all = [...rows], later = (row) => {
    if (row.alternative || row.rank < 0) return -1;
    if (row.op) return row.op.step;
    const [, op, seq] = /^(\w+) seq (\d+) /.exec(row.text) || [], lane = run.lanes[row.rank];
    const i = op && lane && lane.count ? lane.seq.findIndex((one, j) => one === +seq && run.op(row.rank, j) === op) : -1;
    return i >= 0 && run.stepped ? Math.max(lane.begunAt[i], lane.doneAt[i]) : -1;
  };
  for (const row of found) {
    const place = all.findIndex((one) => row.at < 0 || later(one) > row.at);
    all.splice(place < 0 ? all.length : place, 0, row);
  }
  return all;
}

const TURN = "A turn of a rank, counted from 0. Scheduling points, which the store's operations and the axis of steps count, are other numbers: a turn may pass several.";
// A run's turns, a column a rank, with those to which switches led. A story that has no rows, or of too many ranks, as
// it is written.
function storyTable(name, story, rows, switches, shared) {
  const ranks = rows ? [...new Set(rows.map((row) => row.rank).filter((rank) => rank >= 0))].sort((a, b) => a - b) : [];
  if (!rows || ranks.length > 12) return h("pre", {class: name}, story);
  const switched = (row) => row.alternative || switches.has(row.step), words = (text) => text.replace(/(\(\d+ times since )step( \d+\))$/, "$1turn$2");
  return h("div", {class: "scroll"}, h("table", {class: name}, h("tr", {}, h("th", {title: TURN}, "turn"), ranks.map((rank) => h("th", {}, `rank ${rank}`))),
    rows.map((row) => h("tr", {class: [switched(row) ? "switched" : "", row.alternative ? "alternative" : "", shared.has(row) ? "shared" : ""].filter((kind) => kind).join(" ") || null,
      title: shared.has(row) ? `touches ${shared.get(row) === ALL_KEYS ? "" : "key "}${shared.get(row)}, as another rank does` : null}, h("td", {}, `${row.step < 0 ? "" : `${row.step} `}${switched(row) ? "\u21c4" : ""}`.trim()),
      row.rank < 0 ? h("td", {colspan: ranks.length, class: "soft"}, `... ${row.text.replace(/steps$/, "turns")}`) : ranks.map((rank) => h("td", {class: "mono"}, rank === row.rank ? sited(words(row.text)) : "", rank === row.rank && row.value ? h("span", {class: "value"}, row.value) : null))))));
}

// Gives rows of the run's story the values that the file has of their operations on the store: where the story has as many of a
// rank's on a key as the file.
function addValues(run, rows) {
  const all = new Map(), of = (key) => all.get(key) || all.set(key, {rows: [], did: []}).get(key);
  for (const row of rows) {
    const named = STORE_ROW.exec(row.text);
    if (named) of(`${row.rank} ${named[1]} ${named[2]}`).rows.push(row);
  }
  for (const op of run.did) of(`${op.rank} ${op.what} ${op.key}`).did.push(op);
  for (const {rows: some, did} of all.values()) if (some.length === did.length) some.forEach((row, i) => { row.value = valuesText(did[i]); row.op = did[i]; });
}

// What explore() found: the shrunk run, beside the one that it was made of; runs by strategy.
function explored(run) {
  let rows = storyRows(run.story);
  const facts = run.explored || {}, switches = new Set(facts.switches || []), departed = departures(run.run.schedule);
  if (rows) {
    addValues(run, rows);
    rows = alternativeRows(run, rows);
  }
  const shared = sharedRows(rows || []), parts = [h("h2", {}, `Found by ${run.strategy}: the shrunk run${facts.found_story ? ", beside the first that failed" : ""}`)];
  if (facts.run) {
    parts.push(h("p", {class: "soft found"}, `Found in its run ${facts.run}`, facts.found && facts.found !== run.strategy && facts.found !== run.run.schedule ? [", ", scheduleText(facts.found)] : "", `: ${facts.found_switches} switch${facts.found_switches === 1 ? "" : "es"} ` +
      "from the default order. ", `What is left of it after ${facts.shrink_runs} runs of shrinking: `, scheduleText(run.run.schedule), "."));
  }
  const table = storyTable("story", run.story, rows, switches, shared);
  if (facts.found_story) {
    const first = storyRows(facts.found_story), theirs = new Set(facts.found_story_switches), told = (n) => `${n} switch${n === 1 ? "" : "es"}`;
    parts.push(h("div", {class: "stories"},
      h("figure", {}, h("figcaption", {}, h("b", {}, "The first run that failed"), `, as it was found: ${told(facts.found_switches)} from the default order`),
        storyTable("first-story", facts.found_story, first, theirs, sharedRows(first || []))),
      h("figure", {}, h("figcaption", {}, h("b", {}, "The shrunk run"), `, what is left of it: ${told(departed ? departed.length : switches.size)}`), table)));
  } else {
    parts.push(table);
  }
  if (table.tagName !== "PRE") {
    if (shared.size) {
      const keys = [...new Set(shared.values())].filter((key) => key !== ALL_KEYS), counts = [...shared.values()].includes(ALL_KEYS);
      if (counts) parts.push(h("p", {class: "shared counts"}, "Marked: operations that find what keys there are, and what other ranks write. Their order decides what each finds."));
      if (keys.length) parts.push(h("p", {class: "shared"}, `Marked: operations on ${keys.length === 1 ? "the key" : "keys"} ${keys.slice(0, 8).join(", ")}${keys.length > 8 ? ", ..." : ""}, which ranks share and at least one writes. Their order decides what each finds.`));
    }
    parts.push(h("p", {class: "soft rows"}, "A row is a turn of a rank, by the operation that the turn begins with. An operation of the store is carried out in it; a call is issued in it or, if its rank had waited there, has completed. ",
      "Turns are counted from 0; the scheduling points above are counted apart, so that the two numbers differ."));
    parts.push(h("p", {class: "soft"}, switches.size ? "\u21c4: a switch led there: the default order would have gone on with another rank. " : "",
      rows.some((row) => row.alternative) ? "\u21c4 without a turn: what the default order would have done otherwise there. " : "",
      "Only turns that touch what others touch, where ranks were stopped for others, and each rank's last."));
  }
  const shares = facts.shares || [], most = Math.max(1, ...shares.map((share) => share.runs));
  if (shares.length) {
    parts.push(h("table", {class: "shares"}, h("tr", {}, ["strategy", "runs", "", "schedules that were not run"].map((name) => h("th", {}, name))), shares.map((share) => h("tr", {},
      h("td", {}, share.strategy), h("td", {}, share.runs), h("td", {class: "bar"}, h("i", {style: `width:${Math.max(2, Math.round((160 * share.runs) / most))}px`})),
      h("td", {}, share.strategy !== "exhaustive" ? "not counted" : share.finished ? "none" : `at least ${share.open}`)))));
  }
  if (facts.futures) parts.push(lostCurve(run, facts));
  return parts;
}

// A choice in words.
function choiceText(run, choice) {
  const [, rank, op, ready, task] = /^rank (-?\d+) at (.+), (\d+) ready, task (\d+) chosen$/.exec(choice) || [];
  const other = ALTERNATIVE.exec(choice);
  if (other) return alternativeText(run, +other[1], other[2], other[3] === undefined ? -1 : +other[3], +other[5]).text;
  if (task === undefined) return choice;
  const who = +task < run.size ? `rank ${task}` : `task ${task}, which is no rank,`, could = ` (${ready} could)`;
  if (+rank < 0) return `${who} began${could}`;
  return rank === task ? `rank ${rank} went on with ${op}${could}` : `${who} went on, not rank ${rank} with ${op}${could}`;
}

// When was it lost? Of the schedules that begin as the run does: how many fail, after each of its choices.
function lostCurve(run, facts) {
  const n = facts.choices.length, share = facts.lost.map((fail, made) => fail / facts.futures[made]), first = share.findIndex((value) => value === 1);
  const wide = 700, x = (made) => 50 + (wide * made) / Math.max(1, n), y = (value) => 100 - 80 * value, percent = (value) => `${+(100 * value).toPrecision(3)} %`;
  const told = (made) => `${made ? `after choice ${made} (${choiceText(run, facts.choices[made - 1])})` : "at the start"}: ${facts.lost[made]} of ${facts.futures[made]} ${facts.sampled ? "runs that went on at random" : "schedules"} fail (${percent(share[made])})`;
  const lost = facts.sampled ? (first < 0 ? "After no choice did all runs fail." : first === 0 ? "Every run of the sample failed." :
    `Lost by choice ${first} of ${n}: ${choiceText(run, facts.choices[first - 1])}. All ${facts.futures[first]} runs that began so failed.`) :
    first < 0 ? "At no choice are all schedules lost." : first === 0 ? "Every schedule fails." : `Lost with choice ${first} of ${n}: ${choiceText(run, facts.choices[first - 1])}. ${facts.futures[first] === 1 ? "The only schedule that begins so fails" : `All ${facts.futures[first]} schedules that begin so fail`}.`;
  return h("figure", {class: "lost"}, h("figcaption", {}, h("b", {}, "When was it lost? "), lost, h("span", {class: "soft"}, facts.sampled ? ` A sample: from each choice on, ${facts.futures[0]} runs went on at random.` : ` Exact: all ${facts.futures[0]} schedules of the shrunk run's world were run.`)),
    first === 0 ? null : h("svg:svg", {class: "lost", viewBox: "0 0 770 124", role: "img", "aria-label": lost},
      h("svg:path", {class: "axis", d: `M50 20V100H${50 + wide}`}), h("svg:text", {x: 46, y: 24, class: "row"}, "100 %"), h("svg:text", {x: 46, y: 103, class: "row"}, "0"),
      h("svg:text", {x: 50, y: 118, class: "left"}, `share of ${facts.sampled ? "random continuations" : "schedules"} that fail, after each choice of the run`),
      first > 0 ? [h("svg:path", {class: "mark", d: `M${x(first)} 12V100`}), h("svg:text", {x: x(first), y: 10}, "lost")] : null,
      h("svg:path", {class: "curve", d: share.map((value, made) => `${made ? "H" : "M"}${x(made)}${made ? "V" : " "}${y(value)}`).join("")}),
      n > 400 ? null : share.map((value, made) => h("svg:circle", {cx: x(made), cy: y(value), r: 4, class: made === first ? "first" : null}, h("svg:title", {}, told(made))))));
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
      const end = stateText(run, rank);
      if (!ends.has(end)) ends.set(end, new Set());
      ends.get(end).add(rank);
    }
  }
  for (const [end, ranks] of ends) add([...ranks].sort((a, b) => a - b), end);
  const nothing = new Map();  // waits that no rank in sight could end, by what they wait for
  for (const wait of run.waits) {
    if (wait.for.length) continue;
    const what = `${wait.what}${wait.detail ? ` ${wait.detail}` : ""}`;
    if (!nothing.has(what)) nodes.push({ranks: [], name: what, ended: run.why(wait), circle: false, index: nodes.length}), nothing.set(what, nodes[nodes.length - 1]);
  }
  const edges = new Map();
  for (const wait of run.waits) {
    const label = `${wait.what}${wait.seq >= 0 ? ` seq ${wait.seq}` : ""}`;
    for (const rank of each(wait.ranks)) {
      const from = nodeOf.get(rank);
      const targets = wait.for.length ? [...each(wait.for)].map((to) => nodeOf.get(to)) : [nothing.get(`${wait.what}${wait.detail ? ` ${wait.detail}` : ""}`)];
      for (const node of new Set(targets)) {
        const k = run.cycle.indexOf(rank);
        const inCircle = k >= 0 && k + 1 < run.cycle.length && node.circle && node.ranks.includes(run.cycle[k + 1]);
        const key = `${from.index} ${node.index} ${label}`;
        if (!edges.has(key)) edges.set(key, {from, to: node, label, site: `${baseName(wait.file)}:${wait.line}`, inCircle});
      }
    }
  }
  const table = h("table", {class: "waits"},
    h("tr", {}, ["ranks", "wait in", "for", "line of code", ...(circle.size ? ["circle"] : [])].map((name) => h("th", {}, name))),
    run.waits.map((wait) => {
      const ranks = [...each(wait.ranks)], inCircle = ranks.some((rank) => circle.has(rank));
      const go = (event) => { if (!event.target.closest("details")) jump(number, ranks[0]); };
      return h("tr", {class: inCircle ? "in-circle go" : "go", tabindex: "0", click: go, keydown: (event) => { if (event.key === "Enter") go(event); }},
      h("td", {}, rangesText(wait.ranks), wait.task === "rank" ? "" : ` (its ${wait.task})`),
      h("td", {}, `${wait.what}${wait.seq >= 0 ? ` seq ${wait.seq}` : ""}${wait.detail ? ` ${wait.detail}` : ""}`,
        wait.group ? ` in group ${wait.group}` : "", wait.remark ? `, ${wait.remark}` : ""),
      h("td", {}, wait.for.length ? rangesText(wait.for) : sited(run.why(wait))),
      h("td", {class: "mono"}, whereOf(wait)),
      circle.size ? h("td", {}, inCircle ? "yes" : "") : null);
    }));
  if (nodes.length > MOST_NODES) {
    return [h("p", {class: "soft"}, `${nodes.length} nodes are too many for a drawing; here they are as a table.`), h("div", {class: "scroll"}, table)];
  }
  const width = 760, inner = nodes.filter((node) => node.circle), outer = nodes.filter((node) => !node.circle);
  const nameOf = (node) => (node.name || ranksText(node.ranks)).slice(0, 40);
  const wide = (node) => Math.max(node.ended ? 96 : 70, 14 + 7 * nameOf(node).length, 14 + 5.4 * node.ended.length);
  const radius = inner.length ? Math.max(90, inner.length * 22) : 0;
  const ring = inner.length ? radius * 1.5 + 100 : outer.length > 1 ? Math.max(90, outer.length * 16) : 0;
  const tall = 2 * Math.max(radius, outer.length > 2 || !inner.length ? ring * 0.6 : 0) + 90;
  inner.forEach((node, i) => {
    const angle = (2 * Math.PI * i) / inner.length - (inner.length === 2 ? Math.PI : Math.PI / 2);  // two: side by side
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
  // Labels lie above all else, where they cover no node and no other label, if there is such a place near their edge.
  const labels = [], covered = nodes.map((node) => ({x: node.x, y: node.y, w: wide(node) + 4, t: 34}));
  const place = (text, at) => {
    const w = 5.4 * text.length + 8, t = 14;
    let best = null, least = Infinity;
    for (const share of [0.5, 0.4, 0.6, 0.3, 0.7]) {
      const [ax, ay] = at(share);
      for (const up of [0, -10, 10, -20, 20, -32, 32]) {
        for (const aside of [0, -0.25, 0.25, -0.5, 0.5]) {
          const box = {x: Math.min(width - w / 2 - 2, Math.max(w / 2 + 2, ax + aside * w)), y: Math.min(tall - 9, Math.max(9, ay + up)), w, t};
          const over = covered.reduce((sum, one) => sum + Math.max(0, (one.w + w) / 2 - Math.abs(one.x - box.x)) * Math.max(0, (one.t + t) / 2 - Math.abs(one.y - box.y)), 0);
          const cost = 100 * over + Math.abs(up) + 30 * Math.abs(aside) + 20 * Math.abs(share - 0.5);
          if (cost < least) [best, least] = [box, cost];
        }
      }
    }
    covered.push(best);
    labels.push(h("svg:rect", {class: "edge", x: best.x - w / 2, y: best.y - t / 2, width: w, height: t}), h("svg:text", {class: "edge", x: best.x, y: best.y + 3.5}, text));
  };
  const drawn = [...edges.values()].map((edge) => {
    const title = h("svg:title", {}, `${ranksText(edge.from.ranks)} -> ${nameOf(edge.to)}: ${edge.label}, ${edge.site}`);
    const attributes = {class: edge.inCircle ? "wait in-circle" : "wait", "marker-end": `url(#arrow${number}${edge.inCircle ? "hot" : ""})`};
    const {from, to} = edge;
    const label = edges.size <= 16 ? `${edge.label}, ${edge.site}` : "";
    if (from === to) {
      if (label) place(label, () => [from.x, from.y - 48]);
      return h("svg:path", {...attributes, d: `M${from.x - 12} ${from.y - 17}c-16 -34 40 -34 24 0`}, title);
    }
    const mx = (from.x + to.x) / 2 + (to.y - from.y) * 0.14, my = (from.y + to.y) / 2 - (to.x - from.x) * 0.14;
    const [ax, ay] = border(from, mx, my), [bx, by] = border(to, mx, my);
    const along = (t) => [[ax, mx, bx], [ay, my, by]].map(([a, m, b]) => (1 - t) ** 2 * a + 2 * t * (1 - t) * m + t * t * b);
    if (label) place(label, along);
    return h("svg:path", {...attributes, d: `M${ax} ${ay}Q${mx} ${my} ${bx} ${by}`}, title);
  });
  const boxes = nodes.map((node) => h("svg:g", {class: `node${node.circle ? " in-circle" : ""}${node.ended ? " ended" : ""}`,
    "data-ranks": node.ranks.join(","), ...(node.ranks.length ? {tabindex: "0", role: "button", click: () => jump(number, node.ranks[0]),
    keydown: (event) => { if (event.key === "Enter") jump(number, node.ranks[0]); }} : {})},
  h("svg:rect", {x: node.x - wide(node) / 2, y: node.y - 15, width: wide(node), height: 30, rx: 6}),
  h("svg:text", {x: node.x, y: node.y + (node.ended ? -1 : 4)}, nameOf(node)),
  node.ended ? h("svg:text", {class: "edge", x: node.x, y: node.y + 11}, node.ended) : null));
  const svg = h("svg:svg", {class: "waits", viewBox: `0 0 ${width} ${tall}`, role: "img",
    "aria-label": run.cycle.length ? `Who waits for whom. Circle: rank ${run.cycle.join(" -> rank ")}` : "Who waits for whom: no circle"},
  h("svg:defs", {}, marker(`arrow${number}`, ""), marker(`arrow${number}hot`, "hot")), drawn, boxes, labels);
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

// Elements that a call of all_to_all or all_to_all_single sends to each of `n` members and gets from each; null: not known.
function exchanged(kind, n) {
  const count = (sizes) => sizes.reduce((a, b) => a * b, 1);
  if (kind.op === "all_to_all") return kind.in.length === n && kind.out.length === n ? {sends: kind.in.map(count), gets: kind.out.map(count)} : null;
  if (kind.op !== "all_to_all_single" || kind.in.length !== 1 || kind.out.length !== 1) return null;
  const parts = ([shape], splits) => {
    const row = count(shape.slice(1));
    return Array.from({length: n}, (_, i) => (splits && splits.length ? splits[i] || 0 : (shape[0] || 0) / n) * row);
  };
  return {sends: parts(kind.in, kind.splits && kind.splits[0]), gets: parts(kind.out, kind.splits && kind.splits[1])};
}

// Members of an all_to_all of which one sends another number of elements than the other wants.
function clashing(run, group, cells) {
  const clash = new Set(), members = run.members(group);
  const [first] = cells;
  if (!first || members.length > MOST_SPLITS || !run.op(first[0], first[1].i).startsWith("all_to_all")) return clash;
  const parts = members.map((rank) => {
    const cell = cells.get(rank), kind = cell && run.kinds[run.lanes[rank].kind[cell.i]];
    return kind ? exchanged(kind, members.length) : null;
  });
  parts.forEach((from, i) => parts.forEach((to, j) => {
    if (from && to && from.sends[j] !== to.gets[i]) clash.add(members[i]).add(members[j]);
  }));
  return clash;
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
    const clash = clashing(run, group, cells);
    const x = Math.min(...meeting.members.map(([rank, i]) => run.lanes[rank].order.from[i]));
    rows.push({meeting, group, cells, major, missing, clash, split: counts.size > 1, odd: counts.size > 1 || missing.length > 0 || clash.size > 0, x});
  }
  return rows.sort((a, b) => a.x - b.x || a.missing.length - b.missing.length || a.meeting.group - b.meeting.group || a.meeting.seq - b.meeting.seq);
}

function matrix(run, number) {
  const every = run.rows;
  if (!every.length) return null;
  const odd = every.filter((row) => row.odd);
  const section = h("section", {class: "matrix"});
  const fill = () => {
    const chosen = view.rows === "all" ? every : odd;
    const rows = chosen.slice(-MOST_ROWS);
    const cell = (row, rank) => {
      const found = row.cells.get(rank);
      if (found) return found.text === row.major && !row.clash.has(rank) ? {kind: "same", i: found.i} : {kind: "odd", i: found.i};
      return row.missing.includes(rank) ? {kind: "none"} : {kind: ""};
    };
    let columns = Array.from({length: run.size}, (_, rank) => [rank]);
    if (run.size > MOST_COLUMNS) {
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
      const go = () => { timelines[number].choose(ranks[0], i); timelines[number].reveal(); changed(); };
      return h("td", {class: kind, title: `${call.file}:${call.line}`, click: go, ...(kind === "odd" ? {tabindex: "0", keydown: (event) => { if (event.key === "Enter") go(); }} : {})},
        `${call.op}${call.root >= 0 ? ` root ${call.root}` : ""}`, kind === "odd" ? h("div", {class: "mono"}, sited(`${run.sizes(call)} ${run.site(ranks[0], i)}`)) : null);
    })));
    section.replaceChildren(...[
      h("h2", {}, whose(run), odd.length ? `Calls in which members differ (${odd.length} of ${every.length})` : "Calls: no member differs"),
      !chosen.length ? null : h("p", {class: "soft"}, "Grey: what most members called. Framed: what differs. Hatched: a member that never came.",
        rows.length < chosen.length ? ` The last ${rows.length} of ${chosen.length} rows.` : "",
        run.size > MOST_COLUMNS ? " Ranks that called alike share a column." : ""),
      h("button", {class: "rows", click: () => { view.rows = view.rows === "all" ? "" : "all"; writeFragment(); fill(); }},
        view.rows === "all" ? "fewer rows" : "all rows"),
      !chosen.length ? null : h("div", {class: "scroll"}, h("table", {class: "calls"},
        h("tr", {}, h("th", {}, "call"), columns.map((ranks) => h("th", {}, run.size > MOST_COLUMNS ? ranksText(ranks) : ranks[0]))), body))].filter((part) => part));
  };
  section.fill = fill;
  fill();
  return section;
}

// --- controls and details

let controls = {}, details = null;
let keysHelp = null;
// What can be unfolded and has no word of its own in the fragment: by number.
const unfolding = () => [...document.querySelectorAll("#page details:not(.sums):not(.keys):not(.gaps)")];
function syncControls() {
  if (keysHelp) keysHelp.open = view.keys === "yes";
  const open = new Set(view.open.split(","));
  unfolding().forEach((element, i) => { element.open = open.has(`${i}`); });
  for (const element of document.querySelectorAll("details.sums")) element.open = view.bytes ? view.bytes === "yes" : runs.some((run) => run.run.lanes);
  for (const element of document.querySelectorAll("details.gaps")) element.open = view.gaps ? view.gaps === "yes" : misses(element.run);
  for (const [name, input] of Object.entries(controls)) input.value = view[name];
  if (controls.fold && timelines.length) controls.fold.value = timelines[0].folds() ? "yes" : "no";
}
function makeControls() {
  const input = (name, label, attributes) => {
    controls[name] = h("input", {name, size: 9, input: (event) => { view[name] = event.target.value; if (name === "rank") view.y = null; changed(); }, ...attributes});
    return h("label", {}, label, controls[name]);
  };
  const select = (name, label, values, any) => {
    controls[name] = h("select", {name, change: (event) => { view[name] = event.target.value; if (name === "axis") view.x = null; if (name === "fold") view.y = null; if (name === "colour") fillLegend(); changed(); }},
      any ? h("option", {value: ""}, any) : null, values.map(([value, text]) => h("option", {value}, text)));
    return h("label", {}, label, controls[name]);
  };
  const groups = new Map(), ops = legendOps;
  for (const run of runs) for (const group of run.groups) groups.set(group.name, `${group.name} ${run.run.lanes ? `(${group.of || group.size} ranks)` : membersText(run, group).slice(0, 40)}`);
  const timed = runs.some((run) => run.timeEnd > 0);
  const at = () => timelines[0];
  return h("div", {class: "controls"},
    input("rank", "ranks", {placeholder: "0-3, 7"}), select("group", "group", [...groups], "all"), select("op", "op", ops.map((op) => [op, op]), "all"),
    input("text", "text", {placeholder: "op, file, shape", type: "search", size: 16}),
    select("axis", "axis", [["order", "order of calls"], ...(timed ? [["time", "time"]] : []), ...(runs.every((run) => run.stepped) ? [["step", "steps"]] : [])]),
    select("colour", "colour", [["group", "group"]], "op"),
    runs.some((run) => run.size > 1) ? select("fold", "lanes", [["no", "a lane a rank"], ["yes", "alike ranks together"]]) : null,
    h("button", {class: "in", title: "zoom in: +", click: () => at().zoom(1.5)}, "+"), h("button", {class: "out", title: "zoom out: -", click: () => at().zoom(1 / 1.5)}, "\u2212"),
    h("button", {class: "all", title: "all: 0", click: () => at().all()}, "all"));
}

// What a call's colour stands for: its operation or its group.
const legendKey = (run, kind) => (view.colour === "group" ? run.groups[kind.group].name : kind.op);
let legendElement = null;
function fillLegend() {
  const counts = new Map(), made = new Map();
  for (const run of runs) {
    const per = new Int32Array(run.kinds.length);
    for (const lane of run.lanes) for (let i = 0; i < lane.count; ++i) ++per[lane.kind[i]];
    run.kinds.forEach((kind, i) => counts.set(legendKey(run, kind), (counts.get(legendKey(run, kind)) || 0) + per[i]));
    run.kinds.forEach((kind, i) => made.set(kind.op, (made.get(kind.op) || 0) + per[i]));
  }
  const order = (all) => [...all].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const names = order(counts), byGroup = view.colour === "group", most = byGroup ? COLOURS.length - 1 : MOST_OPS;
  const shared = names.length > most + 1 ? names.slice(most) : [];
  const computed = new Set(runs.flatMap((run) => (run.run.lanes ? run.kinds.filter((kind) => kind.wire === undefined).map((kind) => kind.op) : [])));
  legend = new Map(names.map(([name], i) => [name, byGroup ? COLOURS[Math.min(i, COLOURS.length - 1)] : opColour(name, computed.has(name))]));
  legendOps = order(made).map(([op]) => op);
  const what = byGroup ? "group " : "";
  legendElement.replaceChildren(...names.slice(0, names.length - shared.length).map(([name, count]) => h("span", {}, h("i", {style: `background:${legend.get(name)}`}), `${what}${name} (${count})`)),
    ...(shared.length ? [h("span", {}, byGroup ? h("i", {style: `background:${COLOURS[COLOURS.length - 1]}`}) : null, `${shared.length} others (${shared.reduce((sum, [, count]) => sum + count, 0)})`)] : []),
    h("span", {class: "soft marks"}, marksOnPage().join("; ")));
}
// What marks mean, of those that the timelines have.
function marksOnPage() {
  const every = runs.flatMap((run) => run.lanes), some = (true_) => every.some((lane) => { for (let i = 0; i < lane.count; ++i) if (true_(lane, i)) return true; return false; });
  return [
    some((lane, i) => [lane.order, lane.time].some(({from, met}) => met[i] > from[i])) ? `pale: until ${runs.some((run) => run.run.lanes) ? "its group is through with calls before" : "all members came"}` : "",
    some((lane, i) => lane.state[i] !== "c" || lane.order.to[i] === Infinity) ? "hatched: not complete or failed" : "",
    some((lane, i) => lane.odd[i] === 1) ? "\u2260, a thick frame: differs from most" : "",
    runs.some((run) => run.absent.some(({rank}) => !run.waiting.has(rank))) ? "dashed: never came" : "",
    runs.some((run) => run.struck.size) ? "\u26a1: a fault struck" : "",
  ].filter((mark) => mark);
}
let legendOps = [];

function whereOf(place) {
  if (!place.file) return "";
  const short = `${baseName(place.file)}:${place.line}`, lines = sourceLines(place);
  return lines ? h("details", {}, h("summary", {}, sited(short)), lines) : h("span", {class: "site"}, short);
}

// The lines around a call, where the page has them.
function sourceLines(kind) {
  const found = sources[`${kind.file}:${kind.line}`];
  if (!found) return null;
  return pane({...found, marked: new Set([kind.line])});
}
const pane = ({path, first, lines, marked, again, notes}) => h("figure", {class: "source"}, h("figcaption", {class: "soft"}, again ? "the same file" : `${path}, as it was when this page was made`),
  h("pre", {}, lines.map((text, i) => h("span", {class: marked.has(first + i) ? "here" : null}, `${String(first + i).padStart(5)}  ${text}`,
    notes && notes.has(first + i) ? h("span", {class: "note"}, `  \u2190 ${notes.get(first + i)}`) : null, "\n"))));

function showDetails() {
  const stored = chosenOperation();
  if (stored) {
    details.replaceChildren(...operationDetails(stored));
    return;
  }
  const [number, rank] = view.call.split(".").map(Number), timeline = timelines[number], at = view.call && timeline ? timeline.chosen() : null;
  if (!at) {
    details.replaceChildren(h("p", {class: "soft"}, "Click a call for its details: group, tensors, peers, times, line of code. Wheel zooms (with shift: ranks), dragging pans; ? shows the keys."));
    return;
  }
  const run = timeline.run, lane = run.lanes[rank], {i} = at, kind = run.kinds[lane.kind[i]], group = run.group(rank, i);
  const meeting = run.meetings[lane.meeting[i]];
  if (run.run.lanes) {
    details.replaceChildren(...[h("table", {class: "details"}, fakeDetails(run, at).map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))), sourceLines(kind)].filter((part) => part));
    return;
  }
  const came = meeting.members.map(([r]) => r).sort((a, b) => a - b);
  const missing = meeting.p2p ? [] : run.members(group).filter((r) => !came.includes(r));
  const last = meeting.members.reduce((a, b) => (run.lanes[b[0]].issued[b[1]] > run.lanes[a[0]].issued[a[1]] ? b : a));
  const waits = run.waiting.get(rank), stuck = Boolean(waits && waits.i === i), split = splitOf(run, meeting), timed = run.timeEnd > 0;
  const members = `ranks ${membersText(run, group)}`;
  const rows = [["call", `${run.label(rank, i)}, the ${ordinal(lane.first + i + 1)} call of ${run.name(rank)}`], ["group", `${group.name}${described(group) ? ` (${described(group)})` : ""}, ${members}`],
    ["tensors", run.sizes(kind) || "none"], ["line of code", `${kind.file}:${kind.line}`], ["state", run.callState(rank, i)]];
  if (timed) {
    rows.push(["issued", timeText(lane.issued[i])]);
    if (!split && lane.arrived[i] >= 0) rows.push(["all had come", timeText(lane.arrived[i])]);
    if (!stuck && lane.ended[i] >= 0) rows.push([lane.state[i] === "f" ? "failed" : "ended", timeText(lane.ended[i])]);
  } else {
    rows.push(["times", "not timed: no time passed in this run"]);
  }
  if (run.stepped) rows.push(["steps", `issued at ${lane.begunAt[i]}${!stuck && lane.doneAt[i] >= 0 ? `, ended at ${lane.doneAt[i]}` : ""}`]);
  if (split) {
    for (const [what, ranks] of split.sort((a, b) => b[1].includes(rank) - a[1].includes(rank))) {
      const own = ranks.includes(rank), [first] = ranks, j = meeting.members.find(([r]) => r === first)[1];
      rows.push([own ? "issued by" : "others issued", own ? `${ranksText(ranks)}` : `${what} by ${ranksText(ranks)} (${run.site(first, j)})`]);
    }
  } else {
    rows.push([meeting.p2p ? "matched with" : "members that came", meeting.p2p ? (came.length === 2 ? `rank ${came.find((r) => r !== rank) ?? `${rank}, itself`}` : "nobody, as far as the file tells") : ranksText(came)]);
  }
  if (missing.length) rows.push(["never came", ranksText(missing)]);
  if (timed && !split && !meeting.p2p && came.length > 1) rows.push(["last to come", `rank ${last[0]} at ${timeText(run.lanes[last[0]].issued[last[1]])}`]);
  if (kind.timeout_ns) rows.push(["timeout", timeText(kind.timeout_ns)]);
  details.replaceChildren(...[h("table", {class: "details"}, rows.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))),
    splits(run, meeting), sourceLines(kind)].filter((part) => part));
}

// Of a call of a fake rank, or a stretch of its computation.
function fakeDetails(run, {rank, i}) {
  const lane = run.lanes[rank], kind = run.kinds[lane.kind[i]], group = run.group(rank, i), times = [["ended", lane.ended[i] < 0 ? "not" : timeText(lane.ended[i])]];
  if (kind.wire === undefined) return [["computation", `${kind.op}, of ${run.name(rank)}`], ["begun", timeText(lane.issued[i])], ...times];
  const other = run.meetings[lane.meeting[i]].members.find(([r]) => r !== rank), waited = lane.arrived[i] > lane.issued[i];
  return [["call", `${run.label(rank, i)}, the ${ordinal(lane.first + i + 1)} call of ${run.name(rank)}`], ["group", `${group.name}${described(group) ? ` (${described(group)})` : ""}, ${group.of || group.size} ranks`],
    ["tensors", run.sizes(kind) || "none"], ["bytes", `${bytesText(kind.wire)} over a ring`], ["line of code", `${kind.file}:${kind.line}`], ["issued", timeText(lane.issued[i])],
    ...(waited ? [["begun", `${timeText(lane.arrived[i])}, when its group was through with the calls before`]] : []), ...times, ...(kind.p2p ? [["matched with", other ? run.name(other[0]) : "a rank that was not traced"]] : [])];
}

// --- what ranks did with the store

const valueText = (shown_, bytes) => (bytes <= SHOWN_BYTES ? `"${shown_}"` : `"${shown_}..." (${bytes} bytes)`);
const operationLabel = (op) => `store ${op.what}${op.key === undefined ? "" : ` "${op.key}"`}${op.keys > 1 ? ` and ${op.keys - 1} more` : ""}`;
const OPERATION_STATES = {s: "not ended", w: "not complete", c: "done", f: "failed"};
const valuesText = (op) => `${op.given === undefined ? "" : ` = ${valueText(op.given, op.given_bytes)}`}${op.got === undefined ? "" : ` -> ${valueText(op.got, op.got_bytes)}`}`;
const operationText = (op) => `${operationLabel(op)}${valuesText(op)} (${OPERATION_STATES[op.state]}) ${baseName(op.file)}:${op.line}`;
const operationFits = (op) => !view.text || operationText(op).toLowerCase().includes(view.text.toLowerCase());

function chosenOperation() {
  const [number, rank, index] = view.store.split(".").map(Number), run = view.store ? runs[number] : null, lane = run && run.lanes[rank];
  const op = lane && lane.did.find((one) => one.index === index);
  return op ? {run, op} : null;
}
function operationDetails({run, op}) {
  const rows = [["operation", `${operationLabel(op)}, the ${ordinal(op.index + 1)} of ${run.name(op.rank)} on the store`]];
  if (op.given !== undefined) rows.push([op.what === "add" ? "added" : "written", valueText(op.given, op.given_bytes)]);
  if (op.got !== undefined) rows.push(["found", valueText(op.got, op.got_bytes)]);
  rows.push(["state", OPERATION_STATES[op.state]], ["line of code", `${op.file}:${op.line}`]);
  if (op.at.step >= 0) rows.push(["steps", `begun at ${op.step}${op.done >= 0 ? `, ended at ${op.step + op.done}` : ""}`]);
  if (run.timeEnd > 0) rows.push(["times", `begun ${timeText(op.begun)}${op.ended >= 0 ? `, ended ${timeText(op.begun + op.ended)}` : ""}`]);
  const beside = op.shared ? run.did.filter((other) => other.key === op.key && other.rank !== op.rank) : [];
  if (beside.length) rows.push(["other ranks on this key", ranksText([...new Set(beside.map((other) => other.rank))].sort((a, b) => a - b))]);
  return [h("table", {class: "details"}, rows.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))), sourceLines(op)].filter((part) => part);
}

// The last operations, in their order.
function storeSection(run, number) {
  if (!run.did.length) return null;
  const section = h("section", {class: "store"});
  let filled = null;
  section.fill = () => {
    const key = `${view.rank}\n${view.text}`;
    if (filled === key) return;
    filled = key;
    const wanted = rankFilter(), fits = run.did.filter((op) => (!wanted || within(wanted, op.rank)) && operationFits(op)), rows = fits.slice(-MOST_ROWS);
    const made = run.store.reduce((sum, line) => sum + line.made, 0), axis = run.stepped ? "step" : "time";
    const cell = (shown_, bytes) => h("td", {class: "mono value"}, shown_ === undefined ? "" : valueText(shown_, bytes));
    section.replaceChildren(h("h2", {}, whose(run), `Operations on the store (${made})`),
      h("p", {class: "soft"}, "In the order in which they began; of a value the first bytes. Marked: keys that ranks share and at least one writes.",
        rows.length < fits.length ? ` The last ${rows.length} of ${fits.length}; the filters above choose ranks and texts.` : "", made > run.did.length ? ` The file has the last ${run.did.length}.` : ""),
      h("div", {class: "scroll"}, h("table", {class: "store"}, h("tr", {}, [axis, "rank", "operation", "written", "found", "line of code"].map((name) => h("th", {}, name))),
        rows.map((op) => {
          const go = () => { timelines[number].chooseOperation(op); };
          return h("tr", {class: ["go", op.shared ? "shared" : "", op.state === "c" ? "" : "open"].filter((name) => name).join(" "), tabindex: "0", click: go, keydown: (event) => { if (event.key === "Enter") go(); }},
            h("td", {}, axis === "step" ? op.step : timeText(op.begun)), h("td", {}, op.rank), h("td", {class: "mono"}, operationLabel(op), op.state === "c" ? "" : ` (${OPERATION_STATES[op.state]})`),
            cell(op.given, op.given_bytes), cell(op.got, op.got_bytes), h("td", {class: "mono"}, sited(`${baseName(op.file)}:${op.line}`)));
        }))));
  };
  section.fill();
  return section;
}

// Of a call in which members called different things: what, and who did. null: they called the same.
function splitOf(run, meeting) {
  const row = meeting.p2p ? null : run.rows.find((one) => one.meeting === meeting), found = new Map();
  if (!row || !row.split) return null;
  for (const [rank, {i, text}] of [...row.cells].sort((a, b) => a[0] - b[0])) {
    if (!found.has(text)) found.set(text, [`${run.label(rank, i)}${run.sizes(run.kinds[run.lanes[rank].kind[i]]) ? `, ${run.sizes(run.kinds[run.lanes[rank].kind[i]])},` : ""}`, []]);
    found.get(text)[1].push(rank);
  }
  return [...found.values()];
}

// Who sends how much to whom in an all_to_all: a row a sender, a column a receiver.
const MOST_SPLITS = 128;
function splits(run, meeting) {
  const [[rank0, i0]] = meeting.members, {op} = run.kinds[run.lanes[rank0].kind[i0]], group = run.groups[meeting.group], n = group.size;
  if (!op.startsWith("all_to_all") || meeting.p2p) return null;
  const members = run.members(group), rows = new Map();
  for (const [rank, i] of meeting.members) {
    const row = exchanged(run.kinds[run.lanes[rank].kind[i]], n);
    if (row && n > 1) rows.set(rank, row);
  }
  if (!rows.size) return null;
  if (n > MOST_SPLITS) return h("p", {class: "soft"}, `${n} members are too many for a map of who sends to whom.`);
  const most = [...rows.values()].reduce((high, row) => Math.max(high, ...row.sends), 1), cell = n <= 16 ? 34 : n <= 64 ? 12 : 2, left = 60, top = 34;
  let differ = 0;
  const cells = members.flatMap((from, r) => members.map((to, c) => {
    const sends = rows.has(from) ? rows.get(from).sends[c] : -1, gets = rows.has(to) ? rows.get(to).gets[r] : -1, odd = sends >= 0 && gets >= 0 && sends !== gets;
    if (odd) ++differ;
    return [h("svg:rect", {x: left + c * cell, y: top + r * cell, width: cell - 1, height: cell - 1, class: odd ? "odd" : sends < 0 ? "none" : null, fill: sends < 0 ? "none" : "#0072b2",
      "fill-opacity": sends < 0 ? null : 0.08 + (0.92 * sends) / most}, h("svg:title", {}, `rank ${from} sends ${sends < 0 ? "?" : sends} to rank ${to}, which wants ${gets < 0 ? "?" : gets}`)),
    n <= 16 ? h("svg:text", {x: left + c * cell + cell / 2, y: top + r * cell + cell / 2 + 4, class: sends > 0.55 * most ? "on" : null}, `${sends < 0 ? "?" : sends}${odd ? `\u2260${gets}` : ""}`) : null];
  }));
  const step = Math.max(1, Math.ceil(16 / cell)), names = members.flatMap((rank, i) => (i % step ? [] : [
    h("svg:text", {x: left - 6, y: top + i * cell + cell / 2 + 4, class: "row"}, rank), h("svg:text", {x: left + i * cell + cell / 2, y: top - 6}, rank)]));
  return h("figure", {class: "splits"}, h("figcaption", {class: "soft"}, `Elements that each rank (row) sends to each (column)${differ ? `; framed: ${differ} of which the receiver wants another number` : ""}`),
    h("svg:svg", {class: "splits", width: left + n * cell + 10, height: top + n * cell + 8, role: "img", "aria-label": `Elements sent among ${n} ranks`}, cells, names));
}

// --- bytes and time by group, and what calls in flight hold

const MOST_SUMMED = 2_000_000;
function sums(run) {
  const found = new Map();
  const rowOf = (number, op) => {
    const group = run.groups[number], name = described(group) || group.name, key = `${name}\n${group.of || group.size}\n${op}`;
    let row = found.get(key);
    if (!row) found.set(key, row = {name: name === group.name ? `group ${name}` : name, size: group.of || group.size, op, groups: new Set(), calls: 0, bytes: 0, waits: 0, works: 0});
    row.groups.add(number);
    return row;
  };
  for (const {totals} of run.fake ? run.fake.ranks : []) {
    for (const {group, op, calls, ring_bytes, time_ns} of totals) {
      const row = rowOf(group, op);
      row.calls += calls;
      row.bytes += ring_bytes;
      row.works += time_ns;
    }
  }
  for (const lane of run.lanes) {
    for (let i = 0; i < lane.count; ++i) {
      const kind = run.kinds[lane.kind[i]];
      if (run.fake && kind.wire !== undefined) continue;  // a call: the totals have it
      const row = rowOf(kind.group, kind.op);
      ++row.calls;
      row.bytes += kind.wire === undefined ? run.bytes(kind) : kind.wire;
      const to = Math.min(run.timeEnd, lane.time.to[i]), met = Math.min(to, lane.time.met[i]);
      row.waits += met - lane.time.from[i];
      row.works += to - met;
    }
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes || b.waits - a.waits || b.calls - a.calls);
}
// The most bytes that tensors of calls in flight hold at a place of the axis, of all ranks together: [place, bytes] in order.
function inFlight(run, axis) {
  const events = [];
  for (const lane of run.lanes) {
    for (let i = 0; i < lane.count; ++i) {
      const kind = run.kinds[lane.kind[i]], bytes = run.bytes(kind);
      if (bytes) events.push([lane[axis].from[i], bytes], [lane[axis].to[i], -bytes]);
    }
  }
  events.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const steps = [];
  let now = 0;
  for (const [at, change] of events) {
    if (at === Infinity) break;
    now += change;
    if (steps.length && steps[steps.length - 1][0] === at) steps[steps.length - 1][1] = now;
    else steps.push([at, now]);
  }
  return steps;
}
// What each traced rank of a fake world did in all, by its own record.
function fakeRanks(run) {
  if (!run.fake || !run.fake.ranks.length) return null;
  const most = Math.max(1, ...run.fake.ranks.map((rank) => rank.peak_buffer_bytes));
  return [h("table", {class: "bytes fake"}, h("tr", {}, ["rank", "calls", "computes", "ends at", "buffers, at most", ""].map((name) => h("th", {}, name))),
    run.fake.ranks.slice(0, MOST_ROWS).map((rank) => h("tr", {}, [rank.rank, rank.calls, timeText(rank.compute_ns), timeText(rank.end_ns), bytesText(rank.peak_buffer_bytes)].map((text) => h("td", {}, text)),
      h("td", {class: "bar"}, h("i", {style: `width:${Math.round((120 * Math.max(0, rank.peak_buffer_bytes)) / most)}px`}))))),
  h("p", {class: "soft"}, "Buffers: inputs and outputs of calls that were issued and neither waited for nor dropped, of one rank.",
    run.fake.ranks.length > MOST_ROWS ? ` The first ${MOST_ROWS} of ${run.fake.ranks.length} ranks.` : "")];
}
function bytesSection(run) {
  const calls = run.lanes.reduce((sum, lane) => sum + lane.count, 0);
  if (!calls) return null;
  const content = h("div", {});
  const fill = () => {
    if (calls > MOST_SUMMED) {
      content.replaceChildren(h("p", {class: "soft"}, `${calls} calls are too many to add up here.`));
      return;
    }
    const rows = sums(run), timed = run.timeEnd > 0, most = (name) => Math.max(1, ...rows.map((row) => row[name]));
    const bar = (value, all, kind) => h("i", {class: kind, style: `width:${value ? Math.max(1, Math.round((120 * value) / all)) : 0}px`});
    const bytes = most("bytes"), time = Math.max(1, ...rows.map((row) => row.waits + row.works)), axis = timed ? "time" : "order";
    const steps = inFlight(run, axis), peak = steps.reduce((high, [, held]) => Math.max(high, held), 0), end = timed ? run.timeEnd : run.orderEnd;
    const x = (at) => 70 + (680 * Math.min(at, end)) / (end || 1), y = (held) => 90 - (75 * held) / (peak || 1);
    let path = `M${x(0)} ${y(0)}`;
    // A point for each pixel: the least and the most there.
    for (let k = 0; k < steps.length;) {
      const column = Math.round(x(steps[k][0]));
      let low = Infinity, high = 0, last = 0;
      for (; k < steps.length && Math.round(x(steps[k][0])) === column; ++k) [low, high, last] = [Math.min(low, steps[k][1]), Math.max(high, steps[k][1]), steps[k][1]];
      path += `H${column}V${y(high).toFixed(1)}V${y(low).toFixed(1)}V${y(last).toFixed(1)}`;
    }
    content.replaceChildren(...[
      h("table", {class: "bytes"}, h("tr", {}, ["group", "ranks", "call", "calls", "bytes", "", ...(!timed ? [] : run.run.lanes ? ["time", ""] : ["waiting for members", "then, until done", ""])].map((name) => h("th", {}, name))),
        rows.slice(0, MOST_ROWS).map((row) => h("tr", {}, h("td", {}, row.groups.size > 1 ? `${row.name}, ${row.groups.size} groups` : `${row.name}${run.run.lanes ? "" : `: ${membersText(run, run.groups[[...row.groups][0]])}`}`), h("td", {}, row.size), h("td", {}, row.op), h("td", {}, row.calls),
          h("td", {}, bytesText(row.bytes)), h("td", {class: "bar"}, bar(row.bytes, bytes, "")),
          timed ? [run.run.lanes ? null : h("td", {}, timeText(row.waits)), h("td", {}, timeText(row.works)), h("td", {class: "bar"}, bar(row.waits, time, "waits"), bar(row.works, time, ""))] : null))),
      h("p", {class: "soft"}, run.run.lanes ? "Bytes: what a ring sends over the wire, added up over the traced ranks. " :
        "Bytes: of each call the larger of its inputs and outputs, added up over all ranks; not what goes over a wire. ", timed ? `Times: added up over ${run.run.lanes ? "them" : "all ranks"}.` : ""),
      fakeRanks(run),
      peak ? h("svg:svg", {class: "held", viewBox: "0 0 760 110", role: "img", "aria-label": `Tensors of calls in flight hold ${bytesText(peak)} at most`},
        h("svg:path", {d: path}), h("svg:text", {x: 64, y: 18, class: "row"}, bytesText(peak)), h("svg:text", {x: 64, y: 93, class: "row"}, "0"),
        h("svg:text", {x: 70, y: 106, class: "left"}, `tensors of calls in flight, of all ${run.run.lanes ? "traced " : ""}ranks, along ${timed ? "time" : "the order of calls"}`), h("svg:text", {x: 750, y: 106, class: "row"}, timed ? timeText(end) : "")) : null].flat().filter((part) => part));
  };
  const element = h("details", {class: "sums", toggle: () => {
    if (element.open && !content.childNodes.length) fill();
    view.bytes = element.open === Boolean(run.run.lanes) ? "" : element.open ? "yes" : "no";
    writeFragment();
  }}, h("summary", {}, h("h2", {}, whose(run), "Bytes and time by group")), content);
  return element;
}

// The lines of both sides, each place once.
function partingCode(places) {
  const found = new Map(), said = new Set();
  for (const place of places) {
    const lines = place && sources[`${place.file}:${place.line}`], key = lines && `${lines.path}:${place.line}`;
    if (!lines || found.has(key)) continue;
    found.set(key, pane({...lines, marked: new Set([place.line]), again: said.has(lines.path)}));
    said.add(lines.path);
  }
  return found.size ? h("div", {class: "places"}, [...found.values()]) : null;
}
// A site; of what does not lead, its lines are folded.
const siteOf = (place, leads) => (leads ? h("span", {class: "site"}, `${baseName(place.file)}:${place.line}`) : whereOf(place));

// The two calls where runs part.
function parting(leads) {
  const {rank, index} = difference, places = [], side = (run, number) => {
    const lane = rank < run.size ? run.lanes[rank] : null, i = lane ? index - lane.first : -1;
    if (!lane || i < 0 || i >= lane.count) return h("tr", {}, h("td", {}, run.path), h("td", {class: "none"}, lane && lane.first > 0 ? "not in the file" : "no such call"), h("td", {}), h("td", {}));
    const kind = run.kinds[lane.kind[i]];
    places.push(kind);
    const go = () => { const t = timelines[number]; t.choose(rank, i); t.reveal(); changed(); };
    return h("tr", {class: "go", tabindex: "0", click: (event) => { if (!event.target.closest("details")) go(); }, keydown: (event) => { if (event.key === "Enter") go(); }}, h("td", {}, run.path),
      h("td", {class: "odd"}, `${run.label(rank, i)} in group ${run.group(rank, i).name}`), h("td", {class: "mono"}, run.sizes(kind)), h("td", {class: "mono"}, siteOf(kind, leads)));
  };
  const table = h("table", {class: "parting"}, h("tr", {}, ["run", `${ordinal(index + 1)} call of rank ${rank}`, "tensors", "line of code"].map((name) => h("th", {}, name))), runs.map(side));
  return [table, leads ? partingCode(places) : null];
}

function keysTable() {
  const rows = [["arrows", "pan"], ["+ \u2212 or the wheel", "zoom"], ["* / or the wheel with shift", "zoom ranks: a map of many unfolds"], ["0", "all"], ["f", "ranks that are alike in one lane, or each in its own; a click on a lane's name unfolds it"],
    ["n p", "next and last call of the rank"], ["j k", "the same call of the next and last rank"], ["Escape", "no call is chosen"], ["?", "these keys"]];
  return h("details", {class: "keys", toggle: (event) => { view.keys = event.target.open ? "yes" : ""; writeFragment(); }}, h("summary", {}, "keys, while the timeline has the focus"),
    h("table", {}, rows.map(([key, what]) => h("tr", {}, h("th", {}, key), h("td", {}, what)))));
}

function gaps(run) {
  const lost = [];
  run.lanes.forEach((lane, rank) => { if (lane.first > 0) lost.push(rank); });
  const empty = [];
  run.lanes.forEach((lane, rank) => { if (!lane.count) empty.push(rank); });
  const element = h("details", {class: "gaps", toggle: () => {
    view.gaps = element.open === misses(run) ? "" : element.open ? "yes" : "no";
    writeFragment();
  }}, h("summary", {}, h("h2", {}, whose(run), "Not in this file")), h("ul", {}, run.gaps.map((gap) => h("li", {}, gap)),
    lost.length ? h("li", {}, `first calls of ${ranksText(lost)}; no arrows of their messages are drawn`) : null,
    run.run.lanes ? null : empty.length && empty.length < run.size ? h("li", {}, `calls of ${ranksText(empty)}: none were made, or none kept`) : null,
    h("li", {}, "The order of calls is rebuilt from the calls: each stands right of what its rank had waited for before it.")));
  element.run = run;
  return element;
}
// Whether calls were dropped that others have: what is missing is then shown at once.
const misses = (run) => run.gaps.some((gap) => gap.startsWith("calls: ")) || run.lanes.some((lane) => lane.first > 0);

function build(data) {
  difference = data.difference;
  sources = data.sources || {};
  runs = data.runs.map((run) => new Run(run, data.dtypes));
  TOP = difference && (difference.rank >= 0 || difference.store) ? 18 : 4;
  readFragment();
  setTheme();
  legendElement = h("div", {class: "legend"});
  fillLegend();
  timelines = runs.map((run, number) => new Timeline(run, number));
  details = h("div", {class: "detail", "aria-live": "polite"});
  const stuck = runs.map((run, number) => (run.waits.length ? h("section", {class: "stuck"}, h("h2", {}, whose(run), "Who waits for whom"), waitsGraph(run, number)) : null));
  const tables = runs.map((run, number) => matrix(run, number));
  const totals = runs.map((run) => bytesSection(run));
  stores = runs.map((run, number) => storeSection(run, number));
  keysHelp = keysTable();
  const differs = difference && (difference.rank < 0 ? "Both runs made the same calls, as far as the files have them." :
    `First difference: the ${ordinal(difference.index + 1)} call of rank ${difference.rank}.`);
  const stored = difference && difference.store;
  const storeLeads = Boolean(stored && stored.leads && difference.rank >= 0);
  const parted = [differs ? h("p", {class: "difference"}, h("b", {}, storeLeads ? differs.replace("First difference:", "First difference of the calls:") : differs)) : null, difference && difference.rank >= 0 ? parting(!storeLeads) : null];
  const partedStore = stored ? [h("p", {class: "store-difference"}, h("b", {}, `First difference in the store: the ${ordinal(stored.index + 1)} operation of rank ${stored.rank}.`)),
    h("table", {class: "parting"}, stored.texts.map((text, number) => h("tr", {}, h("td", {}, runs[number].path), h("td", {class: "odd mono"}, sited(text))))), stored.leads ? partingCode(stored.places) : null] : null;
  document.getElementById("page").replaceChildren(...[
    h("button", {class: "theme", style: "float:right", click: () => {
      view.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      setTheme();
      changed();
    }}, "light / dark"),
    h("div", {class: "runs"}, runs.map((run) => head(run))),
    storeLeads ? [partedStore, parted] : [parted, partedStore],
    h("h2", {}, "Timeline"), makeControls(), legendElement, keysHelp,
    timelines.map((timeline) => [runs.length > 1 ? h("div", {class: "soft"}, timeline.run.path) : null,
      timeline.run.lanes.some((lane) => lane.count) ? null : h("p", {class: "soft none"}, `No calls in this file. ${timeline.run.gaps.find((gap) => gap.startsWith("calls: ")) || ""}`), timeline.element]), details,
    stuck, tables, stores, totals, h("div", {class: "runs"}, runs.map((run) => gaps(run))),
  ].flat(9).filter((part) => part));
  document.getElementById("plain").open = false;
  for (const element of unfolding()) {
    element.addEventListener("toggle", () => {
      view.open = unfolding().flatMap(({open}, i) => (open ? [i] : [])).join(",");
      writeFragment();
    });
  }
  syncControls();
  showDetails();
  for (const timeline of timelines) timeline.drawNow();
  document.documentElement.dataset.ready = "yes";
  // Milliseconds from the page's begin to here.
  window.rankloom = {view, timelines, runs, build, writeNow, readyAfter: performance.now()};
  addEventListener("resize", () => timelines.forEach((timeline) => timeline.draw()));
  addEventListener("hashchange", () => {
    readFragment();
    setTheme();
    syncControls();
    showDetails();
    fillLegend();
    for (const table of [...tables, ...stores]) if (table) table.fill();
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
