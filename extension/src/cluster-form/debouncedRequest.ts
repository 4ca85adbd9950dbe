import type { IDisposable } from '@lumino/disposable';

/** What is asked, and what is done with the answers. */
export interface IAsking<Question, Answer> {
  /** The signal is given when nobody wants to know any more. */
  ask: (question: Question, signal: AbortSignal) => Promise<Answer>;
  answered: (answer: Answer) => void;
  failed: (error: unknown) => void;
  /** Milliseconds without another question before one is asked. */
  wait: number;
}

/** Asks the last of many questions, once no other has come for a while. Answers to earlier ones are dropped. */
export class Latest<Question, Answer> implements IDisposable {
  constructor(private readonly its: IAsking<Question, Answer>) {}

  /** Whether the last question has no answer yet. */
  get isPending(): boolean {
    return this.timer !== undefined || this.answer !== undefined;
  }

  /** Ask this, unless there is another question soon. */
  put(question: Question): void {
    if (!this._isDisposed) {
      this.giveUp();
      this.answer = undefined;
      this.question = question;
      this.timer = setTimeout(() => {
        this.send(question);
      }, this.its.wait);
    }
  }

  /** Ask at once what waits; resolves when the last question has been answered. */
  async settled(): Promise<void> {
    while (this.isPending) {
      if (this.timer !== undefined) {
        this.send(this.question as Question);
      }
      await this.answer;
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this.giveUp();
    this.timer = this.answer = undefined;
    this._isDisposed = true;
  }

  private giveUp(): void {
    clearTimeout(this.timer);
    this.count += 1;
    this.asking.abort();
  }

  private send(question: Question): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.answer = this.take(question, this.count);
  }

  private async take(question: Question, count: number): Promise<void> {
    let tell: () => void;
    this.asking = new AbortController();
    try {
      const answer = await this.its.ask(question, this.asking.signal);
      tell = () => {
        this.its.answered(answer);
      };
    } catch (error) {
      tell = () => {
        this.its.failed(error);
      };
    }
    if (count === this.count) {
      this.answer = undefined;
      tell();
    }
  }

  private timer: ReturnType<typeof setTimeout> | undefined;
  private answer: Promise<void> | undefined;
  private question: Question | undefined;
  private asking = new AbortController();
  // of the last question
  private count = 0;
  private _isDisposed = false;
}
