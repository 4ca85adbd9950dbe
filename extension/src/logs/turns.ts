import type { IDisposable } from '@lumino/disposable';

/** What is done again and again. */
export interface ITurns {
  /** Returns whether there is to be another turn. One that fails is tried again, each time after a longer while. */
  turn: () => Promise<boolean>;
  /** Whether there is to be another turn at all. */
  isWanted: () => boolean;
  /** Milliseconds between two turns. */
  every: number;
}

// Milliseconds between two turns, at most.
const SELDOM = 30_000;

/** Does something again and again, one turn at a time. */
export class Turns implements IDisposable {
  constructor(private readonly its: ITurns) {}

  /** Take a turn at once, or right after the one that is being taken. */
  wake(): void {
    this.isAwake = true;
    if (!this.isRunning && !this._isDisposed) {
      void this.run();
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearTimeout(this.timer);
  }

  private async run(): Promise<void> {
    clearTimeout(this.timer);
    this.isRunning = true;
    let goesOn = true;
    do {
      this.isAwake = false;
      try {
        goesOn = await this.its.turn();
        this.failures = 0;
      } catch {
        // whose turn it is tells why
        goesOn = true;
        this.failures += 1;
      }
    } while (this.isAwakeNow());
    this.isRunning = false;
    if (goesOn && !this._isDisposed && this.its.isWanted()) {
      const wait = Math.min(SELDOM, this.its.every * 2 ** this.failures);
      this.timer = setTimeout(() => {
        if (this.its.isWanted()) {
          void this.run();
        }
      }, wait);
    }
  }

  private isAwakeNow(): boolean {
    return this.isAwake && !this._isDisposed;
  }

  private timer: ReturnType<typeof setTimeout> | undefined;
  private isRunning = false;
  private isAwake = false;
  private failures = 0;
  private _isDisposed = false;
}
