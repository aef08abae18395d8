// Before the first paint: the theme that the reader chose, if it is not the system's.
(function () {
  "use strict";
  try {
    var chosen = localStorage.getItem("duetime-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* no storage: the system's */ }
})();
