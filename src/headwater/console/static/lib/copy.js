// Copying a text to the clipboard.

/** Copy a text and return the message to show the reader. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return `Copied: ${text}`;
  } catch {
    // Browsers give no clipboard to pages served over plain http from another machine. The message then shows
    // the text itself, to be selected and copied by hand.
    return text;
  }
}
