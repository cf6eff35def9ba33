// What the page does beyond showing: colour scheme, sorting, filtering, tooltips by pointer and keys. Without it
// everything is still there to read.
"use strict";

(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const KEY = "tcbench-theme";

  // A browser may keep nothing for a file of a disk; then the switch lasts as long as the page.
  const kept = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* not kept */ } };

  const chosen = kept();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  function themeSwitch(button) {
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
    const show = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      keep(root.dataset.theme);
      show();
    });
    dark.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  // -- tables: a column sorts by its numbers where it has some, else by its texts; what is empty comes last ------------

  const keyOf = (cell) => (cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent.trim());

  function compare(a, b, sign) {
    const empty = [a === "", b === ""];
    if (empty[0] || empty[1]) return empty[0] - empty[1];
    const numbers = [typeof a === "number", typeof b === "number"];
    if (numbers[0] && numbers[1]) return sign * (a - b);
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1;
    return sign * a.localeCompare(b, "en", { numeric: true });
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    if (body.rows.length < 2) return;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
        rows.sort(([a], [b]) => compare(a, b, up ? 1 : -1));
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  function filterable(form) {
    const table = document.getElementById(form.dataset.for);
    const heads = [...table.tHead.rows[0].cells];
    const selects = [...form.querySelectorAll("select")].map((select) => [
      select, heads.findIndex((head) => head.dataset.key === select.name),
    ]);
    const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
    const output = form.querySelector("output");

    function apply() {
      const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [row, text] of rows) {
        const fits = words.every((word) => text.includes(word)) && selects.every(
          ([select, column]) => !select.value || row.cells[column].textContent.trim() === select.value);
        row.hidden = !fits;
        shown += fits;
      }
      output.value = `${shown} of ${rows.length} trial${rows.length === 1 ? "" : "s"}`;
    }

    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    form.hidden = false;
    apply();
  }

  // -- tooltips: the title of a chart's mark, at the pointer or below the mark that has the focus ----------------------

  function tooltips() {
    const tip = document.createElement("div");
    tip.id = "tip";
    tip.hidden = true;
    tip.setAttribute("aria-hidden", "true"); // the mark's own name says the same
    document.body.append(tip);

    function place(x, y) {
      const box = tip.getBoundingClientRect();
      const left = Math.min(x, root.clientWidth - box.width - 8);
      const below = y + box.height + 8 < root.clientHeight;
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${below ? y : Math.max(8, y - box.height - 36)}px`;
    }

    function show(text, x, y) {
      tip.textContent = text;
      tip.hidden = false;
      place(x, y);
    }

    const hide = () => { tip.hidden = true; };

    for (const chart of document.querySelectorAll(".chart svg")) {
      const marks = [...chart.querySelectorAll(".tooltip")];
      if (marks.length) chart.setAttribute("role", "group");
      marks.forEach((mark, place) => {
        // Without its title the browser shows none of its own beside this one.
        const title = mark.querySelector("title");
        const text = title.textContent;
        title.remove();
        mark.setAttribute("role", "img");
        mark.setAttribute("aria-label", text.replaceAll("\n", ", "));
        mark.setAttribute("tabindex", place ? "-1" : "0");
        mark.addEventListener("pointermove", (event) => show(text, event.clientX + 14, event.clientY + 18));
        mark.addEventListener("pointerleave", hide);
        mark.addEventListener("focus", () => {
          if (!mark.matches(":focus-visible")) return;
          const box = mark.getBoundingClientRect();
          show(text, box.left, box.bottom + 4);
        });
      });
      chart.addEventListener("keydown", (event) => {
        const at = marks.indexOf(document.activeElement);
        const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1 };
        const to = marks[next[event.key]];
        if (event.key === "Escape") hide();
        if (at < 0 || !to) return;
        event.preventDefault();
        marks[at].setAttribute("tabindex", "-1");
        to.setAttribute("tabindex", "0");
        to.focus();
      });
      chart.addEventListener("focusout", hide);
    }
    window.addEventListener("scroll", hide, { passive: true });
  }

  // -- boxes that scroll sideways: on which side there is more -----------------------------------------------------------

  function fading(box) {
    const show = () => {
      box.classList.toggle("more-left", box.scrollLeft > 1);
      box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    };
    box.addEventListener("scroll", show, { passive: true });
    new ResizeObserver(show).observe(box); // also when what it is folded in opens
  }

  // -- contents: the section that is being read ------------------------------------------------------------------------

  function contents() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const visible = new Set();
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) visible[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      const first = [...links.keys()].find((id) => visible.has(id));
      for (const [id, link] of links) {
        if (id === first) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }, { rootMargin: "-10% 0px -55% 0px" });
    for (const id of links.keys()) watch.observe(document.getElementById(id));
  }

  document.addEventListener("DOMContentLoaded", () => {
    themeSwitch(document.getElementById("theme"));
    document.querySelectorAll("table").forEach(sortable);
    document.querySelectorAll("form.filters").forEach(filterable);
    document.querySelectorAll(".chart, .scroll").forEach(fading);
    tooltips();
    contents();
  });
})();
