// Sorting and filtering of tables; the page says everything without it.
document.documentElement.classList.add("js");
for (const table of document.querySelectorAll("table[data-sort]")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    if (head.hasAttribute("data-fixed")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const [m, n] = [Number(x), Number(y)];
        const order = x !== "" && y !== "" && !isNaN(m) && !isNaN(n) ? m - n : x < y ? -1 : x > y ? 1 : 0;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
for (const input of document.querySelectorAll(".find input")) {
  const table = document.getElementById(input.dataset.table);
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
