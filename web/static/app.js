// A dialog arrives as a fragment. Opening it modally (focus, Escape, backdrop) is the one thing HTML has no attribute for.
const place = document.getElementById("dialog");
new MutationObserver(() => {
  const dialog = place.querySelector("dialog:not([open])");
  if (dialog && !dialog.dataset.shown) {
    dialog.dataset.shown = "yes";
    dialog.showModal();
    dialog.addEventListener("close", () => dialog.remove());
  }
}).observe(place, { childList: true });
