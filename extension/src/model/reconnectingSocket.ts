/** What a websocket tells. */
export interface IEvents {
  opened: () => void;
  received: (text: string) => void;
  /** Also if it could not be opened. */
  closed: () => void;
}

/** What is done with a websocket. */
export interface ISocket {
  send: (text: string) => void;
  close: () => void;
}

/** What a link needs. */
export interface ILinkOptions {
  connect: (events: IEvents) => ISocket;
  received: (text: string) => void;
  /** Called with the seconds until the next try, when there is no connection, or none any more. */
  lost: (wait: number) => void;
  random?: () => number;
}

// Seconds between tries: the first, and at most.
const FIRST = 1;
const LAST = 30;
// Seconds without a word after which a connection counts as lost: a server that is seen has one every two.
const SILENCE = 20;

/** A websocket that is opened again whenever it has been lost, each time after a longer while. */
export class Link {
  constructor(private readonly options: ILinkOptions) {}

  /** Whether there is a connection. */
  get isOpen(): boolean {
    return this.open;
  }

  /** Connect, and stay so until closed. A second start does nothing. */
  start(): void {
    if (!this.socket && this.timer === undefined) {
      this.connect();
    }
  }

  /** Try at once, if there is no connection, instead of a try that hangs. */
  hurry(): void {
    if (!this.open && (this.socket || this.timer !== undefined)) {
      this.close();
      this.connect();
    }
  }

  /**
   * Tell the server whether somebody looks, now and after each new connection: while somebody does it often says a word.
   *
   * @param visible - The names of the clusters whose pulses are seen; true: all.
   */
  setVisible(visible: boolean | readonly string[]): void {
    if (JSON.stringify(this.visible) !== JSON.stringify(visible)) {
      this.visible = visible;
      this.sayVisible();
    }
  }

  /** Disconnect. */
  close(): void {
    const socket = this.socket;
    clearTimeout(this.timer);
    this.timer = this.socket = undefined;
    this.open = false;
    this.listen();
    socket?.close();
  }

  private connect(): void {
    // what an earlier socket still tells is of no interest
    const current = () => this.socket === socket;
    const socket = this.options.connect({
      opened: () => {
        if (current()) {
          this.open = true;
          if (this.visible !== false) {
            this.sayVisible();
          }
        }
      },
      received: text => {
        if (current()) {
          this.tries = 0;
          this.listen();
          this.options.received(text);
        }
      },
      closed: () => {
        if (current()) {
          this.lost();
        }
      }
    });
    this.socket = socket;
  }

  private lost(): void {
    this.socket = undefined;
    this.open = false;
    this.listen();
    // browsers that have lost one server together do not come back together
    const spread = 0.5 + (this.options.random ?? Math.random)() / 2;
    const wait = Math.min(LAST, FIRST * 2 ** this.tries) * spread;
    this.tries += 1;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.connect();
    }, wait * 1000);
    this.options.lost(wait);
  }

  private sayVisible(): void {
    if (this.open) {
      this.socket?.send(JSON.stringify({ visible: this.visible }));
      this.listen();
    }
  }

  // The end of a connection is not always told: a computer slept, or a cable was drawn.
  private listen(): void {
    clearTimeout(this.silence);
    this.silence =
      this.open && this.visible !== false
        ? setTimeout(() => {
            this.renew();
          }, SILENCE * 1000)
        : undefined;
  }

  private renew(): void {
    const { socket } = this;
    this.lost();
    socket?.close();
  }

  private socket: ISocket | undefined;
  private open = false;
  private visible: boolean | readonly string[] = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private tries = 0;
}
