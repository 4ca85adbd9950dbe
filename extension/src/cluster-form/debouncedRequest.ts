import type { IDisposable } from '@lumino/disposable';

/** The options of a debounced request. */
export interface IDebouncedRequestOptions<Question, Answer> {
  /** The signal aborts a request whose reply is of no use any more. */
  send: (question: Question, signal: AbortSignal) => Promise<Answer>;
  onReply: (answer: Answer) => void;
  onError: (error: unknown) => void;
  /** Milliseconds without another call before the request is sent. */
  delay: number;
}

/** Sends the last of many requests, once no other has come for a while. Replies to earlier ones are dropped. */
export class DebouncedRequest<Question, Answer> implements IDisposable {
  constructor(private readonly options: IDebouncedRequestOptions<Question, Answer>) {}

  /** Whether the last request has no reply yet. */
  get isPending(): boolean {
    return this.timer !== undefined || this.reply !== undefined;
  }

  /** Send this request, unless there is another one soon. */
  invoke(question: Question): void {
    if (!this._isDisposed) {
      this.abort();
      this.reply = undefined;
      this.pending = question;
      this.timer = setTimeout(() => {
        this.sendNow(question);
      }, this.options.delay);
    }
  }

  /** Send a waiting request at once; resolves when the last request has its reply. */
  async flush(): Promise<void> {
    while (this.isPending) {
      if (this.timer !== undefined) {
        this.sendNow(this.pending as Question);
      }
      await this.reply;
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this.abort();
    this.timer = this.reply = undefined;
    this._isDisposed = true;
  }

  private abort(): void {
    clearTimeout(this.timer);
    this.generation += 1;
    this.controller.abort();
  }

  private sendNow(question: Question): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.reply = this.run(question, this.generation);
  }

  private async run(question: Question, count: number): Promise<void> {
    let report: () => void;
    this.controller = new AbortController();
    try {
      const reply = await this.options.send(question, this.controller.signal);
      report = () => {
        this.options.onReply(reply);
      };
    } catch (error) {
      report = () => {
        this.options.onError(error);
      };
    }
    if (count === this.generation) {
      this.reply = undefined;
      report();
    }
  }

  private timer: ReturnType<typeof setTimeout> | undefined;
  private reply: Promise<void> | undefined;
  private pending: Question | undefined;
  private controller = new AbortController();
  // of the last request
  private generation = 0;
  private _isDisposed = false;
}
