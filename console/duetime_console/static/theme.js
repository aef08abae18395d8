// Sets the reader's theme before the first paint, if it differs from the system's.
(function () {
  "use strict";
  try {
    var chosen = localStorage.getItem("duetime-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* no storage: the system's */ }
})();
