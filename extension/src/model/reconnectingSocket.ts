import { JSONExt } from '@lumino/coreutils';

/** What a websocket reports. */
export interface ISocketEvents {
  opened: () => void;
  received: (text: string) => void;
  /** Also if it could not be opened. */
  closed: () => void;
}

/** The part of a websocket that is used. */
export interface ISocket {
  send: (text: string) => void;
  close: () => void;
}

/** The options of a reconnecting socket. */
export interface IReconnectingSocketOptions {
  connect: (events: ISocketEvents) => ISocket;
  received: (text: string) => void;
  /** Called with the seconds until the next attempt, when a connection failed or was lost. */
  lost: (wait: number) => void;
  random?: () => number;
}

// Seconds between attempts: the first delay, and the longest one.
const FIRST_DELAY = 1;
const MAX_DELAY = 30;
// Seconds without a message after which a connection counts as lost: a server sends one every two to a visible page.
const SILENCE_TIMEOUT = 20;

/** A websocket that reconnects whenever the connection is lost, with a growing delay. */
export class ReconnectingSocket {
  constructor(private readonly options: IReconnectingSocketOptions) {}

  /** Whether there is a connection. */
  get isOpen(): boolean {
    return this._isOpen;
  }

  /** Connect, and reconnect until closed. A second start does nothing. */
  start(): void {
    if (!this.socket && this.reconnectTimer === undefined) {
      this.connect();
    }
  }

  /** Connect at once if there is no connection, also if an attempt hangs. */
  reconnectNow(): void {
    if (!this._isOpen && (this.socket || this.reconnectTimer !== undefined)) {
      this.close();
      this.connect();
    }
  }

  /**
   * Send what is visible to the server, now and after each new connection; the server then sends pulses often.
   *
   * @param visible - The names of the clusters whose pulses are visible; true: all.
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
    // events of an earlier socket are ignored
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
    // browsers that lost one server together must not reconnect together
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

  // The end of a connection is not always reported: a computer slept, or a cable was unplugged.
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
