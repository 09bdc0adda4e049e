// Requests to the server, whether it answers, and the status that it reports.

const PATIENCE = 20000;
const AGAIN = 1000;
const QUIET = 5000;

/** The server answered that it will not do this; the message is its sentence. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The server did not answer. */
export class Gone extends Error {}

/**
 * Emits "connection" when the server stops or starts to answer, "status" with each report, and "changed" when its version is
 * another one: labels, predictions, suggestions or artifacts are not what they were.
 */
class Server extends EventTarget {
  connection = "here"; // here, gone (no answer), moved (it answers, but not at this address)
  status = null;
  #timer = null;
  #asking = false;
  #again = false;

  async get(path, parameters = {}, signal = undefined) {
    const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
    return this.#ask(`api/${path}${query.size ? `?${query}` : ""}`, { signal });
  }

  async post(path, body) {
    return this.#ask(`api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  }

  async #ask(address, options) {
    const patience = AbortSignal.timeout(PATIENCE);
    const signal = options.signal ? AbortSignal.any([options.signal, patience]) : patience;
    let answer, body;
    try {
      answer = await fetch(address, { ...options, signal, cache: "no-store" });
      body = await answer.text();
    } catch (error) {
      if (options.signal?.aborted) throw error;
      this.#connected("gone");
      throw new Gone("The server does not answer.");
    }
    let content;
    try {
      content = JSON.parse(body);
    } catch {
      this.#connected("moved");
      throw new Gone("The server answers at another address now.");
    }
    this.#connected("here");
    if (!answer.ok) throw new Refused(content.error ?? `The server answered ${answer.status}.`, answer.status);
    return content;
  }

  #connected(now) {
    if (now === this.connection) return;
    this.connection = now;
    this.dispatchEvent(new Event("connection"));
    if (now === "here") this.poll();
  }

  /** Asks for the status now, and from then on every second while something runs, else every five. */
  async poll() {
    if (this.#asking) {
      this.#again = true;
      return;
    }
    clearTimeout(this.#timer);
    this.#asking = true;
    let pause = AGAIN;
    try {
      const status = await this.get("status");
      const before = this.status;
      this.status = status;
      pause = status.state === "running" || status.state === "waiting" ? AGAIN : QUIET;
      this.dispatchEvent(new Event("status"));
      if (before !== null && before.version !== status.version) this.dispatchEvent(new Event("changed"));
    } catch (error) {
      if (!(error instanceof Gone || error instanceof Refused)) throw error;
    } finally {
      this.#asking = false;
      this.#timer = setTimeout(() => this.poll(), this.#again ? 0 : pause);
      this.#again = false;
    }
  }
}

export const server = new Server();
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && server.status !== null) server.poll();
});
