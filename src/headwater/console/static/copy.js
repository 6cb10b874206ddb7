// Copying a text, and saying so.

const SHOW_MS = 3000;
let hiding;

/** Put a text on the clipboard and tell the reader what was copied. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    say(`Copied: ${text}`);
  } catch {
    // Browsers give pages on plain http from other machines no clipboard; the text can still be marked by hand.
    say(text);
  }
}

function say(text) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.dataset.shown = "";
  clearTimeout(hiding);
  hiding = setTimeout(() => delete toast.dataset.shown, SHOW_MS);
}
