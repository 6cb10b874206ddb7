// Event streams from the server (server-sent events), suspended while the console is paused or out of sight.

const REOPEN_MS = 2000;

/** All event streams of the console. Browsers allow few connections to one server, so none stays open unused. */
export class Feeds {
  constructor() {
    this.feeds = new Set();
    this.live = false;
  }

  /**
   * Follow an event stream until `close` is called on the result.
   *
   * @param {function(): string} urlOf called each time the stream is opened, so that it can continue from a token
   * @param {Object<string, function(object, string)>} handlers by event name; called with the data and the event's id
   * @param {function(boolean)} onConnected called with true when connected and with false when disconnected
   */
  follow(urlOf, handlers, onConnected = () => {}) {
    const feed = new Feed(urlOf, handlers, onConnected);
    this.feeds.add(feed);
    if (this.live) feed.open();
    return { close: () => this.feeds.delete(feed) && feed.suspend() };
  }

  /** Open all streams again, or suspend them. */
  setLive(live) {
    this.live = live;
    for (const feed of this.feeds) {
      feed.suspend();
      if (live) feed.open();
    }
  }
}

/** One event stream; survives lost connections and server restarts. */
class Feed {
  constructor(urlOf, handlers, onConnected) {
    this.urlOf = urlOf;
    this.handlers = handlers;
    this.onConnected = onConnected;
    this.source = null;
    this.reopening = null;
  }

  open() {
    const source = new EventSource(this.urlOf());
    this.source = source;
    source.onopen = () => this.onConnected(true);
    source.onerror = () => this.lose();
    for (const [event, handle] of Object.entries(this.handlers)) {
      source.addEventListener(event, (message) => {
        // Events that were already queued when the stream was closed are dropped.
        if (this.source === source) handle(JSON.parse(message.data), message.lastEventId);
      });
    }
  }

  lose() {
    this.onConnected(false);
    // The browser reconnects after a broken connection, but gives up after an error response.
    if (this.source.readyState === EventSource.CLOSED) this.reopening = setTimeout(() => this.open(), REOPEN_MS);
  }

  suspend() {
    clearTimeout(this.reopening);
    this.source?.close();
    this.source = null;
  }
}
