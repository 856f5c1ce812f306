"use strict";
// Sort the rows of a table by a column; empty cells come last in both directions.
function sort(table, column, descending) {
  const value = (row) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    return { text, number: Number(text), known: text !== "" && text !== "-" };
  };
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: value(row) }));
  const numeric = rows.every(({ key }) => !key.known || !Number.isNaN(key.number));
  const order = (a, b) => (numeric ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true }));
  rows.sort(({ key: a }, { key: b }) => Number(b.known) - Number(a.known) || (descending ? order(b, a) : order(a, b)));
  table.tBodies[0].append(...rows.map(({ row }) => row));
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const descending = now ? now === "ascending" : head.classList.contains("number");
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(table, column, descending);
    });
  });
}
const closed = [];
addEventListener("beforeprint", () => {
  closed.push(...document.querySelectorAll("details:not([open])"));
  closed.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => closed.splice(0).forEach((details) => { details.open = false; }));
