import type { IDisposable } from '@lumino/disposable';

/** What is asked, and what is done with the answers. */
export interface IDebouncedRequestOptions<Question, Answer> {
  /** The signal is given when nobody wants to know any more. */
  send: (question: Question, signal: AbortSignal) => Promise<Answer>;
  onReply: (answer: Answer) => void;
  onError: (error: unknown) => void;
  /** Milliseconds without another question before one is asked. */
  delay: number;
}

/** Asks the last of many questions, once no other has come for a while. Answers to earlier ones are dropped. */
export class DebouncedRequest<Question, Answer> implements IDisposable {
  constructor(private readonly options: IDebouncedRequestOptions<Question, Answer>) {}

  /** Whether the last question has no answer yet. */
  get isPending(): boolean {
    return this.timer !== undefined || this.reply !== undefined;
  }

  /** Ask this, unless there is another question soon. */
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

  /** Ask at once what waits; resolves when the last question has been answered. */
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
  // of the last question
  private generation = 0;
  private _isDisposed = false;
}
