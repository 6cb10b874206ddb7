// Following the server: events as they come, and a word when the connection is lost or back.

const REOPEN_MS = 2000;

/** Follows an event stream until it is closed, through lost connections and server restarts. */
export class Feed {
  /**
   * @param {string} url
   * @param {Object<string, function(object)>} handlers what to do with each kind of event
   * @param {function(boolean)} onLink told true when connected and false when not
   */
  constructor(url, handlers, onLink = () => {}) {
    this.url = url;
    this.handlers = handlers;
    this.onLink = onLink;
    this.open();
  }

  open() {
    this.source = new EventSource(this.url);
    this.source.onopen = () => this.onLink(true);
    this.source.onerror = () => this.lost();
    for (const [event, handle] of Object.entries(this.handlers)) {
      this.source.addEventListener(event, (message) => handle(JSON.parse(message.data)));
    }
  }

  lost() {
    this.onLink(false);
    // The browser reconnects by itself after a broken connection, but gives up after an error answer.
    if (this.source.readyState === EventSource.CLOSED) this.reopen = setTimeout(() => this.open(), REOPEN_MS);
  }

  close() {
    clearTimeout(this.reopen);
    this.source.close();
  }
}
