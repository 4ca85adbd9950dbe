import { JSONExt } from '@lumino/coreutils';

/** What a websocket reports. */
export interface ISocketEvents {
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
export interface IReconnectingSocketOptions {
  connect: (events: ISocketEvents) => ISocket;
  received: (text: string) => void;
  /** Called with the seconds until the next try, when there is no connection, or none any more. */
  lost: (wait: number) => void;
  random?: () => number;
}

// Seconds between tries: the first, and at most.
const FIRST_DELAY = 1;
const MAX_DELAY = 30;
// Seconds without a word after which a connection counts as lost: a server that is seen has one every two.
const SILENCE_TIMEOUT = 20;

/** A websocket that is opened again whenever it has been lost, each time after a longer while. */
export class ReconnectingSocket {
  constructor(private readonly options: IReconnectingSocketOptions) {}

  /** Whether there is a connection. */
  get isOpen(): boolean {
    return this._isOpen;
  }

  /** Connect, and stay so until closed. A second start does nothing. */
  start(): void {
    if (!this.socket && this.reconnectTimer === undefined) {
      this.connect();
    }
  }

  /** Try at once, if there is no connection, instead of a try that hangs. */
  reconnectNow(): void {
    if (!this._isOpen && (this.socket || this.reconnectTimer !== undefined)) {
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
    if (!JSONExt.deepEqual(this.visible, visible)) {
      this.visible = visible;
      this.sendVisibility();
    }
  }

  /** Disconnect. */
  close(): void {
    const socket = this.socket;
    clearTimeout(this.reconnectTimer);
    this.reconnectTimer = this.socket = undefined;
    this._isOpen = false;
    this.armSilenceTimer();
    socket?.close();
  }

  private connect(): void {
    // what an earlier socket still tells is of no interest
    const isCurrent = () => this.socket === socket;
    const socket = this.options.connect({
      opened: () => {
        if (isCurrent()) {
          this._isOpen = true;
          if (this.visible !== false) {
            this.sendVisibility();
          }
        }
      },
      received: text => {
        if (isCurrent()) {
          this.attempts = 0;
          this.armSilenceTimer();
          this.options.received(text);
        }
      },
      closed: () => {
        if (isCurrent()) {
          this.scheduleReconnect();
        }
      }
    });
    this.socket = socket;
  }

  private scheduleReconnect(): void {
    this.socket = undefined;
    this._isOpen = false;
    this.armSilenceTimer();
    // browsers that have lost one server together do not come back together
    const jitter = 0.5 + (this.options.random ?? Math.random)() / 2;
    const delay = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** this.attempts) * jitter;
    this.attempts += 1;
    this.reconnectTimer = setTimeout(() => {
      this.reconnectTimer = undefined;
      this.connect();
    }, delay * 1000);
    this.options.lost(delay);
  }

  private sendVisibility(): void {
    if (this._isOpen) {
      this.socket?.send(JSON.stringify({ visible: this.visible }));
      this.armSilenceTimer();
    }
  }

  // The end of a connection is not always told: a computer slept, or a cable was drawn.
  private armSilenceTimer(): void {
    clearTimeout(this.silenceTimer);
    this.silenceTimer =
      this._isOpen && this.visible !== false
        ? setTimeout(() => {
            this.reconnectAfterSilence();
          }, SILENCE_TIMEOUT * 1000)
        : undefined;
  }

  private reconnectAfterSilence(): void {
    const { socket } = this;
    this.scheduleReconnect();
    socket?.close();
  }

  private socket: ISocket | undefined;
  private _isOpen = false;
  private visible: boolean | readonly string[] = false;
  private reconnectTimer: ReturnType<typeof setTimeout> | undefined;
  private silenceTimer: ReturnType<typeof setTimeout> | undefined;
  private attempts = 0;
}
