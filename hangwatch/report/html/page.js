"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;

  // Theme: the system's until the reader chooses. Storage may be refused for files.
  const stored = (value) => {
    try {
      if (value) localStorage.setItem("hangwatch-theme", value);
      return localStorage.getItem("hangwatch-theme");
    } catch {
      return null;
    }
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const button = byId("theme");
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored(root.dataset.theme);
    name();
  });
  system.addEventListener("change", name);
  name();
  document.querySelector(".tools").hidden = false;

  // Find a rank among folded sets such as "0-7,9".
  const has = (spec, rank) => spec.split(",").some((part) => {
    const [first, last] = part.split("-").map(Number);
    return rank >= first && rank <= (last ?? first);
  });
  const find = byId("find");
  const places = [...document.querySelectorAll("[data-ranks]")];
  const look = () => {
    const wanted = /^\d+$/.test(find.value.trim()) ? Number(find.value) : null;
    document.body.classList.toggle("finding", wanted !== null);
    let count = 0;
    for (const place of places) {
      const hit = wanted !== null && has(place.dataset.ranks, wanted);
      place.classList.toggle("hit", hit);
      count += hit;
    }
    byId("found").textContent = wanted === null ? "" : count ? `in ${count} places` : "not shown";
  };
  find.addEventListener("input", look);
  find.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { find.value = ""; look(); }
  });

  const unfold = byId("unfold");
  if (unfold) {
    const all = [...document.querySelectorAll("#stacks details")];
    unfold.hidden = false;
    unfold.addEventListener("click", () => {
      const open = all.some((part) => !part.open);
      for (const part of all) part.open = open;
      unfold.textContent = open ? "Fold all" : "Unfold all";
    });
  }

  const copy = byId("copy");
  if (copy) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      const text = byId("text");
      try {
        await navigator.clipboard.writeText(text.textContent);
        byId("copied").textContent = "Copied.";
      } catch {
        // The clipboard may be refused: what is selected can be copied by hand.
        getSelection().selectAllChildren(text);
        text.focus();
        byId("copied").textContent = "Selected; press Ctrl+C.";
      }
    });
  }

  // On paper nothing can be unfolded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of folded) part.open = false;
    folded = [];
  });
})();
