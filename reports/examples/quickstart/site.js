"use strict";
// Sorting, filtering, saving. Every page is complete without it; text goes in and out as text only.
(function () {
  const collator = new Intl.Collator("en", { numeric: true });

  function sortable(table) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);

    function keys(column, number) {
      return rows.map(function (row) {
        const cell = row.cells[column];
        const text = cell === undefined ? "" : (cell.dataset.v ?? cell.textContent).trim();
        if (!number) return text;
        const value = parseFloat(text);
        return Number.isNaN(value) ? null : value;
      });
    }

    function sort(column, descending) {
      const number = heads[column].dataset.kind === "number";
      const key = new Map();
      keys(column, number).forEach(function (k, i) { key.set(rows[i], k); });
      const sign = descending ? -1 : 1;
      rows.sort(function (a, b) {
        const x = key.get(a), y = key.get(b);
        if (x === null || y === null) return (x === null) - (y === null); // what is no number stays last
        return sign * (number ? x - y : collator.compare(x, y));
      });
      heads.forEach(function (head, i) {
        if (i === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      body.replaceChildren.apply(body, rows);
    }

    heads.forEach(function (head, column) {
      const button = document.createElement("button");
      button.type = "button";
      button.append.apply(button, Array.from(head.childNodes));
      head.append(button);
      button.addEventListener("click", function () {
        const now = head.getAttribute("aria-sort");
        const first = head.classList.contains("n") ? "descending" : "ascending"; // accuracies: the best first
        sort(column, now === null ? first === "descending" : now === "ascending");
      });
    });
  }

  function filterable(tools) {
    const table = tools.nextElementSibling.querySelector("table");
    const seeds = Array.from(table.tHead.rows[0].cells).findIndex(function (h) { return h.dataset.is === "seeds"; });
    const controls = Array.from(tools.querySelectorAll("[data-column]"));
    const least = tools.querySelector("[data-seeds]");
    const one = tools.querySelector("[data-one]");
    const named = controls.concat([least]);
    const count = tools.querySelector(".count");

    function shown(row) {
      if (least.value !== "" && !(parseInt(row.cells[seeds].textContent, 10) >= +least.value)) return false;
      return controls.every(function (control) {
        if (control.value === "") return true;
        const where = control.dataset.column;
        if (where === "any") return row.textContent.toLowerCase().includes(control.value.toLowerCase());
        const cell = row.cells[+where];
        const text = cell === undefined ? "" : cell.textContent;
        return control.tagName === "SELECT" ? text === control.value : text.toLowerCase().includes(control.value.toLowerCase());
      });
    }

    function apply() {
      let kept = 0, ranked = 0;
      for (const row of table.tBodies[0].rows) {
        const keep = shown(row);
        row.hidden = !keep;
        kept += keep;
        ranked += !one || row.cells[+one.dataset.column].textContent === one.value;
      }
      count.textContent = kept + " of " + ranked + " rows";
    }

    // Filters live in the part of the address behind #, which files have, too.
    function read() {
      const asked = new URLSearchParams(location.hash.slice(1));
      named.forEach(function (control) {
        const value = asked.get(control.dataset.name) ?? "";
        const known = control.tagName !== "SELECT" || Array.from(control.options).some(function (o) { return o.value === value; });
        control.value = known ? value : control.options[0].value;
      });
      apply();
    }

    function write() {
      const told = new URLSearchParams();
      named.forEach(function (control) {
        const start = control === one ? control.options[0].value : "";
        if (control.value !== start) told.set(control.dataset.name, control.value);
      });
      const hash = told.toString();
      history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
    }

    tools.addEventListener("input", function () { apply(); write(); });
    addEventListener("hashchange", function () { if (location.hash.includes("=")) read(); });
    tools.querySelector("[data-reset]").addEventListener("click", function () {
      named.forEach(function (control) { control.value = control === one ? control.options[0].value : ""; });
      apply();
      write();
    });
    tools.querySelector("[data-csv]").addEventListener("click", function (event) {
      save(event.target.dataset.csv, csv(table), "text/csv");
    });
    tools.hidden = false;
    read();
  }

  function csv(table) {
    const lines = [table.tHead.rows[0]].concat(Array.from(table.tBodies[0].rows).filter(function (r) { return !r.hidden; }));
    return lines.map(function (row) {
      return Array.from(row.cells).map(function (cell) {
        let text = cell.textContent.replace(/\s+/g, " ").trim();
        if (/^[=+@\t]|^-(?![\d.])/.test(text)) text = "'" + text; // a spreadsheet must not take a name for a formula
        return /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
      }).join(",");
    }).join("\n") + "\n";
  }

  function save(name, text, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: type }));
    link.download = name;
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }

  function copyable(block) {
    const bar = document.createElement("p");
    const copy = document.createElement("button");
    copy.type = "button";
    copy.className = "copy";
    copy.textContent = "Copy";
    copy.addEventListener("click", function () {
      getSelection().selectAllChildren(block);
      copy.textContent = document.execCommand("copy") ? "Copied" : "Selected"; // works from file://, unlike the newer way
      setTimeout(function () { copy.textContent = "Copy"; }, 1500);
    });
    bar.append(copy);
    if (block.dataset.file) {
      const keep = document.createElement("button");
      keep.type = "button";
      keep.className = "copy";
      keep.dataset.save = "";
      keep.textContent = "Save " + block.dataset.file;
      keep.addEventListener("click", function () { save(block.dataset.file, block.textContent, "application/toml"); });
      bar.append(keep);
    }
    block.after(bar);
  }

  function themed(button) {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const root = document.documentElement;
    function stored(value) {
      try { // storage may be forbidden
        if (value !== undefined) localStorage.setItem("robustfl-theme", value);
        return localStorage.getItem("robustfl-theme");
      } catch (error) { return null; }
    }
    function show(theme) {
      if (theme) root.dataset.theme = theme;
      button.textContent = (theme || (dark.matches ? "dark" : "light")) === "dark" ? "Light" : "Dark";
    }
    button.addEventListener("click", function () {
      const next = button.textContent.toLowerCase();
      stored(next);
      show(next);
    });
    show(stored());
    button.hidden = false;
  }

  document.querySelectorAll("table.listing:not(.plain)").forEach(sortable);
  document.querySelectorAll(".tools").forEach(filterable);
  document.querySelectorAll("pre").forEach(copyable);
  themed(document.getElementById("theme"));
})();
