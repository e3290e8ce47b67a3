// One lane: requests with their decisions and the units left, as the server reported them.

const ROWS = 8;
const STEP = 9;
const TOP = 6;
const CHART = TOP + ROWS * STEP + 4;
const AXIS = 20;
const NOW = 0.88;

export class Lane {
  constructor(canvas) {
    this.canvas = canvas;
    this.runs = false;
    this.clear();
  }

  clear() {
    this.dots = [];
    this.levels = [];
    this.edges = [];
  }

  span() {
    return this.canvas.clientWidth < 500 ? 6000 : 12000;
  }

  // Adds a request. The caller sets its fate later. A dot that would hide another is put below it,
  // and after a full column beside it.
  sent(at) {
    if (this.runs) return this.started(at);
    const last = this.dots.at(-1);
    const column = (STEP * this.span()) / (this.canvas.clientWidth * NOW);
    const beside = last !== undefined && at < last.first + column * (Math.floor(last.place / ROWS) + 1);
    const first = beside ? last.first : at;
    const dot = { at, first, place: beside ? last.place + 1 : 0, fate: "pending", until: null };
    this.dots.push(dot);
    return dot;
  }

  // Requests that take time are bars: each has the first row that is free.
  started(at) {
    const busy = this.dots.filter(({ until }) => until === null || until + 100 > at);
    const rows = new Set(busy.map(({ place }) => place));
    let place = 0;
    while (rows.has(place) && place < ROWS - 1) place += 1;
    const dot = { at, first: at, place, fate: "pending", until: null };
    this.dots.push(dot);
    return dot;
  }

  level(at, { remaining, limit }) {
    this.levels.push({ at, share: Math.min(remaining / limit, 1) });
  }

  // Reported repeatedly, with slightly different values, until it has passed.
  edge(at) {
    const last = this.edges.at(-1);
    if (last > performance.now()) this.edges[this.edges.length - 1] = at;
    else if (last === undefined || at - last > 150) this.edges.push(at);
  }

  draw(now) {
    const { canvas } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const span = this.span();
    const x = (at) => width * NOW + ((at - now) * width * NOW) / span;
    this.forget(now - span - 3000);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.lineWidth = 1;
    this.drawAxis(pen, colour, x, { now, span, width, height });
    this.drawLevels(pen, colour, x, now, height - AXIS);
    this.drawEdges(pen, colour, x, height - AXIS);
    for (const dot of this.dots) this.drawDot(pen, colour, x, dot, now);
  }

  forget(before) {
    this.dots = this.dots.filter((dot) => dot.at > before);
    // the last one before the left end reaches into the picture
    while (this.levels.length > 1 && this.levels[1].at < before) this.levels.shift();
    this.edges = this.edges.filter((at) => at > before);
  }

  drawAxis(pen, colour, x, { now, span, width, height }) {
    const floor = height - AXIS + 0.5;
    line(pen, colour("--line"), 0, floor, width, floor);
    line(pen, colour("--fg"), x(now), 0, x(now), floor);
    pen.fillStyle = colour("--muted");
    pen.font = "14px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "bottom";
    pen.fillText("now", x(now), height);
    for (let ago = 2000; ago < span; ago += 2000) {
      pen.fillText(`−${ago / 1000} s`, x(now - ago), height);
      line(pen, colour("--line"), x(now - ago), floor, x(now - ago), floor + 4);
    }
  }

  drawLevels(pen, colour, x, now, floor) {
    const y = (share) => floor - share * (floor - CHART - 1);
    line(pen, colour("--line"), 0, CHART + 0.5, x(now), CHART + 0.5);
    if (this.levels.length === 0) return;
    const path = new Path2D();
    path.moveTo(x(this.levels[0].at), y(this.levels[0].share));
    this.levels.forEach((level, at) => {
      const until = this.levels[at + 1]?.at ?? now;
      path.lineTo(x(level.at), y(level.share));
      path.lineTo(x(until), y(level.share));
    });
    pen.strokeStyle = colour("--accent");
    pen.lineWidth = 1.5;
    pen.stroke(path);
    path.lineTo(x(now), floor);
    path.lineTo(x(this.levels[0].at), floor);
    pen.globalAlpha = 0.22;
    pen.fillStyle = colour("--accent");
    pen.fill(path);
    pen.globalAlpha = 1;
    pen.lineWidth = 1;
  }

  drawEdges(pen, colour, x, floor) {
    pen.setLineDash([4, 3]);
    for (const at of this.edges) line(pen, colour("--muted"), x(at), 0, x(at), floor);
    pen.setLineDash([]);
  }

  drawDot(pen, colour, x, dot, now) {
    const left = x(dot.first) + Math.floor(dot.place / ROWS) * STEP;
    const y = TOP + (dot.place % ROWS) * STEP;
    if (dot.fate === "pending" || dot.fate === "waited") {
      const right = Math.max(x(dot.until ?? now), left);
      pen.lineWidth = 1.5;
      if (right - left > 6) line(pen, colour("--wait"), left + 3.5, y, right, y);
      circle(pen, left, y);
      pen.strokeStyle = colour("--wait");
      pen.stroke();
      if (dot.fate === "waited") fill(pen, colour("--ok"), right, y);
    } else if (dot.fate === "allowed") {
      pen.lineWidth = 4;
      if (this.runs) line(pen, colour("--ok"), left, y, x(dot.until), y);
      fill(pen, colour("--ok"), left, y);
    } else if (dot.fate === "denied") {
      pen.lineWidth = 2;
      line(pen, colour("--no"), left - 3, y - 3, left + 3, y + 3);
      line(pen, colour("--no"), left + 3, y - 3, left - 3, y + 3);
    }
    pen.lineWidth = 1;
  }
}

function line(pen, colour, fromX, fromY, toX, toY) {
  pen.strokeStyle = colour;
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}

function circle(pen, x, y) {
  pen.beginPath();
  pen.arc(x, y, 3.5, 0, 2 * Math.PI);
}

function fill(pen, colour, x, y) {
  circle(pen, x, y);
  pen.fillStyle = colour;
  pen.fill();
}
