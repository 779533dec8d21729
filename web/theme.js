// Before the first paint, so that a chosen theme does not flash; everything else about it is in preferences.js.
try {
  document.documentElement.dataset.theme = localStorage.getItem("tokenwire.theme") ?? "system";
} catch {
  // The browser forbids storage: the system decides.
}
