// A board to draw on, by mouse, finger or pen, or by keys: arrows move, Space puts the pen down or lifts it.

const LARGEST = 288;

export function drawingBoard(image, name, done) {
  const cell = Math.ceil(LARGEST / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width * cell, image.height * cell];
  canvas.className = "draw";
  canvas.id = `draw-${name}`;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "Drawing board. Arrow keys move the pen, Space puts it down or lifts it, Delete clears, Enter runs.");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const width = Object.assign(document.createElement("input"), { type: "range", min: 1, max: 100 });
  const largest = Math.max(canvas.width, canvas.height);
  width.value = Math.round((100 * Math.max(largest / 12, 1.2 * cell)) / (largest / 3));
  const thickness = () => (Number(width.value) / 100) * (largest / 3);
  let [last, down, pen] = [null, false, { x: canvas.width / 2, y: canvas.height / 2 }];

  function clear() {
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
  }

  function stroke(from, to) {
    Object.assign(context, { strokeStyle: "#fff", lineCap: "round", lineJoin: "round", lineWidth: thickness() });
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.stroke();
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * canvas.width, y: ((event.clientY - box.top) / box.height) * canvas.height };
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    last = place(event);
    stroke(last, last);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    // all that lay between two frames: a fast hand leaves no corners
    for (const between of event.getCoalescedEvents?.() ?? [event]) {
      const next = place(between);
      stroke(last, next);
      last = next;
    }
  });
  const lift = () => {
    if (last) done();
    last = null;
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);

  const cursor = document.createElement("span");
  cursor.className = "pen";
  cursor.hidden = true;
  const mark = () => {
    cursor.style.left = `${(100 * pen.x) / canvas.width}%`;
    cursor.style.top = `${(100 * pen.y) / canvas.height}%`;
    cursor.classList.toggle("down", down);
  };
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const step = largest / 16;
    if (moves[event.key]) {
      const [dx, dy] = moves[event.key];
      const next = { x: Math.min(Math.max(pen.x + dx * step, 0), canvas.width), y: Math.min(Math.max(pen.y + dy * step, 0), canvas.height) };
      if (down) stroke(pen, next);
      pen = next;
    } else if (event.key === " ") {
      down = !down;
      if (down) stroke(pen, pen);
      else done();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      clear();
    } else if (event.key === "Enter") {
      done();
    } else {
      return;
    }
    event.preventDefault();
    cursor.hidden = false;
    mark();
  });
  canvas.addEventListener("blur", () => (cursor.hidden = true));

  const again = Object.assign(document.createElement("button"), { type: "button", textContent: "Clear", id: `clear-${name}` });
  again.addEventListener("click", clear);
  const held = document.createElement("div");
  held.className = "board";
  held.append(canvas, cursor);
  const row = document.createElement("p");
  row.className = "row";
  const label = document.createElement("label");
  label.append("Pen", width);
  row.append(again, label);
  const element = document.createElement("div");
  element.append(held, row);
  clear();
  return { element, pixels: () => context.getImageData(0, 0, canvas.width, canvas.height) };
}
